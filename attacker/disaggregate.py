"""What an attack works on: the batches of one epoch, or (`disaggregate`) each sample's own gradient, by least squares.

With frozen parameters the gradient of a batch is the mean of its samples' own, the same ones in every round. So the
pseudo-inverse of the matrix of batches (vfl/maths/least_squares.py) takes the gradients of all layers apart, and an
attack that fails on batches faces single samples instead. It takes about as many epochs as a batch has samples.

Memory stays bounded: rounds go to a temporary file as float32, a row each, and so do the samples' gradients that are
computed from them, some columns at a time in float64. Disk space is (rounds kept + samples) x the model's size.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from attacker.interface import Progress, silent
from attacker.least_squares import undetermined
from attacker.refusal import FROZEN, RefusalError
from attacker.steady import unsteady
from vfl.errors import UserError
from vfl.maths.least_squares import pseudo_inverse
from vfl.observation import ModelTensors, Observation, Setting, Tensors

Shapes = Sequence[Sequence[tuple[str, torch.Size]]]
COLUMNS_BYTES = 128 << 20
"""Memory for the columns that are taken apart together."""


@dataclass(frozen=True)
class Problem:
    """What is to be inverted: the gradients of these samples' mean loss at these parameters."""

    indices: Tensor
    """The numbers of the samples; one when the gradients were taken apart."""
    parameters: ModelTensors
    gradients: ModelTensors


class Problems(Sequence[Problem]):
    """Problems that are read from the temporary file when asked for."""

    def __init__(
        self, indices: Sequence[Tensor], parameters: "_Shelf", versions: Sequence[int], gradients: "_Shelf"
    ) -> None:
        self._indices, self._parameters, self._versions, self._gradients = indices, parameters, versions, gradients

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._indices)

    @overload
    def __getitem__(self, number: int) -> Problem: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Problem]: ...
    def __getitem__(self, number: int | slice) -> Problem | Sequence[Problem]:
        """Return one; its tensors are the caller's own."""
        if isinstance(number, slice):
            return [self[at] for at in range(*number.indices(len(self)))]
        at = range(len(self))[number]
        return Problem(self._indices[at], self._parameters.get(self._versions[at]), self._gradients.get(at))


class Collector:
    """Keeps of the rounds what the problems need."""

    def __init__(
        self,
        setting: Setting,
        disaggregate: bool = False,
        rounds: int | None = None,
        *,
        attack: str,
        samples: int | None = None,
    ) -> None:
        """Keep the rounds that show samples for the first time, at most `rounds`; to disaggregate, all rounds.

        `samples` bounds how many samples are taken apart, the first ones. `attack` is the name in error messages.
        """
        self._setting, self._disaggregate, self._attack = setting, disaggregate, attack
        self._most = None if disaggregate else rounds
        self._samples = setting.samples if samples is None else min(samples, setting.samples)
        if disaggregate:
            lack = FROZEN if not setting.frozen else next(iter(unsteady(setting)), None) or undetermined(setting)
            if lack:
                raise RefusalError(f"{attack} with disaggregate", lack)
        self._indices: list[Tensor] = []
        self.rounds: list[int] = []
        """The rounds that are kept."""
        self._seen = torch.zeros(setting.samples, dtype=torch.bool)
        self._versions: list[int] = []
        self._last_version = -1
        self._parameters: _Shelf | None = None
        self._gradients: _Shelf | None = None
        self._apart: tuple[int, _Shelf] | None = None

    def observe(self, observation: Observation) -> None:
        """Keep a copy of the round, if it is one to keep."""
        new = not bool(self._seen[observation.indices].all())
        if not self._disaggregate and (not new or len(self._indices) == self._most):
            return
        if self._parameters is None or self._gradients is None:
            self._parameters, self._gradients = _Shelf.like(observation.parameters), _Shelf.like(observation.gradients)
        if observation.version != self._last_version:
            if self._disaggregate and self._indices:
                changed = replace(FROZEN, found=f"they changed before round {observation.round}")
                raise RefusalError(f"{self._attack} with disaggregate", changed)
            self._parameters.put(observation.parameters)
            self._last_version = observation.version
        self._gradients.put(observation.gradients)
        self._versions.append(len(self._parameters) - 1)
        self._indices.append(observation.indices.clone())
        self.rounds.append(observation.round)
        self._seen[observation.indices] = True

    def problems(self, progress: Progress = silent) -> Problems:
        """Return the kept rounds, or every sample's own gradient."""
        if self._parameters is None or self._gradients is None:
            raise UserError(f"attack {self._attack}: no round was observed")
        if not self._disaggregate:
            return Problems(list(self._indices), self._parameters, list(self._versions), self._gradients)
        if self._apart is None or self._apart[0] != len(self._indices):
            self._apart = (len(self._indices), self._take_apart(self._gradients, progress))
        samples = [torch.tensor([n]) for n in range(self._samples)]
        return Problems(samples, self._parameters, [0] * len(samples), self._apart[1])

    def _take_apart(self, gradients: "_Shelf", progress: Progress) -> "_Shelf":
        inverse, rank = pseudo_inverse(self._indices, self._setting.samples)
        if rank < self._setting.samples:
            raise UserError(
                f"attack {self._attack} with disaggregate: the {len(self._indices)} rounds determine {rank} of "
                f"{self._setting.samples} samples; more rounds are needed"
            )
        return gradients.times(inverse[: self._samples], progress)


