"""A model as the chain of its layers, read off its trace; what R-GAP cannot invert is refused by name."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional

from attacker.refusal import Lack, RefusalError
from vfl.partition import Shape

CHAINS = (
    "models that are chains of nn.Linear, nn.Conv2d, ReLU, LeakyReLU, Sigmoid, Tanh and Flatten (as strided_cnn and "
    "mlp are)"
)


Inverse = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Of an activation: the input z that gave the output a, and the derivative there; where that is 0, z is unknown."""
Layer = nn.Linear | nn.Conv2d | Inverse | None


def inverse_relu(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return a, and 1 where it is positive: outputs below zero are errors, and show how large those are."""
    noise = torch.maximum(-3 * a.min(), 1e-7 * a.max())
    return a, (a > noise).to(a.dtype)


def inverse_leaky_relu(slope: float, a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the input, which is known everywhere, and the derivative."""
    return torch.where(a < 0, a / slope, a), torch.where(a < 0, slope, 1.0).to(a.dtype)


def inverse_sigmoid(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the input, which is known where it is not saturated, and the derivative."""
    a = a.clamp(1e-9, 1 - 1e-9)
    return torch.logit(a), a * (1 - a)


def inverse_tanh(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the input, which is known where it is not saturated, and the derivative."""
    a = a.clamp(-1 + 1e-9, 1 - 1e-9)
    return torch.atanh(a), 1 - a.square()


@dataclass(frozen=True)
class Step:
    """One layer of a chain."""

    name: str
    """Of a layer with parameters: its name in the model."""
    layer: Layer
    """None: only the shape changes."""
    inputs: Shape
    """The shape of one sample on its way in."""

    def parameter(self, kind: str) -> str:
        """Return the name of the layer's weight or bias in the model."""
        return f"{self.name}.{kind}" if self.name else kind


def chain(model: nn.Module, shape: Shape, whose: str) -> list[Step]:
    """Return the steps that a sample of this shape takes through a model, or raise RefusalError."""
    try:
        # Wrapped, because a layer on its own would be traced into
        traced = fx.symbolic_trace(nn.Sequential(model))
        with contextlib.redirect_stderr(io.StringIO()):  # it prints the traceback of what the model raises
            ShapeProp(traced).propagate(torch.zeros(1, *shape))
    except Exception as error:  # whatever the model's own code raises when it is traced
        raise _refusal(f"{whose} cannot be followed ({error})") from None
    nodes = list(traced.graph.nodes)
    node, steps = nodes[0], list[Step]()
    while True:
        following = [user for user in node.users if _is_tensor(user)]
        if len(following) != 1 or sum(map(_is_tensor, following[0].all_input_nodes)) != 1:
            raise _refusal(f"{whose} branches at {node.name}")
        if following[0].op == "output":
            return steps
        before, node = node, following[0]
        layer = _layer(node, traced)
        name = str(node.target).removeprefix("0").removeprefix(".") if _is_module(node) else node.name
        if layer == "unknown":
            kind = f" ({type(traced.get_submodule(str(node.target))).__name__})" if _is_module(node) else ""
            raise _refusal(f"it cannot invert the layer {name}{kind} of {whose}")
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer._parameters.get("weight") is None:
            raise _refusal(f"the weight of {name} of {whose} is not trained itself")
        steps.append(Step(name, layer, tuple(before.meta["tensor_meta"].shape[1:])))


def _refusal(found: str) -> RefusalError:
    return RefusalError("rgap", Lack(CHAINS, found))


def _is_tensor(node: fx.Node) -> bool:
    return "tensor_meta" in node.meta


def _is_module(node: fx.Node) -> bool:
    return node.op == "call_module"


_LAYERS = (
    (None, (nn.Flatten, nn.Identity, torch.flatten, torch.reshape, "flatten", "view", "reshape")),
    (inverse_relu, (nn.ReLU, torch.relu, functional.relu, "relu")),
    (inverse_sigmoid, (nn.Sigmoid, torch.sigmoid, functional.sigmoid, "sigmoid")),
    (inverse_tanh, (nn.Tanh, torch.tanh, functional.tanh, "tanh")),
)
"""Layers without parameters or options, and all that torch has them by."""


def _layer(node: fx.Node, traced: fx.GraphModule) -> Any:
    """Return the node's layer, or "unknown"."""
    module = traced.get_submodule(str(node.target)) if _is_module(node) else None
    if isinstance(module, nn.Linear):
        return module
    if isinstance(module, nn.Conv2d):
        plain = module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
        return module if plain else "unknown"
    if isinstance(module, nn.LeakyReLU):
        return _leaky(module.negative_slope)
    kind = type(module) if module else node.target
    if kind in (functional.leaky_relu, "leaky_relu"):
        return _leaky(node.kwargs.get("negative_slope", node.args[1] if len(node.args) > 1 else 0.01))
    return next((layer for layer, kinds in _LAYERS if kind in kinds), "unknown")


def _leaky(slope: Any) -> Any:
    if not isinstance(slope, int | float) or slope < 0:
        return "unknown"
    return partial(inverse_leaky_relu, float(slope)) if slope else inverse_relu
