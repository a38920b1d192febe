"""The known network run with recovered samples: what flows into the attacked layers, what comes back, all gradients."""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vfl.models.layers import given, representation
from vfl.models.whole import first_model
from vfl.observation import ModelTensors, Setting

CHUNK = 256
"""Samples that are run at once."""
SMALL = 128
"""Numbers in a slice up to which all is in float64; images are in float32 as at the workers, four times as fast."""


@dataclass(frozen=True)
class Pass:
    """Samples run forward and back at one round's parameters."""

    h: tuple[Tensor, ...]
    """For each worker (samples, inputs): what flows into its attacked layer."""
    v: tuple[Tensor, ...]
    """For each worker (samples, outputs): the gradient of the sample's own loss at the layer's output."""
    z: tuple[Tensor, ...]
    """For each worker (samples, width): what it sends to the label holder."""
    u: Tensor
    """(samples, logits): the gradient of the sample's own loss by its logits."""

    def take(self, rows: Tensor) -> "Pass":
        """Return some of the samples."""
        h, v, z = (tuple(part[rows] for part in parts) for parts in (self.h, self.v, self.z))
        return Pass(h, v, z, self.u[rows])

    def scaled(self, times: float) -> "Pass":
        """Return the same samples with all that comes back so many times as large."""
        return self if times == 1 else Pass(self.h, tuple(times * v for v in self.v), self.z, times * self.u)


class Network:
    """The whole model at the parameters that were loaded last."""

    def __init__(self, setting: Setting, layers: Sequence[str]) -> None:
        small = all(math.prod(box.shape) <= SMALL for box in setting.boxes)
        self.dtype = torch.float64 if small else torch.float32
        whole = first_model(setting).eval().requires_grad_(False)
        whole = whole.double() if small else whole
        # copies: each worker has gradients of its own, also of parameters that all of them share
        self.bottoms, self.top = [copy.deepcopy(bottom) for bottom in whole.bottoms], whole.top
        self._layers, self.loss = layers, setting.loss

    def load(self, parameters: ModelTensors) -> None:
        """Take over a round's parameters."""
        pairs = zip([*self.bottoms, self.top], [*parameters.bottoms, parameters.top], strict=True)
        for module, tensors in pairs:
            module.load_state_dict(dict(tensors), strict=False)

    def run(self, slices: Sequence[Tensor], labels: Tensor) -> Pass:
        """Run samples forward and back, as far as the attacked layers."""
        chunks = [
            self._run([part[rows].to(self.dtype) for part in slices], labels[rows])
            for rows in torch.arange(len(labels)).split(CHUNK)
        ]
        h, v, z = (
            tuple(torch.cat(own) for own in zip(*(getattr(one, name) for one in chunks), strict=True)) for name in "hvz"
        )
        return Pass(h, v, z, torch.cat([one.u for one in chunks]))

    def _run(self, slices: Sequence[Tensor], labels: Tensor) -> Pass:
        with ExitStack() as stack, torch.enable_grad():
            caught = [
                stack.enter_context(_caught(bottom, name))
                for bottom, name in zip(self.bottoms, self._layers, strict=True)
            ]
            z = [bottom(part.clone()).to(self.dtype) for bottom, part in zip(self.bottoms, slices, strict=True)]
            logits = self.top(torch.cat(z, dim=1))
            loss = self.loss.total(logits, labels)
            v = torch.autograd.grad(loss, [one.output for one in caught], materialize_grads=True)
        u = self.loss.u(logits.detach(), labels)
        return Pass(tuple(one.input for one in caught), v, tuple(part.detach() for part in z), u)

    def gradients(self, slices: Sequence[Tensor], labels: Tensor, divisor: float) -> list[Tensor]:
        """Return the gradient of these samples' part of a batch's mean loss: each worker's in a row, the top's last.

        A row has the parameters in the order of their names.
        """
        modules = [*self.bottoms, self.top]
        named = [dict(sorted(module.named_parameters())) for module in modules]
        for module in modules:
            module.requires_grad_(True)
        with torch.enable_grad():
            z = [bottom(part.to(self.dtype)).to(self.dtype) for bottom, part in zip(self.bottoms, slices, strict=True)]
            loss = self.loss.total(self.top(torch.cat(z, dim=1)), labels) / divisor
            flat = [parameter for own in named for parameter in own.values()]
            found = iter(torch.autograd.grad(loss, flat, materialize_grads=True))
        for module in modules:
            module.requires_grad_(False)
        return [torch.cat([loss.new_zeros(0), *(next(found).flatten() for _ in own)]).double() for own in named]

    def inputs(self, worker: int, x: Tensor) -> Tensor:
        """Return what flows into a worker's layer for its slices, differentiable."""
        return representation(self.bottoms[worker], self._layers[worker], x)


@dataclass
class _Caught:
    """What a hook saw of a layer."""

    input: Tensor
    output: Tensor


@contextmanager
def _caught(model: nn.Module, name: str) -> Iterator[_Caught]:
    """Catch a layer's input, and cut the graph at its output: nothing flows back beyond it."""
    caught = _Caught(torch.empty(0), torch.empty(0))

    def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> Tensor:
        caught.input = given(inputs, named).detach().flatten(1)
        caught.output = output.detach().requires_grad_()
        return caught.output.clone()  # a ReLU in place must not change what is differentiated by

    handle = model.get_submodule(name).register_forward_hook(hook, with_kwargs=True)
    try:
        yield caught
    finally:
        handle.remove()
