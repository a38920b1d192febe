"""Groups without names: which of them stands for which class."""

import torch
from torch import Tensor


def best_naming(groups: Tensor, classes_of: Tensor, classes: int, *, of: Tensor | None = None) -> Tensor:
    """Return for each class the group that stands for it, so that as many samples as possible are right.

    `of` says which samples count; all that have both a group and a class by default.
    """
    from scipy.optimize import linear_sum_assignment

    there = (groups >= 0) & (classes_of >= 0)
    if of is not None:
        there &= of
    table = torch.zeros(classes, classes, dtype=torch.int64)
    pairs = groups[there] * classes + classes_of[there]
    table += torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
    rows, columns = linear_sum_assignment(-table.numpy())
    group_of = torch.empty(classes, dtype=torch.int64)
    group_of[torch.as_tensor(columns)] = torch.as_tensor(rows)
    return group_of


def renamed(groups: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Return groups under the names of classes that fit the truth best; -1 stays unknown."""
    group_of = best_naming(groups, truth, classes)
    class_of = torch.empty_like(group_of)
    class_of[group_of] = torch.arange(classes)
    return torch.where(groups >= 0, class_of[groups.clamp(min=0)], -1)
