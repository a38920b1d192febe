"""Pruning: only the largest entries are uploaded."""

import math

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vfl.observation import Tensors
from worker.defences import Defence, Played, defences


@defences.register("prune")
class Prune(Defence):
    """Sets all but the largest entries of each tensor to zero (Lin et al. 2018, "Deep gradient compression").

    The k-th largest magnitude is the threshold, and every entry that reaches it stays: of equal ones none is
    preferred. There is no memory of what was left out.
    """

    keep: float = Field(0.1, gt=0, le=1, description="the share of each tensor's entries that stays")

    def apply(self, gradients: Tensors, played: Played) -> Tensors:  # noqa: ARG002
        """Return the gradients with their small entries cut off."""
        return {name: pruned(tensor, self.keep) for name, tensor in gradients.items()}


def pruned(tensor: Tensor, keep: float) -> Tensor:
    """Return a tensor with the largest share of its entries, the others zero."""
    drop = tensor.numel() - math.ceil(keep * tensor.numel())
    if drop <= 0:
        return tensor
    size = tensor.detach().abs()
    # numpy's selection is several times as fast as torch's kthvalue.
    threshold = float(np.partition(size.float().cpu().numpy().ravel(), drop)[drop])
    return torch.where(size >= threshold, tensor, torch.zeros_like(tensor))
