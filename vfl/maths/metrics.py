"""How close a recovery is to the truth: PSNR, MSE and SSIM for images, R2 and exact rows for tables."""

import torch
from torch import Tensor

PSNR_CAP = 100.0
REBUILT = 30.0
"""From this PSNR on an image counts as rebuilt, as in `share_30db`."""

EXACT, NEAR = 1e-3, 0.05
"""Within which shares of its column's range a number is right, and nearly right."""

SMALLEST = 5
"""A smaller image, or slice of one, has no room for the window of SSIM."""
CHUNK = 256
"""Images judged at a time: all at once takes fifty times the memory of the images."""


def psnr(x: Tensor, truth: Tensor) -> Tensor:
    """Return the PSNR of each image: data range 1, clipped to [0, 1], capped at 100 dB."""
    from vfl import torchvision_ops  # noqa: F401  (torchmetrics imports torchvision)
    from torchmetrics.functional.image import peak_signal_noise_ratio  # isort: skip

    if not len(x):
        return torch.zeros(0)
    # In double precision, or a perfect recovery is judged by float32's rounding of its error.
    values = [
        peak_signal_noise_ratio(
            some.double().clamp(0, 1), true.double(), data_range=1.0, reduction="none", dim=tuple(range(1, x.dim()))
        )
        for some, true in zip(x.split(CHUNK), truth.split(CHUNK), strict=True)
    ]
    return torch.cat(values).clamp(max=PSNR_CAP)


def mse(x: Tensor, truth: Tensor) -> Tensor:
    """Return the mean squared error of each image, clipped to [0, 1]."""
    return (x.double().clamp(0, 1) - truth.double()).square().flatten(1).mean(1)


def ssim(x: Tensor, truth: Tensor) -> Tensor:
    """Return the structural similarity of each image (11x11 Gaussian window, smaller for images under 16 pixels)."""
    from vfl import torchvision_ops  # noqa: F401  (torchmetrics imports torchvision)
    from torchmetrics.functional.image import structural_similarity_index_measure  # isort: skip

    if min(x.shape[-2:]) < SMALLEST:
        return torch.full((len(x),), torch.nan)
    small = min(x.shape[-2:]) < 16
    values = []
    for some, true in zip(x.split(CHUNK), truth.split(CHUNK), strict=True):
        found = structural_similarity_index_measure(
            some.float().clamp(0, 1), true.float(), data_range=1.0, reduction="none", sigma=0.5 if small else 1.5
        )
        assert isinstance(found, Tensor)
        values.append(found)
    return torch.cat(values)


def r2(x: Tensor, truth: Tensor) -> Tensor:
    """Return each column's coefficient of determination, NaN for one that is the same in every row, or of no row."""
    if not len(truth):
        return torch.full(truth.shape[1:], torch.nan)
    residual = (x - truth).square().sum(0)
    total = (truth - truth.mean(0)).square().sum(0)
    return torch.where(_span(truth) > 0, 1 - residual / total, torch.nan)


def range_errors(x: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """Return each column's mean squared error in squares of its range, beside those of the mean and of drawing evenly.

    NaN for a column that is the same in every row. What drawing from the whole range scores is its expectation.
    """
    if not len(truth):
        unknown = torch.full(truth.shape[1:], torch.nan)
        return dict.fromkeys(("range_mse", "range_mse_baseline", "range_mse_random"), unknown)
    span = torch.where(_span(truth) > 0, _span(truth), torch.nan)
    spread = truth.var(0, unbiased=False) / span.square()
    off_middle = (truth.mean(0) - (truth.amax(0) + truth.amin(0)) / 2) / span
    error = (x - truth).square().mean(0) / span.square()
    return {"range_mse": error, "range_mse_baseline": spread, "range_mse_random": spread + off_middle.square() + 1 / 12}


def exact_rows(x: Tensor, truth: Tensor) -> Tensor:
    """Tell for each row whether all its values are right to a thousandth of their column's range."""
    return within(x, truth, EXACT).all(1)


def within(x: Tensor, truth: Tensor, tolerance: float) -> Tensor:
    """Tell for each value whether it is right to a share of its column's range."""
    return (x - truth).abs() <= tolerance * _width(truth)


def best_guess(truth: Tensor, tolerance: float) -> Tensor:
    """Return for each column the one number that is right, to a share of its range, for the most rows."""
    values, places = truth.sort(0).values.T.contiguous(), torch.arange(len(truth))
    ends = values + 2 * tolerance * _width(truth)[:, None]
    covered = torch.searchsorted(values, ends, right=True) - places
    first = covered.argmax(1, keepdim=True)
    last = first + covered.gather(1, first) - 1
    return ((values.gather(1, first) + values.gather(1, last)) / 2)[:, 0]


def _width(truth: Tensor) -> Tensor:
    """Return each column's range; the size of its numbers where all are the same."""
    span = _span(truth)
    return torch.where(span > 0, span, truth.abs().amax(0).clamp(min=1.0))


def _span(truth: Tensor) -> Tensor:
    """Return each column's range, 0 where it is only rounding."""
    span = truth.amax(0) - truth.amin(0)
    return torch.where(span > 1e-6 * truth.abs().amax(0), span, 0.0)


def auc(scores: Tensor, positive: Tensor) -> float | None:
    """Return how likely a positive sample scores above a negative one, ties counted half; None if one kind lacks."""
    there = scores.isfinite()
    scores, positive = scores[there].double(), positive[there]
    few, many = scores[positive], scores[~positive].sort().values
    if not len(few) or not len(many):
        return None
    below, upto = torch.searchsorted(many, few), torch.searchsorted(many, few, right=True)
    return float((below + upto).double().sum() / (2 * len(few) * len(many)))
