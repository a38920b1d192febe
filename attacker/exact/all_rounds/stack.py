"""The rounds, stacked, and what a sample adds to each: a first layer, a ReLU, and an affine rest down to the logits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vfl.maths.loss import Loss
from vfl.models.layers import FullyConnected, fully_connected
from vfl.models.whole import WholeModel
from vfl.observation import Observation, Tensors

ROWS = 8
"""Rows of chance that a model is run on, to see that it is what it is taken for."""


@dataclass(frozen=True)
class Stack:
    """Rounds (rounds, …), batches filled up to one length."""

    indices: Tensor
    """(rounds, batch)."""
    present: Tensor
    """(rounds, batch): 1, or 0 for what fills up."""
    weights: tuple[Tensor, ...]
    """Of each worker's first layer (rounds, units, columns)."""
    biases: tuple[Tensor, ...]
    """(rounds, units)."""
    rest: Tensor
    """(rounds, logits, all workers' units): what makes logits of what the ReLUs leave."""
    offset: Tensor
    """(rounds, logits)."""
    seen: tuple[Tensor, ...]
    """Of each worker's first layer the sum of all samples' gradients: (rounds, units, columns and one for the bias)."""
    loss: Loss

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def sizes(self) -> Tensor:
        """Return how many samples each batch has."""
        return self.present.sum(1)

    @property
    def columns(self) -> list[int]:
        """Return how many columns each worker has."""
        return [own.shape[2] for own in self.weights]

    def part(self, rounds: slice) -> "Stack":
        """Return some of the rounds."""
        return replace(
            self,
            indices=self.indices[rounds],
            present=self.present[rounds],
            weights=tuple(own[rounds] for own in self.weights),
            biases=tuple(own[rounds] for own in self.biases),
            rest=self.rest[rounds],
            offset=self.offset[rounds],
            seen=tuple(own[rounds] for own in self.seen),
        )

    def double(self) -> "Stack":
        """Return the same in float64."""
        return replace(
            self,
            present=self.present.double(),
            weights=tuple(own.double() for own in self.weights),
            biases=tuple(own.double() for own in self.biases),
            rest=self.rest.double(),
            offset=self.offset.double(),
            seen=tuple(own.double() for own in self.seen),
        )

    def added(self, x: Tensor, chosen: Tensor, blur: float = 0.0) -> list[Tensor]:
        """Return what rows add to each worker's gradient (rounds, rows, units, columns and one).

        `x` has (rounds, rows, all columns), `chosen` 1 at each row's class (rounds, rows, classes). With `blur`, what
        they add on average if each number is off by that much, at random: it has no steps where a ReLU switches.
        """
        passed = [
            _passed(own @ weight.transpose(1, 2) + bias[:, None], weight.norm(dim=2)[:, None], blur)
            for own, weight, bias in zip(x.split(self.columns, dim=2), self.weights, self.biases, strict=True)
        ]
        logits = torch.cat([h for h, _, _ in passed], dim=2) @ self.rest.transpose(1, 2) + self.offset[:, None]
        possible = self.loss.possible_u(logits.flatten(0, 1)).unflatten(0, logits.shape[:2])
        back = ((chosen[..., None] * possible).sum(2) @ self.rest).split([own.shape[1] for own in self.biases], dim=2)
        parts = zip(x.split(self.columns, dim=2), self.weights, passed, back, strict=True)
        return [
            torch.cat([_times(own, weight, live, edge, v, blur), (v * live)[..., None]], dim=3)
            for own, weight, (_, live, edge), v in parts
        ]


def _passed(a: Tensor, norm: Tensor, blur: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the ReLU of a, how far it is live, and the density of where it switches."""
    if blur == 0:
        return a.relu(), (a > 0).to(a), None
    width = (blur * norm).clamp_min(1e-12)
    live = 0.5 * (1 + torch.erf(a / width / math.sqrt(2)))
    edge = torch.exp(-(a / width).square() / 2) / (math.sqrt(2 * math.pi) * width)
    return a * live + width.square() * edge, live, edge


def _times(x: Tensor, weight: Tensor, live: Tensor, edge: Tensor | None, v: Tensor, blur: float) -> Tensor:
    plain = (v * live)[..., None] * x[:, :, None]
    return plain if edge is None else plain + (v * edge)[..., None] * (blur**2 * weight)[:, None]


def stacked(
    rounds: Sequence[Observation], layers: Sequence[FullyConnected], model: WholeModel, loss: Loss, batch: int
) -> Stack:
    """Stack the rounds; the models are of the kind that `is_of_the_kind` finds."""
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
