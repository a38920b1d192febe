"""From rounds as they came to a stack, and whether models have the form that it stands for."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attacker.exact.all_rounds.stack import Stack
from vfl.maths.loss import Loss
from vfl.models.layers import FullyConnected, fully_connected
from vfl.models.whole import WholeModel
from vfl.observation import Observation, Tensors

ROWS = 8
"""Rows of chance that a model is run on, to see that it is what it is taken for."""


def stacked(
    rounds: Sequence[Observation], layers: Sequence[FullyConnected], model: WholeModel, *, loss: Loss, batch: int
) -> Stack:
    """Stack the rounds of a model that has the form of `second_of` and `is_affine`."""
    indices, present = torch.zeros(len(rounds), batch, dtype=torch.long), torch.zeros(len(rounds), batch)
    rests, offsets, seen = [], [], []
    for at, one in enumerate(rounds):
        count = len(one.indices)
        indices[at, :count], present[at, :count] = one.indices, 1.0
        rest, offset = _rest(model, one, layers)
        rests.append(rest)
        offsets.append(offset)
        seen.append([_whole(own, layer) * count for own, layer in zip(one.gradients.bottoms, layers, strict=True)])
    numbers = range(len(layers))

    def first(name: str) -> tuple[Tensor, ...]:
        return tuple(
            torch.stack([one.parameters.bottoms[m][f"{layers[m].name}.{name}"].detach().cpu() for one in rounds])
            for m in numbers
        )

    together = tuple(torch.stack([own[m] for own in seen]) for m in numbers)
    return Stack(
        indices, present, first("weight"), first("bias"), torch.stack(rests), torch.stack(offsets), together, loss
    )


def _whole(gradients: Tensors, layer: FullyConnected) -> Tensor:
    weight, bias = (gradients[f"{layer.name}.{name}"].detach().cpu() for name in ("weight", "bias"))
    return torch.cat([weight, bias[:, None]], dim=1)


def second_of(bottom: nn.Module, first: FullyConnected, shape: tuple[int, ...]) -> FullyConnected | None:
    """Return the layer that follows the first after a ReLU, and is the last; None where the model has another form."""
    layers = fully_connected(bottom, shape)
    if len(layers) != 2 or not first.sees_data or not first.bias or layers[1].inputs != first.outputs:
        return None
    x = torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(0))
    one, two = (bottom.get_submodule(layer.name) for layer in layers)
    with torch.no_grad():
        same = torch.allclose(bottom(x), two(one(x.flatten(1)).relu()), atol=1e-5)
    return layers[1] if same else None


def is_affine(top: nn.Module, width: int) -> bool:
    """Tell whether a top model is."""
    x = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        halves = (top(x[: ROWS // 2]) + top(x[ROWS // 2 :])) / 2
        return torch.allclose(top((x[: ROWS // 2] + x[ROWS // 2 :]) / 2), halves, atol=1e-5)


def _rest(model: WholeModel, one: Observation, layers: Sequence[FullyConnected]) -> tuple[Tensor, Tensor]:
    """Return what makes logits of the workers' first units in a round, as a matrix and an offset."""
    width = sum(model.widths)
    with torch.no_grad():
        at = functional_call(
            model.top, dict(one.parameters.top), (torch.cat([torch.zeros(1, width), torch.eye(width)]),)
        )
    matrix, offset = (at[1:] - at[0]).T, at[0]
    parts = []
    for m, (own, layer) in enumerate(zip(matrix.split(model.widths, dim=1), layers, strict=True)):
        bottom, parameters = model.bottoms[m], one.parameters.bottoms[m]
        second = fully_connected(bottom, (layer.inputs,))[1]
        parts.append(own @ parameters[f"{second.name}.weight"])
        if second.bias:
            offset = offset + own @ parameters[f"{second.name}.bias"]
    return torch.cat(parts, dim=1), offset
