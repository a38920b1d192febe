"""Networks by description: a chain of known layers, so that a network from elsewhere is rebuilt without its code."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from vfl.errors import UserError
from vfl.limits import NAME_CHARACTERS, OUTPUT_BYTES, PARAMETER_BYTES, plain
from vfl.models import SplitModel, models
from vfl.partition import Shape
from vfl.registry import Section

KINDS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "Linear": (nn.Linear, ("in_features", "out_features", "bias")),
    "Conv1d": (nn.Conv1d, ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "bias")),
    "Conv2d": (nn.Conv2d, ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "bias")),
    "LayerNorm": (nn.LayerNorm, ("normalized_shape", "eps")),
    "GroupNorm": (nn.GroupNorm, ("num_groups", "num_channels", "eps")),
    "Flatten": (nn.Flatten, ()),
    "Identity": (nn.Identity, ()),
    "ReLU": (nn.ReLU, ()),
    "LeakyReLU": (nn.LeakyReLU, ("negative_slope",)),
    "ELU": (nn.ELU, ("alpha",)),
    "GELU": (nn.GELU, ()),
    "SiLU": (nn.SiLU, ()),
    "Sigmoid": (nn.Sigmoid, ()),
    "Softplus": (nn.Softplus, ("beta",)),
    "Tanh": (nn.Tanh, ()),
    "Dropout": (nn.Dropout, ("p",)),
    "MaxPool2d": (nn.MaxPool2d, ("kernel_size", "stride", "padding")),
    "AvgPool2d": (nn.AvgPool2d, ("kernel_size", "stride", "padding")),
    "AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d, ("output_size",)),
}
"""The layers that a description may have, and the options that make them."""
_NUMBER = (bool, int, float)
_MISFIT = (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError)
"""What torch raises of options that make no layer, or none that runs on a slice."""


class Layer(Section):
    """One layer: its kind, what its parameters are called (`NAME.weight`), and its options as torch names them."""

    kind: str
    name: str = Field("", max_length=NAME_CHARACTERS)
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> "Layer":
        if self.kind not in KINDS:
            raise ValueError(f"kind is {plain(self.kind)!r}, expected one of {', '.join(KINDS)}")
        for name, value in self.options.items():
            numbers = value if isinstance(value, list | tuple) else [value]
            if name not in KINDS[self.kind][1] or not all(isinstance(one, _NUMBER) for one in numbers):
                raise ValueError(f"{self.kind} has no option {plain(name)}: {plain(repr(value))}")
        if not all(part.isidentifier() or part.isdecimal() for part in self.name.split(".") if self.name):
            raise ValueError(f"{plain(self.name)!r} is not the name of a layer")
        return self

    def build(self) -> nn.Module:
        """Make the layer."""
        options = {name: tuple(one) if isinstance(one, list) else one for name, one in self.options.items()}
        return KINDS[self.kind][0](**options)


@models.register("layers")
class Layers(SplitModel):
    """A chain of layers from a description (`vfl.record` writes it): no code of the network's own is imported."""

    layers: tuple[Layer, ...] = Field(max_length=1_000, description="kind, name and options of each, in their order")

    def bottom(self, shape: Shape) -> nn.Module:
        """Build the chain."""
        return self._build(shape)

    def top(self, widths: Sequence[int], classes: int) -> nn.Module:  # noqa: ARG002 - that they fit is seen when it runs
        """Build the chain."""
        return self._build((sum(widths),))

    def _build(self, shape: Shape) -> nn.Module:
        try:
            with torch.device("meta"):
                tried = _made(self.layers)
                size = sum(one.nbytes for one in tried.parameters())
                if size > PARAMETER_BYTES:
                    raise UserError(f"model layers: it takes {size} bytes, and {PARAMETER_BYTES} are the limit")
                _check_outputs(tried, torch.zeros(2, *shape))
            return _made(self.layers)
        except _MISFIT as error:
            raise UserError(f"model layers: a layer cannot be made: {plain(str(error))}") from None


def _check_outputs(network: nn.Module, x: Tensor) -> None:
    """Refuse layers that make much of little: their outputs have no memory here. That they fit is seen later."""

    def small(layer: nn.Module, _given: object, output: Tensor) -> None:
        if output.nbytes > OUTPUT_BYTES:
            kind = type(layer).__name__
            raise UserError(f"model layers: {kind} makes {output.nbytes} bytes of two samples, {OUTPUT_BYTES} at most")

    for layer in network.modules():
        layer.register_forward_hook(small)
    with contextlib.suppress(*_MISFIT), torch.no_grad():
        network(x)


def _made(layers: Sequence[Layer]) -> nn.Module:
    """Return the chain; a single layer without a name is the network itself."""
    return layers[0].build() if len(layers) == 1 and not layers[0].name else Chain(layers)


class Chain(nn.Module):
    """Layers one after the other, under dotted names: a name that comes again is the same layer."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.order: list[str] = []
        for place, layer in enumerate(layers):
            name = layer.name or f"step_{place}"
            if name not in self.order:
                self._put(name, layer.build())
            self.order.append(name)

    def _put(self, name: str, layer: nn.Module) -> None:
        *outer, last = name.split(".")
        at: nn.Module = self
        for part in outer:
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at._modules[part] or at
        at.add_module(last, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Run the layers."""
        for name in self.order:
            x = self.get_submodule(name)(x)
        return x
