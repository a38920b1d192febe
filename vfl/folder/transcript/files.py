"""The files of a transcript: one for a round, one for a version of the parameters, checked against the run they are of.

A checksum keeps out accidents, not lies: what is read from a file that was kept must also fit the run's setting.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vfl.files.tensor_file import DamagedError, read_tensors
from vfl.folder.transcript.parties import (
    PartyFiles,
    check_tensors,
    described,
    party_parameters,
    party_round,
    without_memory,
)
from vfl.models.whole import first_model
from vfl.observation import (
    BOTTOM,
    TOP,
    ModelTensors,
    Observation,
    PartyObservation,
    Setting,
    Tensors,
    averaged,
    without_prefix,
)
from vfl.seats import COORDINATOR

_HEADER = 1 << 12
"""Bytes of a file's header for a tensor, at the most, and for what else it says."""
_ROOM = 4
"""How many times what a file of the run holds another may have: it is then told what is wrong with it."""
_MANY = 1 << 53
"""More rounds, or versions of the parameters, than any run has."""


def round_name(number: int) -> str:
    """Return what a round's file is called."""
    return f"round-{number:07d}.safetensors"


def number_of(name: str) -> int:
    """Return which round a file of this name is of; 1 if its name tells none."""
    number = name.removeprefix("round-").partition(".")[0]
    return int(number) if number.isdecimal() and int(number) else 1


def parameters_name(version: int) -> str:
    """Return what the file of a version of the parameters is called."""
    return f"parameters-{version:07d}.safetensors"


class RoundReader:
    """Reads the rounds of a transcript by their numbers, and the parameters once a version."""

    def __init__(
        self,
        setting: Setting,
        find: Callable[[str], Path],
        *,
        checked: bool,
        done: Callable[[Path], None] = lambda _path: None,
    ) -> None:
        """Read files where `find` says that they are, and call `done` with each that was read.

        `checked` ones have a checksum and may be from elsewhere: they must fit the setting and the model it names.
        """
        self._setting, self._find, self._done, self._checked = setting, find, done, checked
        self._party = None if setting.seats == (COORDINATOR,) else PartyFiles(setting, checked)
        """Of the rounds that another party than the coordinator wrote."""
        self._expected = _model_shapes(setting) if checked and self._party is None else None
        self._most = self._room() if checked else None
        """The most bytes that a file may have."""
        self._hidden, self._blind = "indices" in setting.unknown, "parameters" in setting.unknown
        self._version = 0
        self._flat: Tensors = {}
        self._parameters = ModelTensors((), {})

    def read(self, number: int) -> PartyObservation:
        """Return a round, with the parameters that were in force."""
        path = self._find(round_name(number))
        tensors, about = read_tensors(path, self._checked, self._most)
        try:
            found, version = int(about["round"]), int(about["version"])
            if not (0 < found < _MANY and 0 < version < _MANY):
                raise ValueError
            if not self._hidden and "indices" not in tensors:
                raise DamagedError(f"{path} does not hold a round: it has no indices, and the run knows them")
            indices = self._made_up(about) if self._hidden else tensors.pop("indices")
        except (KeyError, ValueError):
            raise DamagedError(f"{path} does not hold a round") from None
        parameters = self._parameters_of(version)
        if self._checked:
            _check_indices(path, indices, self._setting)
        if found != number:
            raise DamagedError(f"{path} holds round {found}: was it renamed?")
        if self._party is None:
            read: PartyObservation = self._coordinators(path, number, indices, tensors=tensors, parameters=parameters)
        else:
            numbers = {"round": number, "version": version}
            read = self._party.observation(path, tensors, self._flat, indices=indices, **numbers)
        self._done(path)
        return read

    def _coordinators(
        self, path: Path, number: int, indices: Tensor, *, tensors: Tensors, parameters: ModelTensors
    ) -> Observation:
        setting, version, uploads = self._setting, self._version, _uploads(tensors, self._setting)
        if self._checked:
            _check_gradients(path, tensors, uploads, self._expected or parameters)
        if not setting.topology.is_horizontal:
            return Observation(number, indices, version, parameters, uploads[0])
        try:
            gradients = averaged(uploads, [*map(len, setting.topology.rows_of_each(indices))])
        except (KeyError, RuntimeError, ZeroDivisionError):
            raise DamagedError(f"{path} holds uploads that do not fit each other") from None
        return Observation(number, indices, version, parameters, gradients, uploads)

    def _room(self) -> int:
        """Return how many bytes a file may have."""
        setting, workers = self._setting, _workers(self._setting)
        if self._party is not None:
            parts = [self._party.expected()]
        else:
            model = self._expected or ModelTensors((), {})
            parts = [*model.bottoms, model.top] * workers
        held = sum(_HEADER + one.nbytes for part in parts for one in part.values())
        return _ROOM * (held + workers * setting.batch_size * torch.int64.itemsize + _HEADER)

    def _made_up(self, about: Mapping[str, str]) -> Tensor:
        """Return indices for a round that came without any: as many as its batch has, or may have."""
        size = int(about.get("samples", self._setting.batch_size))
        if not 0 < size <= self._setting.batch_size:
            raise ValueError
        return torch.arange(size)

    def _parameters_of(self, version: int) -> ModelTensors:
        if self._blind:
            self._version, self._flat = version, {}
            return ModelTensors(({},) * len(self._setting.boxes), {})
        if version != self._version:
            path = self._find(parameters_name(version))
            flat = read_tensors(path, self._checked, self._most)[0]
            found = _nested(flat, len(self._setting.boxes))
            if self._party is not None:
                self._party.check_parameters(path, flat)
            elif self._expected is not None:
                _check_model(path, flat, found, like=self._expected)
            self._version, self._flat, self._parameters = version, flat, found
            self._done(path)
        return self._parameters


