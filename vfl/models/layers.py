"""The fully connected layers of any model, in the order in which data meets them, and what goes into each.

One sample is run through and hooks look on, so that it does not matter how the model is written: branches, residual
connections and Python's own control flow are all the same to them.
"""

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vfl.models.modes import evaluating
from vfl.partition import Shape


@dataclass(frozen=True)
class FullyConnected:
    """A fully connected layer: its name, and whether the raw features flow into it untouched."""

    name: str
    inputs: int
    outputs: int
    bias: bool
    sees_data: bool


class _Stop(Exception):  # noqa: N818
    """Raised by a hook to end a forward pass that has gone far enough."""


def fully_connected(model: nn.Module, shape: Shape) -> list[FullyConnected]:
    """List the fully connected layers in the order of the forward pass.

    A layer that meets a sample in several rows (tokens), or more than once, is left out: it is a convolution by another
    name, and its gradient is no sum of one outer product a sample.
    """
    found: dict[str, FullyConnected] = {}
    met: Counter[str] = Counter()
    probe = torch.linspace(0.1, 0.9, steps=math.prod(shape)).reshape(1, *shape)

    def note(name: str, layer: nn.Linear, value: Tensor) -> None:
        met[name] += math.prod(value.shape[:-1])
        same = value.numel() == probe.numel() and bool(torch.equal(value.flatten().cpu(), probe.flatten()))
        found[name] = FullyConnected(name, layer.in_features, layer.out_features, layer.bias is not None, same)

    handles = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):

            def hook(module: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                assert isinstance(module, nn.Linear)
                note(name, module, inputs[0])

            handles.append(layer.register_forward_pre_hook(hook))
    try:
        with torch.no_grad(), evaluating(model):
            model(probe.to(next(model.parameters())))
    finally:
        for handle in handles:
            handle.remove()
    return [layer for name, layer in found.items() if met[name] == 1]


def representation(model: nn.Module, layer: str, x: Tensor) -> Tensor:
    """Return what flows into a layer for the inputs x (differentiable); the model runs no further than that."""
    caught: list[Tensor] = []

    def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        caught.append(inputs[0])
        raise _Stop

    handle = model.get_submodule(layer).register_forward_pre_hook(hook)
    try:
        model(x)
    except _Stop:
        pass
    finally:
        handle.remove()
    return caught[0]
