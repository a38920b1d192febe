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
        lengths = tensor.norm(dim=1, keepdim=True)
        longest = lengths.max() if len(lengths) else lengths.sum()
        spread = torch.where(lengths > 0, (longest / lengths).square() - 1, 0.0).clamp(min=0).sqrt()
        return tensor * (1 + spread * swapped.draws.normal((len(tensor), 1)).to(tensor))
