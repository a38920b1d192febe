"""Somebody's network as a description: what torch.fx sees of it, if that is a chain of known layers."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from vfl.errors import UserError
from vfl.models.described import KINDS

_BY_KIND = {made: (kind, options) for kind, (made, options) in KINDS.items()}
_FUNCTIONS: dict[Callable[..., Any] | str, str] = {
    functional.relu: "ReLU", torch.relu: "ReLU", "relu": "ReLU", functional.gelu: "GELU", functional.silu: "SiLU",
    functional.elu: "ELU", functional.leaky_relu: "LeakyReLU", torch.tanh: "Tanh", "tanh": "Tanh",
    functional.tanh: "Tanh", torch.sigmoid: "Sigmoid", functional.sigmoid: "Sigmoid", "sigmoid": "Sigmoid",
    functional.dropout: "Dropout",
}  # fmt: skip
"""Functions and methods of tensors that are layers without parameters, with their default options."""
_OTHERWISE = "name a function that builds it instead: model={'name': 'my_file:function'}"


def describe(network: nn.Module, called: str) -> list[dict[str, Any]]:
    """Return the layers of a network in their order, or say why it cannot be described; `called` names it."""
    frozen = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise UserError(f"{called}: {frozen[0]} has requires_grad=False, so no gradient of it is there; {_OTHERWISE}")
    kept = [name for name, _ in network.named_buffers()]
    if kept:
        raise UserError(f"{called}: {kept[0]} is kept beside the parameters (batch norm?), and not seen; {_OTHERWISE}")
    if type(network) in _BY_KIND:
        return [_known("", network, called)]
    try:
        graph = _Tracer().trace(network)
    except Exception as error:  # whatever a forward does with a stand-in for its input
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{called}: torch.fx cannot follow its forward ({reason}); {_OTHERWISE}") from None
    layers: list[dict[str, Any]] = []
    before: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder" and before is None:
            before = node
        elif node.op == "output" and node.args[0] is before:
            return layers
        elif node.op in ("call_module", "call_function", "call_method") and _follows(node, before):
            layers.append(_layer(node, network, called))
            before = node
        else:
            raise UserError(f"{called}: it is not a chain of layers ({node.op} {node.target}); {_OTHERWISE}")
    raise UserError(f"{called}: its forward returns no output of its layers; {_OTHERWISE}")


class _Tracer(fx.Tracer):
    """Sees layers that a description can have as one step, and the inside of all others."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return type(m) in _BY_KIND


def _follows(node: fx.Node, before: fx.Node | None) -> bool:
    """Tell whether a step takes what the one before it made, and nothing else that was computed."""
    return bool(node.args) and node.args[0] is before and node.all_input_nodes == [before]


def _layer(node: fx.Node, network: nn.Module, called: str) -> dict[str, Any]:
    if node.op == "call_module":
        return _known(str(node.target), network.get_submodule(str(node.target)), called)
    if node.target in (torch.flatten, "flatten") and (*node.args[1:], *node.kwargs.values()) == (1,):
        return {"kind": "Flatten"}
    kind = _FUNCTIONS.get(node.target)
    options = {name: value for name, value in node.kwargs.items() if name not in ("inplace", "training", "approximate")}
    if kind is None or node.args[1:] or not options.keys() <= set(KINDS[kind][1]) or _is_exotic(node):
        raise UserError(f"{called}: {node.target} is no layer that a description can have; {_OTHERWISE}")
    return {"kind": kind, **({"options": options} if options else {})}


def _is_exotic(node: fx.Node) -> bool:
    return node.kwargs.get("approximate", "none") != "none"


def _known(name: str, layer: nn.Module, called: str) -> dict[str, Any]:
    kind, names = _BY_KIND[type(layer)]
    unusual = {
        "groups": 1, "padding_mode": "zeros", "elementwise_affine": True, "affine": True, "ceil_mode": False,
        "count_include_pad": True, "start_dim": 1, "end_dim": -1, "approximate": "none", "return_indices": False,
        "divisor_override": None,
    }  # fmt: skip
    for option, usual in unusual.items():
        found = getattr(layer, option, usual)
        if found != usual:
            raise UserError(f"{called}: {name} has {option}={found}, which no description has; {_OTHERWISE}")
    if kind == "MaxPool2d" and operator.ne(layer.dilation, 1):
        raise UserError(f"{called}: {name} has a dilation, which no description has; {_OTHERWISE}")
    options = {option: getattr(layer, option) for option in names if option != "bias"}
    if "bias" in names:
        options["bias"] = layer.bias is not None
    made = {option: list(value) if isinstance(value, tuple) else value for option, value in options.items()}
    return {"kind": kind, **({"name": name} if name else {}), **({"options": made} if made else {})}
