"""The referee: it holds the ground truth, in simulation only, and scores what an attack recovered."""

import warnings
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vfl.config import RunConfig
from vfl.datasets import Data
from vfl.datasets.slices import boxes_of
from vfl.errors import UserError
from vfl.files.archive import ArchiveError, read_archive, save_arrays
from vfl.folder.events import write_scores
from vfl.folder.scores import PartyScore, Step
from vfl.folder.summary import Summary, load_summary, save_summary
from vfl.maths.metrics import REBUILT, exact_rows, mse, psnr, r2, range_errors, ssim
from vfl.models import build_bottom
from vfl.models.layers import representation
from vfl.referee.labels import score_labels, score_targets
from vfl.referee.pictures import save_pictures
from vfl.referee.rows import score_columns, score_parties, score_rows, write_rows

UNSCALED = "The model saw the numbers as they are in the file, not scaled: the rows are compared in those units."
QUARTILES = (0.25, 0.5, 0.75)
ALIKE = 0.5
"""Quartiles of recovered columns that are no further from the real ones, in deviations, are the same numbers."""

BESIDE = ("certificates", "certified", "representation_")
"""What an attack says of each sample, which goes where the sample goes."""


def score_run(out: Path, config: RunConfig, data: Data) -> Summary:
    """Score the recovery in a run's folder; add the scores to its summary and the truth to its arrays."""
    summary = load_summary(out)
    path = out / "recovered.npz"
    if not path.exists():
        return summary
    arrays = _arrays(path)
    scores: dict[str, Any] = {}
    order = torch.arange(len(data.x))
    cells = torch.tensor(arrays["cell"])
    sizes = cells.unique(return_counts=True)[1]
    scores["ordered"] = int(sizes[sizes > 1].sum())
    asked = _asked(arrays, data)
    scores["told"] = int((~asked).sum())
    if "x" in arrays:
        lost = ~np.isfinite(arrays["x"]).reshape(len(data.x), -1).all(1)
        x, order = put_in_order(arrays, data)
        as_found = torch.tensor(arrays["x"])
        scaled = in_our_scale(as_found, data)
        summary.attack.notes += [] if scaled is as_found else [UNSCALED]
        found = scaled[order]  # NaN where nothing was recovered
        arrays |= {"x": x.numpy(), "x_true": data.x.numpy()}
        arrays |= {name: rows[order.numpy()] for name, rows in arrays.items() if name.startswith(BESIDE)}
        scores |= score_others(x[asked], part_of(data, asked), config)
        scores |= _against_guesses(config, part_of(data, asked), found[asked]) | {"samples_lost": int(lost.sum())}
        save_pictures(out, *((data, x) if data.mosaics else (part_of(data, asked), x[asked])))
    scores["over_rounds"] = [
        score_snapshot(path, data, config) for path in sorted((out / "snapshots").glob("[0-9]*.npz"))
    ]
    if "labels" in arrays:
        # nothing but the labels themselves says which order within cells fits, where slices are not as they were
        if "x" not in arrays or config.training.augment.any:
            order = best_order(_one_hot(arrays["labels"], data), _one_hot(data.y.numpy(), data), cells)
        scores |= score_labels(arrays, data, order, asked=asked, known="labels" in summary.attack.used)
    if "targets" in arrays and data.target is not None:
        if "x" not in arrays:
            order = best_order(torch.tensor(arrays["targets"])[:, None].nan_to_num(0.0), data.y[:, None], cells)
        scores |= score_targets(arrays, data, order, known="labels" in summary.attack.used)
    if "x" in arrays and data.columns:
        labels = next((torch.tensor(arrays[name]) for name in ("labels", "targets") if name in arrays), None)
        write_rows(out, part_of(data, asked), found[asked], None if labels is None else labels[asked])
    if "x" not in arrays and "layers" in arrays and config.training.frozen:
        scores |= _representation_errors(config, data, arrays)
    summary.attack = summary.attack.model_copy(update=scores)
    save_arrays(path, arrays)
    save_summary(out, summary)
    write_scores(out, summary, torch.tensor(arrays["x"]) if "x" in arrays else None, data.x)
    return summary


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        return read_archive(path)
    except ArchiveError as error:
        raise UserError(f"{path} cannot be read as an .npz archive without pickles: {error}") from None


def _one_hot(labels: np.ndarray, data: Data) -> Tensor:
    """Return a vector for each label, of zeros where it is unknown (-1)."""
    return torch.eye(data.classes + 1)[torch.tensor(labels, dtype=torch.int64)][:, : data.classes]


