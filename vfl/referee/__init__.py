"""The referee: it holds the ground truth, in simulation only, and scores what an attack recovered."""

from pathlib import Path
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
from vfl.folder.summary import Step, Summary, load_summary, save_summary
from vfl.maths.metrics import exact_rows, psnr, r2, ssim
from vfl.models import build_bottom
from vfl.models.layers import representation
from vfl.referee.pictures import save_pictures
from vfl.referee.rows import score_columns, write_rows

BESIDE = ("certificates", "representation_")
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
    if "x" in arrays:
        lost = ~np.isfinite(arrays["x"]).reshape(len(data.x), -1).all(1)
        x, order = put_in_order(arrays, data)
        found = torch.tensor(arrays["x"])[order]  # NaN where nothing was recovered
        arrays |= {"x": x.numpy(), "x_true": data.x.numpy()}
        arrays |= {name: rows[order.numpy()] for name, rows in arrays.items() if name.startswith(BESIDE)}
        scores = score_images(x, data.x) if data.kind == "image" else score_table(x, data.x)
        scores["samples_lost"] = int(lost.sum())
        save_pictures(out, data, x)
    scores["over_rounds"] = [score_snapshot(path, data) for path in sorted((out / "snapshots").glob("[0-9]*.npz"))]
    if "labels" in arrays:
        if "x" not in arrays:  # nothing but the labels themselves says which order within cells fits
            order = best_order(_one_hot(arrays["labels"], data), _one_hot(data.y.numpy(), data), cells)
        labels = torch.tensor(arrays["labels"])
        if "labels" not in summary.attack.used:  # those that the attack knew are each sample's own
            labels = labels[order]
        arrays |= {"labels": labels.numpy(), "labels_true": data.y.numpy()}
        scores["label_accuracy"] = float((labels == data.y).float().mean())
    if "x" in arrays and data.columns:
        boxes = [] if config.topology.is_horizontal else boxes_of(data, config)
        scores["columns"] = score_columns(data, boxes, found)
        write_rows(out, data, found, torch.tensor(arrays["labels"]) if "labels" in arrays else None)
    if "x" not in arrays and "layers" in arrays and config.training.frozen:
        scores["representation_error"] = _representation_error(config, data, arrays)
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


def score_snapshot(path: Path, data: Data) -> Step:
    """Return how far the attack had got after some rounds."""
    arrays = _arrays(path)
    x, _ = put_in_order(arrays, data)
    scores = score_images(x, data.x) if data.kind == "image" else score_table(x, data.x)
    score = {key: scores[key] for key in ("psnr_mean", "r2") if key in scores}
    return Step(round=int(arrays["round"]), seconds=float(arrays["seconds"]), **score)


def put_in_order(arrays: dict[str, np.ndarray], data: Data) -> tuple[Tensor, Tensor]:
    """Return the recovered samples in the order that fits within cells, and that order."""
    # What an attack did not recover is scored as its best blind guess: mid-grey, or the column's mean.
    x = torch.nan_to_num(torch.tensor(arrays["x"]), nan=0.5 if data.kind == "image" else 0.0)
    order = best_order(x, data.x, torch.tensor(arrays["cell"]))
    return x[order], order


def score_images(x: Tensor, truth: Tensor) -> dict[str, float]:
    """Return the scores of recovered images, with what guessing the mean image would score."""
    values = psnr(x, truth)
    baseline = psnr(truth.mean(0, keepdim=True).expand_as(truth), truth)
    return {
        "psnr_mean": float(values.mean()),
        "psnr_median": float(values.quantile(0.5)),
        "psnr_min": float(values.min()),
        "ssim_mean": float(ssim(x, truth).mean()),
        "share_30db": float((values >= 30).double().mean()),
        "psnr_baseline": float(baseline.mean()),
    }


def score_table(x: Tensor, truth: Tensor) -> dict[str, float]:
    """Return the scores of recovered table rows."""
    return {"r2": float(r2(x, truth).nanmean()), "share_exact": float(exact_rows(x, truth).float().mean())}


def best_order(x: Tensor, truth: Tensor, cell: Tensor) -> Tensor:
    """Return for each sample the row of x that stands for it: within a cell, whichever order fits best."""
    from scipy.optimize import linear_sum_assignment

    order = torch.arange(len(truth))
    # sorted once: looking for each cell's members among all samples would take time that grows with their square
    sizes = torch.unique(cell, return_counts=True)[1]
    for members in torch.argsort(cell, stable=True).split(sizes.tolist()):
        if len(members) > 1:
            cost = torch.cdist(truth[members].flatten(1).double(), x[members].flatten(1).double()).square()
            rows, columns = linear_sum_assignment(cost.numpy())
            order[members[torch.as_tensor(rows)]] = members[torch.as_tensor(columns)]
    return order


def _representation_error(config: RunConfig, data: Data, arrays: dict[str, np.ndarray]) -> float | None:
    """Return the median relative error over samples and workers; a worker where nothing leaks does not count."""
    errors = []
    boxes = boxes_of(data, config)
    for worker, box in enumerate(boxes):
        model = build_bottom(config.model, box.shape, config.seed, worker)
        with torch.no_grad():
            truth = representation(model, str(arrays["layers"][worker]), box.cut(data.x))
        found = torch.tensor(arrays[f"representation_{worker}"])
        if found.shape != truth.shape:  # of a layer that is not a dense one: they cannot be compared
            return None
        error = (found - truth).norm(dim=1) / truth.norm(dim=1)
        errors.append(error[torch.isfinite(error)])
    found_at_all = torch.cat(errors).double()
    return float(found_at_all.quantile(0.5)) if len(found_at_all) else None
