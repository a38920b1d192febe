"""What lies before a layer, in words: the operations that a sample goes through on its way there."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from vfl.models.layers import representation
from vfl.models.modes import evaluating
from vfl.partition import Shape

WORDS = {
    "conv1d": "convolution", "conv2d": "convolution", "conv3d": "convolution", "linear": "dense layers",
    "max_pool1d": "max-pooling", "max_pool2d": "max-pooling", "adaptive_max_pool2d": "max-pooling",
    "avg_pool1d": "average pooling", "avg_pool2d": "average pooling", "adaptive_avg_pool2d": "average pooling",
    "mean": "a mean", "batch_norm": "batch norm", "layer_norm": "layer norm", "group_norm": "group norm",
    "instance_norm": "instance norm", "relu": "ReLU", "relu_": "ReLU", "leaky_relu": "leaky ReLU", "gelu": "GELU",
    "silu": "SiLU", "tanh": "tanh", "sigmoid": "sigmoid", "softmax": "softmax", "embedding": "an embedding",
    "scaled_dot_product_attention": "attention", "multi_head_attention_forward": "attention",
}  # fmt: skip
"""Operations that matter to whoever wants to go back through them, by the names of torch's functions."""


def stem(model: nn.Module, layer: str, shape: Shape) -> tuple[str, ...]:
    """Return the kinds of operations before a layer, each once, in the order of the forward pass."""
    with torch.no_grad(), evaluating(model), _Watching() as watching:
        representation(model, layer, torch.full((1, *shape), 0.5).to(next(model.parameters())))
    return tuple(dict.fromkeys(watching.seen))


class _Watching(TorchFunctionMode):
    """Takes down what is called while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note a function that has a word of its own, and call it."""
        word = WORDS.get(getattr(func, "__name__", ""))
        if word:
            self.seen.append(word)
        return func(*args, **(kwargs or {}))
