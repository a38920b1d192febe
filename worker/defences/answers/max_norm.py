"""Answers of one length: noise along each makes all as long as the longest, in the mean."""

from typing import ClassVar

import torch
from torch import Tensor

from vfl.config.places import Place
from worker.defences import Defence, Swapped, defences


@defences.register("max_norm")
class MaxNorm(Defence):
    """Max-norm alignment (Li et al. 2022, section 4.1): noise along each answer hides from its length.

    g becomes (1 + s e) g with e standard normal and s^2 = |g_max|^2 / |g|^2 - 1: right in the mean, and as long as the
    batch's longest in the mean square. The line on which an answer lies stays as it is.
    """

    places: ClassVar[frozenset[Place]] = frozenset({"answers"})

    def exchange(self, tensor: Tensor, swapped: Swapped) -> Tensor:
        """Return the answers with noise along each."""
        if not len(tensor):
            return tensor
        rows = tensor.double()  # an answer may be 1e-25 of the longest, and s is the quotient
        lengths = rows.norm(dim=1, keepdim=True)
        lacking = (lengths.square().amax(0) - lengths.square()).clamp(min=0).sqrt()
        along = torch.where(lengths > 0, rows / lengths, 0.0)
        sent: Tensor = rows + lacking * along * swapped.draws.normal((len(tensor), 1)).to(rows)
        return sent.to(tensor)