def score_snapshot(path: Path, data: Data, config: RunConfig) -> Step:
    """Return how far the attack had got after some rounds."""
    arrays = _arrays(path)
    found, truth = what_is_scored(arrays, data, config)
    if data.kind == "image":
        score = {"psnr_mean": float(psnr(found, truth).mean()), "mse_mean": float(mse(found, truth).mean())}
    else:
        score = {"r2": float(r2(found, truth).nanmean())}
    return Step(round=int(arrays["round"]), seconds=float(arrays["seconds"]), **score)


def what_is_scored(arrays: dict[str, np.ndarray], data: Data, config: RunConfig) -> tuple[Tensor, Tensor]:
    """Return an estimate and the truth, without the samples and the features that the adversary has itself."""
    x, _ = put_in_order(arrays, data)
    asked = _asked(arrays, data)
    return _others(x[asked], data, config), _others(data.x[asked], data, config)


def _asked(arrays: dict[str, np.ndarray], data: Data) -> Tensor:
    """Tell of each sample whether it is scored: the adversary did not know it from elsewhere."""
    return ~torch.tensor(arrays["told"]) if "told" in arrays else torch.ones(len(data.x), dtype=torch.bool)


def part_of(data: Data, some: Tensor) -> Data:
    """Return the data with some of the samples alone."""
    if bool(some.all()):
        return data
    ids = tuple(one for one, here in zip(data.ids, some.tolist(), strict=True) if here)
    return replace(data, x=data.x[some], y=data.y[some], ids=ids)


def put_in_order(arrays: dict[str, np.ndarray], data: Data) -> tuple[Tensor, Tensor]:
    """Return the recovered samples in the order that fits within cells, and that order."""
    # What an attack did not recover is scored as its best blind guess: mid-grey, or the column's mean.
    x = torch.nan_to_num(in_our_scale(torch.tensor(arrays["x"]), data), nan=0.5 if data.kind == "image" else 0.0)
    order = best_order(x, data.x, torch.tensor(arrays["cell"]))
    return x[order], order


def score_others(x: Tensor, data: Data, config: RunConfig) -> dict[str, float]:
    """Return the scores of recovered samples, without what the adversary holds itself."""
    own = _own(config)
    if not own:
        return score_images(x, data.x) if data.kind == "image" else score_table(x, data.x)
    flat, truth = _others(x, data, config), _others(data.x, data, config)
    if data.kind == "table":
        return score_table(flat, truth)
    boxes = [box for worker, box in enumerate(boxes_of(data, config)) if worker not in own]
    slices = [score_images(box.cut(x), box.cut(data.x)) for box in boxes]
    each = {name: sum(one[name] for one in slices) / len(slices) for name in ("ssim_mean", "ssim_baseline")}
    return each | _pixel_scores(flat, truth)


def _others(x: Tensor, data: Data, config: RunConfig) -> Tensor:
    """Return the features of whole samples that the adversary does not hold itself, in one row each."""
    own = _own(config)
    if not own:
        return x.flatten(1)
    boxes = [box for worker, box in enumerate(boxes_of(data, config)) if worker not in own]
    return torch.cat([box.cut(x).flatten(1) for box in boxes], dim=1)


def _own(config: RunConfig) -> set[int]:
    """Return the workers among the adversary, whose own features are no leak."""
    return {seat.worker for seat in config.seats if seat.worker is not None}


def _pixel_scores(x: Tensor, truth: Tensor) -> dict[str, float]:
    """Return the scores that do not depend on where in an image a pixel is, beside those of guessing the mean."""
    values, guess = psnr(x, truth), truth.mean(0, keepdim=True).expand_as(truth)
    return {
        "psnr_mean": float(values.mean()),
        "psnr_median": float(values.quantile(0.5)),
        "psnr_min": float(values.min()),
        "mse_mean": float(mse(x, truth).mean()),
        "share_30db": float((values >= REBUILT).double().mean()),
        "psnr_baseline": float(psnr(guess, truth).mean()),
        "mse_baseline": float(mse(guess, truth).mean()),
    }


def score_images(x: Tensor, truth: Tensor) -> dict[str, float]:
    """Return the scores of recovered images, with what guessing the mean image would score."""
    guess = truth.mean(0, keepdim=True).expand_as(truth)
    alike = {"ssim_mean": float(ssim(x, truth).mean()), "ssim_baseline": float(ssim(guess, truth).mean())}
    return alike | _pixel_scores(x, truth)


def score_table(x: Tensor, truth: Tensor) -> dict[str, float]:
    """Return the scores of recovered table rows."""
    errors = {name: float(each.nanmean()) for name, each in range_errors(x, truth).items()}
    return {"r2": float(r2(x, truth).nanmean()), "share_exact": float(exact_rows(x, truth).float().mean()), **errors}


