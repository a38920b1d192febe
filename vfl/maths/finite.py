"""Whether numbers are numbers."""

import torch
from torch import Tensor


def all_finite(*tensors: Tensor) -> bool:
    """Tell whether there is neither NaN nor infinity; one pass in the usual case."""
    # A sum over finite values can overflow, so only a finite sum settles it.
    return all(bool(torch.isfinite(one.sum())) or bool(torch.isfinite(one).all()) for one in tensors)