@dataclass(frozen=True)
class RoundFile:
    """What a file holds: tensors, and what its header says of them."""

    name: str
    tensors: Tensors
    about: Mapping[str, str]


def files_of(
    observation: PartyObservation, *, new_parameters: bool, unknown: Collection[str] = ()
) -> Iterator[RoundFile]:
    """Yield the files of a round: first its parameters, if they are new, then all the rest that is known."""
    about = {"round": str(observation.round), "version": str(observation.version)}
    hidden = "indices" in unknown
    if hidden and "batch_size" not in unknown:
        about["samples"] = str(len(observation.indices))
    if new_parameters and "parameters" not in unknown:
        known = _flat(observation.parameters) if isinstance(observation, Observation) else party_parameters(observation)
        yield RoundFile(parameters_name(observation.version), known, {})
    if not isinstance(observation, Observation):
        flat: Mapping[str, Any] = party_round(observation)
    elif not observation.uploads:
        flat = _flat(observation.gradients)
    else:  # each worker's; their average follows from them
        flat = {f"{m}.{name}": t for m, own in enumerate(observation.uploads) for name, t in _flat(own).items()}
    named = {} if hidden else {"indices": observation.indices}
    yield RoundFile(round_name(observation.round), {**flat, **named}, about)


def _workers(setting: Setting) -> int:
    """Return how many workers have a batch of their own in a round."""
    return setting.workers if setting.topology.is_horizontal else 1


def _uploads(tensors: Tensors, setting: Setting) -> tuple[ModelTensors, ...]:
    """Return what each worker of a horizontal federation uploaded; what all uploaded together in a vertical one."""
    if not setting.topology.is_horizontal:
        return (_nested(tensors, len(setting.boxes)),)
    return tuple(_nested(without_prefix(f"{worker}.", tensors), 1) for worker in range(setting.workers))


def _model_shapes(setting: Setting) -> ModelTensors:
    """Return tensors with the names, shapes and types of the run's parameters; they need no memory of their own."""
    model = without_memory(setting, lambda: first_model(setting))
    bottoms = tuple(dict(bottom.named_parameters()) for bottom in model.bottoms)
    return ModelTensors(bottoms, dict(model.top.named_parameters()))


def _check_model(path: Path, flat: Tensors, found: ModelTensors, *, like: ModelTensors) -> None:
    """Make sure that parameters are those of the model, and all that the file holds."""
    parts = (*found.bottoms, found.top)
    for tensors, expected in zip(parts, (*like.bottoms, like.top), strict=True):
        check_tensors(path, tensors, expected)
    if (held := sum(map(len, parts))) != len(flat):
        raise DamagedError(f"{path} holds {len(flat)} tensors, of which {held} are parameters of this run's model")


def _check_gradients(path: Path, flat: Tensors, uploads: Sequence[ModelTensors], parameters: ModelTensors) -> None:
    """Make sure that gradients are of the parameters; a worker that withheld its upload has none."""
    held = 0
    for upload in uploads:
        for tensors, expected in zip((*upload.bottoms, upload.top), (*parameters.bottoms, parameters.top), strict=True):
            if tensors:
                check_tensors(path, tensors, expected)
            held += len(tensors)
    if held != len(flat):
        raise DamagedError(f"{path} holds {len(flat)} tensors, of which {held} are gradients of this run's model")


def _check_indices(path: Path, indices: Tensor, setting: Setting) -> None:
    """Make sure that a round's samples are some of the run's, each once."""
    whole = indices.dtype == torch.int64 and indices.dim() == 1 and 0 < len(indices) <= setting.samples
    if not whole or not 0 <= int(indices.min()) <= int(indices.max()) < setting.samples:
        raise DamagedError(
            f"{path} holds {described(indices)} as the round's samples, expected numbers "
            f"(int64) from 0 on, below {setting.samples}"
        )
    if len(indices) > (most := setting.batch_size * _workers(setting)):
        raise DamagedError(f"{path} names {len(indices)} samples, and a round of this run has {most} at the most")
    if len(indices.unique()) != len(indices):
        raise DamagedError(f"{path} names a sample twice in one round")


def _flat(tensors: ModelTensors) -> dict[str, Any]:
    parts = {TOP: tensors.top} | {f"{worker}.{BOTTOM}": bottom for worker, bottom in enumerate(tensors.bottoms)}
    return {prefix + name: tensor for prefix, part in parts.items() for name, tensor in part.items()}


def _nested(flat: Tensors, workers: int) -> ModelTensors:
    bottoms = tuple(without_prefix(f"{worker}.{BOTTOM}", flat) for worker in range(workers))
    return ModelTensors(bottoms, without_prefix(TOP, flat))
