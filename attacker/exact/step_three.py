"""From every worker's representations to its slices: h itself where the layer sees the data, else by inversion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.exact.choice import Choice
from attacker.interface import Progress, Recovery, share
from attacker.inversion import InversionOptions, invert
from attacker.inversion.values import likeliest_length
from vfl.models.layers import FullyConnected
from vfl.observation import ModelTensors, Setting, Tensors


@dataclass(frozen=True)
class Inverted:
    """The data that were found."""

    slices: tuple[Tensor, ...]
    """For each worker (samples, *slice shape), NaN where h is unknown."""
    residual: Tensor
    """(samples, workers): how far its representation is from the one recovered, relative; NaN where that is unknown."""
    acceptable: float
    """The residual above which no data with these representations was found; the slice is then the nearest."""

    @property
    def missed(self) -> Tensor:
        """Tell for which slices (samples, workers) no data was found."""
        return self.residual > self.acceptable

    def reordered(self, orders: Sequence[Tensor]) -> "Inverted":
        """Return the same with every worker's samples in another order."""
        slices = tuple(part[order] for part, order in zip(self.slices, orders, strict=True))
        residual = [self.residual[order, worker] for worker, order in enumerate(orders)]
        return Inverted(slices, torch.stack(residual, dim=1), self.acceptable)


def step_three(
    setting: Setting,
    choice: Choice,
    bottoms: Sequence[nn.Module],
    found: Sequence[Tensor],
    *,
    options: InversionOptions | None,
    cells: tuple[tuple[int, ...], ...],
    progress: Progress,
    versions: Sequence[ModelTensors] = (),
    version_of: Tensor | None = None,
) -> Inverted | None:
    """Return the slices with these representations (samples, inputs); None where that takes what was switched off.

    Where the parameters moved, `versions` has them, and `version_of` (samples,) says which each sample's are.
    """
    if options is None and not all(layer.sees_data for layer in choice.layers):
        return None
    slices: list[Tensor] = []
    residuals: list[Tensor] = []

    def offer(part: Tensor) -> None:
        share(progress, lambda: unfinished(setting, [*slices, part], cells))

    for worker, (layer, box, h) in enumerate(zip(choice.layers, setting.boxes, found, strict=True)):
        if layer.sees_data:
            part = h.reshape(-1, *box.shape)
            slices.append((part if layer.bias else likeliest_length(part)).float())
            residuals.append(torch.where(h.isfinite().all(dim=1), 0.0, torch.nan))
        else:
            assert options is not None
            own = tuple(version.bottoms[worker] for version in versions)
            inversion = _Inversion(setting, options, worker, layer, bottoms[worker], own, version_of)
            x, residual = inversion.run(h, progress, offer)
            slices.append(x)
            residuals.append(residual)
    return Inverted(tuple(slices), torch.stack(residuals, dim=1), options.acceptable if options else 0.0)


@dataclass(frozen=True)
class _Inversion:
    """One worker's step III."""

    setting: Setting
    options: InversionOptions
    worker: int
    layer: FullyConnected
    model: nn.Module
    versions: tuple[Tensors, ...]
    version_of: Tensor | None

    def run(self, h: Tensor, progress: Progress, offer: Callable[[Tensor], None]) -> tuple[Tensor, Tensor]:
        """Return the slices and how far their representations are from these; identical ones are inverted once."""
        known = h.isfinite().all(dim=1).nonzero()[:, 0]
        shape = self.setting.boxes[self.worker].shape
        slices, residual = torch.full((len(h), *shape), torch.nan), torch.full((len(h),), torch.nan)
        if len(known) == 0:
            return slices, residual
        version = torch.zeros(len(known)) if self.version_of is None else self.version_of[known]
        both = torch.cat([h[known].float(), version[:, None].float()], dim=1)
        distinct, which = both.unique(dim=0, return_inverse=True)

        def show(x: Tensor) -> None:
            part = torch.full_like(slices, torch.nan)
            part[known] = x.float()[which]
            offer(part)

        def step(at: int, of: int) -> None:
            done = int((self.worker + at / max(of, 1)) * self.setting.samples)
            progress("step III", done, self.setting.workers * self.setting.samples)

        done = invert(
            self.model.float(), self.layer.name, distinct[:, :-1], shape, seed=self.setting.seed,
            device=self.setting.device, options=self.options, progress=step, offer=show, unit=not self.layer.bias,
            versions=self.versions, version_of=distinct[:, -1].long(),
        )  # fmt: skip
        slices[known], residual[known] = done.x.float().cpu()[which], done.residual.float().cpu()[which]
        return slices, residual


def unfinished(setting: Setting, slices: Sequence[Tensor], cells: tuple[tuple[int, ...], ...]) -> Recovery:
    """Return an estimate on the way: the first workers' slices, NaN for those to come."""
    ahead = [torch.full((setting.samples, *box.shape), torch.nan) for box in setting.boxes[len(slices) :]]
    return Recovery(slices=(*slices, *ahead), cells=cells)
