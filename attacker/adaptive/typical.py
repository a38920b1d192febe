"""What the known model makes of made-up data: in which directions v usually lies, and whether h is ever negative.

A few directions of the outputs hold most of every v. Keeping those of a weight gradient, and not random ones, loses
little of the signal and most of the noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from attacker.interface import Setting
from vfl.models.layers import given
from vfl.partition import Shape
from vfl.seeds import generator

MADE_UP = 512
"""Samples that are made up: enough to tell the leading directions of some hundred outputs."""


@dataclass(frozen=True)
class Typical:
    """One worker's made-up samples at the attacked layer."""

    v: Tensor
    """(made up, outputs)."""
    non_negative: bool
    """Whether what flows into the layer never is below zero."""

    def leading(self, count: int) -> Tensor:
        """Return the orthonormal directions (count, outputs) that hold most of v."""
        if count >= self.v.shape[1]:
            return torch.eye(self.v.shape[1], dtype=torch.float64)
        leading: Tensor = torch.linalg.eigh(self.v.T @ self.v).eigenvectors[:, -count:].T.flip(0).contiguous()
        return leading

    def strongest(self, count: int) -> Tensor:
        """Return the outputs (count,) at which v is largest: single ones, for entries must stay entries."""
        return self.v.square().sum(0).topk(min(count, self.v.shape[1])).indices.sort().values


def typical(setting: Setting, bottoms: Sequence[nn.Module], top: nn.Module, layers: Sequence[str]) -> list[Typical]:
    """Run made-up samples with made-up labels through the models and back."""
    caught: list[tuple[Tensor, Tensor]] = []

    def catch(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()  # what lies before the layer needs no gradient
        caught.append((given(inputs, named).detach(), leaf))
        return leaf

    z = []
    for worker, (bottom, name, box) in enumerate(zip(bottoms, layers, setting.boxes, strict=True)):
        with bottom.get_submodule(name).register_forward_hook(catch, with_kwargs=True):
            z.append(bottom(_made_up(box.shape, setting.seed, worker)))
    labels = torch.arange(MADE_UP) % setting.classes
    loss = cross_entropy(top(torch.cat(z, dim=1)), labels, reduction="sum")
    gradients = torch.autograd.grad(loss, [output for _, output in caught])
    return [Typical(v.double(), bool((h >= 0).all())) for v, (h, _) in zip(gradients, caught, strict=True)]


def _made_up(shape: Shape, seed: int, worker: int) -> Tensor:
    """Return smooth random pictures, or rows of standardised numbers."""
    random = generator(seed, "made up", worker)
    if len(shape) != 3:
        return torch.randn(MADE_UP, *shape, generator=random)
    coarse = torch.rand(MADE_UP, shape[0], 4, 4, generator=random)
    return interpolate(coarse, size=shape[1:], mode="bilinear", align_corners=False)