def in_our_scale(x: Tensor, data: Data) -> Tensor:
    """Return recovered rows as we scale them: a model that other code trained may have seen a file's own numbers.

    The order within cells does not matter here: the quartiles of all columns say which of the two they are.
    """
    if data.kind == "image" or not data.columns:
        return x
    scales = [scale for column in data.columns for scale in column.scales]
    mean, deviation = torch.tensor(scales, dtype=torch.float64).T
    ours = ((x.double() - mean) / deviation).to(x.dtype)
    truth = np.quantile(data.x, QUARTILES, axis=0)
    with warnings.catch_warnings():  # columns of which nothing was recovered
        warnings.simplefilter("ignore", RuntimeWarning)
        far = [np.nanmean(np.abs(np.nanquantile(one, QUARTILES, axis=0) - truth)) for one in (x, ours)]
    return ours if far[1] < min(far[0], ALIKE) else x


RIGHT = 1e-3
"""The mean square error, 30 dB, below which a row is the sample."""


def best_order(x: Tensor, truth: Tensor, cell: Tensor) -> Tensor:
    """Return for each sample the row of x that stands for it: within a cell, whichever order fits best."""
    from scipy.optimize import linear_sum_assignment

    order = torch.arange(len(truth))
    # sorted once: looking for each cell's members among all samples would take time that grows with their square
    sizes = torch.unique(cell, return_counts=True)[1]
    for members in torch.argsort(cell, stable=True).split(sizes.tolist()):
        if len(members) > 1:
            true, found = truth[members].flatten(1).double(), x[members].flatten(1).double()
            cost = torch.cdist(true, found).square() / true.shape[1]
            # a row that is a sample stands for it, though it may be nearer to others than what was lost is
            cost[cost < RIGHT] -= 2 * len(members) * float(cost.max())
            rows, columns = linear_sum_assignment(cost.numpy())
            order[members[torch.as_tensor(rows)]] = members[torch.as_tensor(columns)]
    return order


def _against_guesses(config: RunConfig, data: Data, found: Tensor) -> dict[str, Any]:
    """Return the scores of each party and column, beside what a guess gets."""
    horizontal = config.topology.is_horizontal
    if data.kind == "table":
        boxes = [] if horizontal else boxes_of(data, config)
        columns = score_columns(data, boxes, found)
        others = [column for column in columns if column.worker not in _own(config)]
        return {
            "columns": others,
            "parties": score_parties(others, boxes, found, data.x),
            "exact": score_rows(_others(found, data, config), _others(data.x, data, config), others),
        }
    x = found.nan_to_num(0.5)
    pairs = [] if horizontal else [(box.cut(x), box.cut(data.x)) for box in boxes_of(data, config)]
    slices = [score_images(own, truth) for own, truth in pairs]
    keys = {
        "psnr": "psnr_mean",
        "mse": "mse_mean",
        "ssim": "ssim_mean",
        "psnr_baseline": "psnr_baseline",
        "ssim_baseline": "ssim_baseline",
    }
    scores = [{key: one[name] for key, name in keys.items()} for one in slices]
    parties = [PartyScore(worker=worker, **one) for worker, one in enumerate(scores) if worker not in _own(config)]
    whole = {"psnr_slices": fmean(scores[party.worker]["psnr"] for party in parties)} if parties else {}
    return {"parties": parties, **whole}


def _representation_errors(config: RunConfig, data: Data, arrays: dict[str, np.ndarray]) -> dict[str, float | None]:
    """Return the median relative error over samples and workers, and that of guessing the mean.

    A worker where nothing leaks does not count.
    """
    errors: dict[str, list[Tensor]] = {"representation_error": [], "representation_baseline": []}
    for worker, box in enumerate(boxes_of(data, config)):
        model = build_bottom(config.model, box.shape, config.seed, worker)
        with torch.no_grad():
            truth = representation(model, str(arrays["layers"][worker]), box.cut(data.x))
        found = torch.tensor(arrays[f"representation_{worker}"])
        if found.shape != truth.shape:  # of a layer that is not a dense one: they cannot be compared
            return dict.fromkeys(errors)
        for kept, values in zip(errors.values(), (found, truth.mean(0)), strict=True):
            error = (values - truth).norm(dim=1) / truth.norm(dim=1)
            kept.append(error[torch.isfinite(error)].double())
    known = {name: torch.cat(each) for name, each in errors.items()}
    return {name: float(each.quantile(0.5)) if len(each) else None for name, each in known.items()}