class _Shelf:
    """Rows of float32 in a temporary file, each the tensors of all models one after the other."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._width = sum(shape.numel() for part in shapes for _, shape in part)
        self._file = tempfile.TemporaryFile(prefix="cafe-gradients-")  # noqa: SIM115 - lives as long as the shelf
        self._count = 0

    @classmethod
    def like(cls, tensors: ModelTensors) -> "_Shelf":
        """Return an empty shelf for such tensors."""
        return cls(
            [[(name, tensor.shape) for name, tensor in part.items()] for part in (*tensors.bottoms, tensors.top)]
        )

    def __len__(self) -> int:
        return self._count

    def put(self, tensors: ModelTensors) -> None:
        """Add a row."""
        self._file.seek(4 * self._count * self._width)
        with _enough_room():
            for part, shapes in zip((*tensors.bottoms, tensors.top), self._shapes, strict=True):
                for name, _ in shapes:
                    self._file.write(part[name].detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
            self._file.flush()
        self._count += 1

    def get(self, number: int) -> ModelTensors:
        """Read a row."""
        row = torch.from_numpy(np.array(self._rows()[number]))
        pieces = iter(row.split([shape.numel() for part in self._shapes for _, shape in part]))
        parts: list[Tensors] = [{name: next(pieces).reshape(shape) for name, shape in part} for part in self._shapes]
        return ModelTensors(tuple(parts[:-1]), parts[-1])

    def times(self, matrix: Tensor, progress: Progress) -> "_Shelf":
        """Return `matrix` (new rows, rows) times the rows, added up in float64."""
        product = _Shelf(self._shapes)
        product._count = len(matrix)
        with _enough_room():
            _reserve(product._file.fileno(), 4 * product._count * product._width)
        step = max(1, COLUMNS_BYTES // (8 * (self._count + product._count)))
        factor = matrix.double().numpy()
        for start in range(0, self._width, step):
            # Mapped anew each time, so that pages that were read do not pile up
            columns = self._rows()[:, start : start + step].astype(np.float64)
            product._rows("r+")[:, start : start + step] = factor @ columns
            progress("taking gradients apart", min(start + step, self._width), self._width)
        return product

    def _rows(self, mode: Literal["r", "r+"] = "r") -> np.memmap:
        return np.memmap(self._file, np.float32, mode, shape=(self._count, self._width))


@contextmanager
def _enough_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the gradients do not fit into a temporary file in {tempfile.gettempdir()} ({error.strerror}); name a "
            "folder with more room in the environment variable TMPDIR"
        ) from None


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)  # a full disk is an error here, not a crash when mapped memory is written
    else:
        os.truncate(file, size)
