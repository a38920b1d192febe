"""Total variation: how much neighbouring pixels differ, which is little in photographs and much in noise."""

from torch import Tensor

DOWN, ACROSS = -2, -1
"""The dimensions of an image along which pixels are neighbours."""


def differences(x: Tensor, dim: int, *, backwards: bool = False) -> Tensor:
    """Return the absolute differences of neighbours along a dimension; how they are added up is the caller's choice.

    Backwards they are the same, but autograd adds their gradients up in another order, which rounds differently.
    """
    count = x.shape[dim] - 1
    ends = (0, 1) if backwards else (1, 0)
    one, other = (x.narrow(dim, start, count) for start in ends)
    return (one - other).abs()
