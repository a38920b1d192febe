"""The rounds of a transcript that a worker or the label holder wrote: what is in their files, and what must be."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from vfl.config import ModelSection
from vfl.files.tensor_file import DamagedError
from vfl.limits import plain
from vfl.maths.tensors import all_finite
from vfl.models import build_bottom, build_top
from vfl.observation import (
    BOTTOM,
    TOP,
    LabelHolderObservation,
    Setting,
    Tensors,
    WorkerObservation,
    with_prefix,
    without_prefix,
)

Made = TypeVar("Made", bound=torch.nn.Module)
Parties = WorkerObservation | LabelHolderObservation


def party_parameters(observation: Parties) -> dict[str, Tensor]:
    """Return the parameters that a party has, under their names in a file."""
    top = observation.top if isinstance(observation, LabelHolderObservation) else {}
    return with_prefix(BOTTOM, observation.parameters) | with_prefix(TOP, top)


def party_round(observation: Parties) -> dict[str, Tensor]:
    """Return all else of a round, under its names in a file."""
    if isinstance(observation, WorkerObservation):
        return {"output": observation.output, "answer": observation.answer}
    numbered = {"output": observation.outputs, "answer": observation.answers}
    parts = {f"{what}.{worker}": one for what, each in numbered.items() for worker, one in enumerate(each)}
    return parts | with_prefix(TOP, observation.top_gradients)


@dataclass(frozen=True)
class PartyFiles:
    """Puts together the observations of one party; what was kept must fit the party's models and outputs."""

    setting: Setting
    checked: bool

    def expected(self) -> Tensors:
        """Return tensors like all that its files may hold, in one round or as parameters."""
        setting = self.setting
        each = {
            str(worker): torch.empty(setting.batch_size, width, device="meta")
            for worker, width in enumerate(setting.widths)
        }
        return {**self._models, **with_prefix("output.", each), **with_prefix("answer.", each)}

    def check_parameters(self, path: Path, found: Tensors) -> None:
        """Make sure that parameters are those of the party's own models."""
        if self.checked:
            check_tensors(path, found, self._models)

    def observation(
        self, path: Path, found: Tensors, parameters: Tensors, *, indices: Tensor, **numbers: int
    ) -> Parties:
        """Return a round; `numbers` are its own and the version of the parameters."""
        if self.checked:
            check_tensors(path, found, self._round(indices, parameters))
        bottom = without_prefix(BOTTOM, parameters)
        if self.setting.seats[0].kind == "worker":
            return WorkerObservation(
                indices=indices, parameters=bottom, output=found["output"], answer=found["answer"], **numbers
            )
        workers = range(len(self.setting.widths))
        return LabelHolderObservation(
            indices=indices,
            parameters=bottom,
            top=without_prefix(TOP, parameters),
            outputs=tuple(found[f"output.{worker}"] for worker in workers),
            answers=tuple(found[f"answer.{worker}"] for worker in workers),
            top_gradients=without_prefix(TOP, found),
            **numbers,
        )

    @cached_property
    def _models(self) -> Tensors:
        """Return tensors with the names, shapes and types of the party's parameters."""
        setting, seat = self.setting, self.setting.seats[0]
        worker = seat.worker or 0
        holds = setting.topology.holds_features(worker)
        build: list[tuple[str, Callable[[], torch.nn.Module]]] = []
        if holds:
            shape = setting.boxes[worker].shape
            build.append((BOTTOM, lambda: build_bottom(setting.model, shape, setting.seed, worker)))
        if seat.kind == "label_holder":
            build.append((TOP, lambda: build_top(setting.model, setting.widths, setting.outputs, setting.seed)))
        made = ((prefix, without_memory(setting, make).named_parameters()) for prefix, make in build)
        return {name: one for prefix, named in made for name, one in with_prefix(prefix, dict(named)).items()}

    def _round(self, indices: Tensor, parameters: Tensors) -> Tensors:
        """Return tensors as they must be in a round's file."""
        widths, seat = self.setting.widths, self.setting.seats[0]

        def wide(worker: int) -> Tensor:
            return torch.empty(len(indices), widths[worker], device="meta")

        if seat.kind == "worker":
            return {name: wide(seat.worker or 0) for name in ("output", "answer")}
        each = {f"{name}.{worker}": wide(worker) for name in ("output", "answer") for worker in range(len(widths))}
        return each | with_prefix(TOP, without_prefix(TOP, parameters))


def check_tensors(path: Path, found: Tensors, expected: Tensors) -> None:
    """Make sure that a file holds tensors of these names, shapes and types, all finite."""
    for name in {**expected, **found}:
        here, there = (described(side.get(name)) for side in (found, expected))
        if here != there:
            raise DamagedError(f"{path} has for {plain(name)} {here}, the run's model {there}: is it of another run?")
        if not all_finite(found[name]):
            raise DamagedError(f"{path} has values of {plain(name)} that are not finite")


def described(tensor: Tensor | None) -> str:
    """Say what kind of tensor it is."""
    return "nothing" if tensor is None else plain(f"{tensor.dtype} of shape {tuple(tensor.shape)}")


def without_memory(setting: Setting, make: Callable[[], Made]) -> Made:
    """Build a model that takes no memory of its own, whatever a transcript says of its size."""
    try:
        with torch.device("meta"):
            return make()
    except Exception:
        section = setting.model
        parts = [section, *section.bottoms.values(), section.top] if isinstance(section, ModelSection) else [section]
        if all(part is None or part.name == "layers" for part in parts):
            raise
        return make()  # a user's own model may compute with its first values, which need memory
