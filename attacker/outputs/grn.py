"""`grn`: label holder and coordinator train a generator of the other parties' columns that the model's answers fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import mse_loss, relu

from attacker.interface import Attack, AttackPlugin, Lack, Progress, Recovery, RefusalError, Setting, attacks
from vfl.device import one_thread
from vfl.errors import UserError
from vfl.models.whole import WholeModel, first_model
from vfl.observation import CoalitionObservation, LabelHolderObservation, ModelTensors, Observation
from vfl.partition import Box
from vfl.seats import SeatKind
from vfl.seeds import seeded

NAME = "grn"
DRAWS = 8
"""The estimate is the mean of what the generator makes of so many draws."""


@attacks.register(NAME)
class GRN(AttackPlugin):
    """Generative regression network (Luo et al. 2021), on tables: label holder and coordinator, who has all parameters.

    A generator makes the others' columns out of the label holder's own and random numbers, such that the model says of
    them what it said of the true ones. It learns from all samples together what the columns have to do with each other.
    """

    seats: ClassVar[tuple[frozenset[SeatKind], ...]] = (frozenset({"coordinator", "label_holder"}),)
    weighs: ClassVar[bool] = True
    fits: Literal["confidences", "outputs"] = Field(
        "confidences", description="what must fit: the model's probabilities, as in the paper, or the workers' outputs"
    )
    hidden: tuple[int, ...] = Field((200, 100), description="units of the generator's hidden layers")
    epochs: int = Field(60, ge=1, description="of training, over every sample's last round")
    rate: float = Field(0.003, gt=0, description="the learning rate (Adam)")
    spread: float = Field(
        1.0, ge=0, description="weight of what keeps a column's variance at 1, that of scaled columns"
    )

    def start(self, setting: Setting) -> Attack:
        """Begin, if these are tables of which the label holder has columns."""
        holder = next(seat.worker for seat in setting.seats if seat.kind == "label_holder")
        if len(setting.boxes[0].sample_shape) != 1:
            raise RefusalError(NAME, Lack("a table", f"samples have the shape {setting.boxes[0].sample_shape}"))
        if holder is None or not setting.topology.holds_features(holder):
            raise RefusalError(NAME, Lack("columns of the label holder's own", "it has none"))
        return _Generating(self, setting, holder)


@dataclass(frozen=True)
class _Round:
    indices: Tensor
    parameters: ModelTensors
    outputs: tuple[Tensor, ...]


class _Generating:
    def __init__(self, options: GRN, setting: Setting, holder: int) -> None:
        self._options, self._setting, self._holder = options, setting, holder
        self._rounds: list[_Round] = []

    def observe(self, observation: CoalitionObservation) -> None:
        coordinator = next(part for part in observation.parts if isinstance(part, Observation))
        holder = next(part for part in observation.parts if isinstance(part, LabelHolderObservation))
        self._rounds.append(_Round(holder.indices, coordinator.parameters, holder.outputs))

    def recover(self, progress: Progress) -> Recovery:
        if not self._rounds:
            raise UserError("the label holder has seen no output yet: it takes one round at the least")
        setting, options = self._setting, self._options
        own = setting.held.slices[self._holder].float()
        with seeded(setting.seed, NAME), one_thread():
            made, misfit = self._generate(own, progress)
        seen = torch.zeros(setting.samples, dtype=torch.bool)
        for one in self._rounds:
            seen[one.indices] = True
        slices = [
            own if worker == self._holder else torch.where(seen.unsqueeze(1), made[worker], torch.nan)
            for worker in range(len(setting.boxes))
        ]
        note = f"The generated columns leave {misfit:.1%} of the variance of the {options.fits} unexplained."
        used = ("indices", "parameters", "outputs", "own slice", "columns at mean 0 and deviation 1")
        return Recovery(slices=tuple(slices), used=used, notes=(note,))

    def _generate(self, own: Tensor, progress: Progress) -> tuple[list[Tensor], float]:
        """Train the generator; return what it makes of all samples, and what that leaves unexplained."""
        options, boxes = self._options, self._setting.boxes
        others = [box for worker, box in enumerate(boxes) if worker != self._holder]
        noise = sum(box.shape[0] for box in others)
        generator = _layers([own.shape[1] + noise, *options.hidden, noise])
        optimiser = torch.optim.Adam(generator.parameters(), lr=options.rate)
        model, last = first_model(self._setting), self._last_rounds()
        if not last:
            raise UserError(f"attack.name: {NAME} takes batches of two samples at the least: it compares them")
        errors: list[float] = []
        for epoch in range(options.epochs):
            progress("training the generator", epoch, options.epochs)
            errors.clear()
            for place in torch.randperm(len(last)).tolist():
                one = last[place]
                made = generator(torch.cat([own[one.indices], torch.randn(len(one.indices), noise)], dim=1))
                error = self._misfit(model, one, _split(made, others))
                wide = relu(made.var(0, unbiased=False) - 1).mean() + made.mean(0).square().mean()
                optimiser.zero_grad()
                (error + options.spread * wide).backward()
                optimiser.step()
                errors.append(float(error.detach()))
        with torch.no_grad():
            drawn = [generator(torch.cat([own, torch.randn(len(own), noise)], dim=1)) for _ in range(DRAWS)]
        found = iter(_split(torch.stack(drawn).mean(0), others))
        slices = [own if worker == self._holder else next(found) for worker in range(len(boxes))]
        return slices, sum(errors) / len(errors)

    def _last_rounds(self) -> list[_Round]:
        """Return the last round of every sample: rounds with those of their samples that are in no later one."""
        done, found = torch.zeros(self._setting.samples, dtype=torch.bool), []
        for one in reversed(self._rounds):
            here = ~done[one.indices]
            done[one.indices] = True
            if int(here.sum()) > 1:
                outputs = tuple(output[here] for output in one.outputs)
                found.append(_Round(one.indices[here], one.parameters, outputs))
        return found

    def _misfit(self, model: WholeModel, one: _Round, made: Sequence[Tensor]) -> Tensor:
        """Return how far what the model says of generated columns is from what it said, beside the variance of that."""
        columns, said = iter(made), []
        for worker, bottom in enumerate(model.bottoms):
            if worker == self._holder:
                said.append(one.outputs[worker])
            else:
                said.append(functional_call(bottom, dict(one.parameters.bottoms[worker]), (next(columns),)))
        if self._options.fits == "outputs":
            pairs = [(found, one.outputs[w]) for w, found in enumerate(said) if w != self._holder]
        else:
            top = dict(one.parameters.top)
            each = (torch.cat(list(outputs), dim=1) for outputs in (said, one.outputs))
            found, truth = (torch.softmax(functional_call(model.top, top, (z,)), dim=1) for z in each)
            pairs = [(found, truth)]
        return sum(
            (mse_loss(a, b) / b.var(0, unbiased=False).mean().clamp(min=1e-12) for a, b in pairs), torch.zeros(())
        )


def _layers(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for into, out in pairwise(widths):
        layers += [nn.Linear(into, out), nn.LayerNorm(out), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


def _split(columns: Tensor, boxes: Sequence[Box]) -> list[Tensor]:
    return list(columns.split([box.shape[0] for box in boxes], dim=1))
