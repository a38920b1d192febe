"""Recovered labels against the true ones: which are right, beside the best guess, and how well scores part them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vfl.datasets import Data
from vfl.maths.metrics import EXACT, auc, r2
from vfl.maths.naming import renamed
from vfl.referee.rows import beside_guess, share_within


def score_labels(
    arrays: dict[str, np.ndarray], data: Data, order: Tensor, *, asked: Tensor, known: bool
) -> dict[str, Any]:
    """Return the scores of the labels in `arrays`, which then has them as they are scored, and the truth.

    Of samples that are not `asked` about, the adversary was told.

    Labels that the attack knew are each sample's own, and no leak; others are taken in the order that fits within
    cells, and classes without names under the naming that fits best.
    """
    labels, scores = torch.tensor(arrays["labels"]), dict[str, Any]()
    if not known:
        labels = labels[order]
        scores["labels_named"] = bool(arrays.get("labels_named", True))
        if not scores["labels_named"]:
            labels = renamed(labels, data.y, data.classes)
        found, truth = labels[asked], data.y[asked]
        scores["labels"] = beside_guess(found == truth, truth == truth.mode().values, found >= 0)
    arrays |= {"labels": labels.numpy(), "labels_true": data.y.numpy()}
    scores["label_accuracy"] = float((labels == data.y)[asked].float().mean())
    if "label_scores" in arrays and data.classes == 2:
        value = auc(torch.tensor(arrays["label_scores"])[asked], data.y[asked] == 1)
        named = value is None or scores.get("labels_named", True)
        scores["label_auc"] = value if named else max(value or 0.0, 1 - (value or 0.0))
    return scores


def score_targets(arrays: dict[str, np.ndarray], data: Data, order: Tensor, *, known: bool) -> dict[str, Any]:
    """Return the scores of labels that are numbers: right to a thousandth of their range, beside the best guess."""
    targets = torch.tensor(arrays["targets"]) if known else torch.tensor(arrays["targets"])[order]
    arrays |= {"targets": targets.numpy(), "targets_true": data.y.numpy()}
    found = share_within(targets[:, None], data.y[:, None], EXACT)
    variance = float(r2(targets[:, None].nan_to_num(0.0), data.y[:, None])[0])
    scores: dict[str, Any] = {"label_accuracy": found.right, "label_r2": variance}
    return scores if known else scores | {"labels": found, "labels_named": True}
