"""The fully connected layers of any model, in the order in which data meets them, and what goes into each.

One sample is run through the model while hooks record what each layer gets, so that it does not matter how the model
is written: with branches, residual connections, or Python's own control flow.
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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

    A layer that gets a sample in several rows (tokens), or more than once, is left out: like a convolution's, its
    gradient is no sum of one outer product a sample. So is a layer whose weight is not its own parameter: computed from
    others (weight norm), not trained, or shared with another layer.
    """
    probe, *others = _probes(shape)
    met = _inputs(model, probe)
    met = {name: values for name, values in met.items() if sum(math.prod(value.shape[:-1]) for value in values) == 1}
    same = {name for name, (value,) in met.items() if _equal(value, probe)}
    for other in others if same else []:
        same &= _that_see(model, other)
    found = []
    uses = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    for name in met:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
        if weight is not None and uses[id(weight)] == 1:
            tells = bias is not None and uses[id(bias)] == 1
            found.append(FullyConnected(name, layer.in_features, layer.out_features, tells, name in same))
    return found


def _probes(shape: Shape) -> tuple[Tensor, ...]:
    """Return samples of which every activation changes at least one: small numbers, and large ones of both signs."""
    small = torch.linspace(0.1, 0.9, steps=math.prod(shape))
    large = torch.linspace(8.0, 1.5, steps=math.prod(shape))
    large[1::2] *= -1
    return tuple(values.reshape(1, *shape) for values in (small, large, -1.1 * large))


def _inputs(model: nn.Module, probe: Tensor) -> dict[str, list[Tensor]]:
    """Run a sample through and return the inputs of each dense layer, in the order in which the layers were called."""
    met: dict[str, list[Tensor]] = {}
    with ExitStack() as hooks, torch.no_grad(), evaluating(model):
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear):

                def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], name: str = name) -> None:
                    met.setdefault(name, []).append(given(inputs, named).clone())

                hooks.enter_context(layer.register_forward_pre_hook(hook, with_kwargs=True))
        model(probe.clone().to(like_parameters(model)))  # a copy, as models may change their input in place
    return met


def _that_see(model: nn.Module, probe: Tensor) -> set[str]:
    """Return the layers that get a sample unchanged; none if the model cannot run on it."""
    try:
        met = _inputs(model, probe)
    except Exception:  # a model may raise anything on values that it does not expect
        return set()
    return {name for name, values in met.items() if len(values) == 1 and _equal(values[0], probe)}


def _equal(value: Tensor, probe: Tensor) -> bool:
    return value.numel() == probe.numel() and bool(torch.equal(value.flatten().to(probe), probe.flatten()))


def given(inputs: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    """Return what a layer was called with, also where it was given by name: linear(input=x)."""
    value: Tensor = inputs[0] if inputs else next(iter(named.values()))
    return value


def like_parameters(model: nn.Module) -> Tensor:
    """Return a tensor of the dtype and on the device of a model's parameters; a CPU float32 one if it has none."""
    return next(model.parameters(), torch.zeros(()))


def representation(model: nn.Module, layer: str, x: Tensor) -> Tensor:
    """Return the input of a layer for the model's inputs x (differentiable); the model runs only that far."""
    caught: list[Tensor] = []

    def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        caught.append(given(inputs, named))
        raise _Stop

    with model.get_submodule(layer).register_forward_pre_hook(hook, with_kwargs=True), suppress(_Stop):
        model(x.clone())  # a model may change its input in place
    return caught[0]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode while the block runs; then each module has the mode it had: some may be frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
