"""What a tensor is, to compare and to tell people of, and whether its numbers are numbers."""

from typing import NamedTuple

import torch
from torch import Tensor


class Kind(NamedTuple):
    """A tensor's type, shape and layout."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: torch.layout

    def __str__(self) -> str:
        """Return it in words."""
        sparse = "" if self.layout == torch.strided else f"{str(self.layout).removeprefix('torch.')} "
        return f"a {sparse}{str(self.dtype).removeprefix('torch.')} tensor of shape {self.shape}"


def kind_of(tensor: Tensor) -> Kind:
    """Return what a tensor is."""
    return Kind(tensor.dtype, tuple(tensor.shape), tensor.layout)


def described(thing: object) -> str:
    """Return what a plug-in handed over, in a few words."""
    if isinstance(thing, Tensor):
        return str(kind_of(thing))
    return f"{type(thing).__module__}.{type(thing).__name__}".removeprefix("builtins.")


def all_finite(*tensors: Tensor) -> bool:
    """Tell whether there is neither NaN nor infinity; one pass in the usual case."""
    # A sum over finite values can overflow, so only a finite sum settles it.
    return all(bool(torch.isfinite(one.sum())) or bool(torch.isfinite(one).all()) for one in tensors)
