"""The operations that a sample goes through before it reaches a layer, in words."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from vfl.models.layers import evaluating, like_parameters, representation
from vfl.partition import Shape

WORDS = {
    "conv1d": "convolution", "conv2d": "convolution", "conv3d": "convolution", "linear": "dense layers",
    "max_pool1d": "max-pooling", "max_pool2d": "max-pooling", "adaptive_max_pool2d": "max-pooling",
    "avg_pool1d": "average pooling", "avg_pool2d": "average pooling", "adaptive_avg_pool2d": "average pooling",
    "mean": "a mean", "batch_norm": "batch norm", "layer_norm": "layer norm", "group_norm": "group norm",
    "instance_norm": "instance norm", "relu": "ReLU", "relu_": "ReLU", "leaky_relu": "leaky ReLU", "gelu": "GELU",
    "silu": "SiLU", "tanh": "tanh", "sigmoid": "sigmoid", "softmax": "softmax", "embedding": "an embedding",
    "relu6": "clamping", "hardtanh": "clamping", "clamp": "clamping",
    "scaled_dot_product_attention": "attention", "multi_head_attention_forward": "attention",
}  # fmt: skip
"""Operations that an inversion must undo, by the names of torch's functions."""


DENSE = {"linear", "addmm", "mm", "matmul", "__matmul__", "__rmatmul__", "einsum"}
"""Functions that multiply with a matrix, whatever the module that calls them."""


def stem(model: nn.Module, layer: str, shape: Shape) -> tuple[str, ...]:
    """Return the kinds of operations before a layer, each once, in the order of the forward pass."""
    with torch.no_grad(), evaluating(model), _Recorder() as recorder:
        representation(model, layer, torch.full((1, *shape), 0.5).to(like_parameters(model)))
    return tuple(dict.fromkeys(recorder.seen))


def dense_functions(model: nn.Module, layer: str | None, shape: Shape) -> tuple[str, ...]:
    """Return the parameters that a sample is multiplied with as one row before a layer, outside of any nn.Linear.

    Without a layer the whole model counts. The gradient of such a parameter gives away as much as a layer's, but no
    module says which bias belongs to it.
    """
    known = {id(p) for module in model.modules() if isinstance(module, nn.Linear) for p in module.parameters()}
    places = {
        parameter.untyped_storage().data_ptr(): name
        for name, parameter in model.named_parameters()
        if id(parameter) not in known and parameter.dim() == 2
    }
    probe = torch.full((1, *shape), 0.5).to(like_parameters(model))
    with torch.no_grad(), evaluating(model), _Recorder() as recorder:
        model(probe) if layer is None else representation(model, layer, probe)
    found = []
    for operands in recorder.products:
        names = [places[at] for at in map(_place, operands) if at in places]
        rows = [math.prod(one.shape[:-1]) for one in operands if _place(one) not in places and one.dim() > 1]
        if names and rows == [1]:
            found.append(names[0])
    return tuple(dict.fromkeys(found))


def _place(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage: the same for a parameter and its transpose."""
    return tensor.untyped_storage().data_ptr()


class _Recorder(TorchFunctionMode):
    """Records which of torch's functions are called while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.products: list[list[torch.Tensor]] = []
        """The operands of every product with a matrix."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record a function that has a word of its own, and call it."""
        name = getattr(func, "__name__", "")
        if name in WORDS:
            self.seen.append(WORDS[name])
        if name in DENSE:
            self.products.append([one for one in (*args, *(kwargs or {}).values()) if isinstance(one, torch.Tensor)])
        return func(*args, **(kwargs or {}))
