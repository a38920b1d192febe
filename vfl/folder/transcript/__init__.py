"""What a curious party saw, on disk: any attack can be run on it later. Safetensors and JSON, checksums, no pickle."""

import hashlib
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vfl.config import RunConfig, parse_config
from vfl.errors import UserError
from vfl.files import PRIVATE, PRIVATE_FOLDER, read_plain, sync, write_atomically
from vfl.files.tensor_file import DamagedError, write_tensors
from vfl.folder.transcript.files import RoundReader, files_of, number_of, round_name
from vfl.folder.transcript.meta import read_held, setting_from, setting_tree, write_held
from vfl.limits import JSON_BYTES, plain
from vfl.observation import PartyObservation, Setting
from vfl.seats import COORDINATOR

FORMAT = 2


class TranscriptWriter:
    """Writes rounds as they come: one file a round, one a version of the parameters, and `meta.json`."""

    def __init__(self, folder: Path, config: RunConfig, setting: Setting) -> None:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._folder = folder
        self._version, self._unknown = 0, setting.unknown
        self._syncs = config.federation.checkpoint_every is not None
        self._unsure: list[Path] = []
        """What was written, and would be lost if the machine stopped now; kept for checkpoints only."""
        meta = {"format": FORMAT, "config": config.model_dump(mode="json"), "setting": setting_tree(setting)}
        text = json.dumps({**meta, "sha256": _checksum(meta)}, indent=1) + "\n"
        write_atomically(folder / "meta.json", lambda path: path.write_text(text, encoding="utf-8"), mode=PRIVATE)
        write_held(folder, setting)

    def observe(self, observation: PartyObservation) -> None:
        """Write one round."""
        new = observation.version != self._version
        for file in files_of(observation, new_parameters=new, unknown=self._unknown):
            path, write = self._folder / file.name, partial(write_tensors, tensors=file.tensors, about=file.about)
            write_atomically(path, partial(write, checked=True), durably=False, mode=PRIVATE)
            if self._syncs:
                self._unsure.append(path)
        self._version = observation.version

    def sync(self) -> None:
        """Wait until all rounds so far are on the disk; to do so every round would take longer than most rounds."""
        for path in (*self._unsure, self._folder):
            sync(path)
        self._unsure.clear()


class Transcript:
    """A recorded run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        meta = _read_meta(folder)
        self.config = parse_config(meta.get("config", {}), f"{folder}/meta.json")
        self._names = sorted(path.name for path in folder.glob("round-*.safetensors"))
        self.first = next((number_of(name) for name in self._names), 1)
        """The first round that is there: of a run that can be resumed, rounds that its attack needs no more may go."""
        # A run that was stopped early has fewer rounds than it planned.
        self.rounds = self.first - 1 + len(self._names)
        try:
            known = setting_from(meta["setting"], self.config, self.rounds)
        except KeyError as error:
            raise UserError(f"{folder}/meta.json does not describe a run's setting: it lacks {error}") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(f"{folder}/meta.json does not describe a run's setting: {error}") from None
        self.setting = read_held(folder, known)
        self._is_coordinators = known.seats == (COORDINATOR,)

    def __iter__(self) -> Iterator[PartyObservation]:
        """Yield the rounds; the model that the setting names is built, to compare its tensors with those on disk."""
        return self.after(0)

    def after(self, number: int) -> Iterator[PartyObservation]:
        """Yield the rounds after this one."""
        if self._is_coordinators and self.first > number + 1:
            gone = f"{self._folder} has no rounds before {self.first}"
            why = "the run's attack had seen them, and they were kept for it alone (transcript: true keeps all)"
            raise DamagedError(f"{gone}: {why}")
        reader = RoundReader(self.setting, self._folder.joinpath, checked=True)
        return map(reader.read, self._numbers(number))

    def _numbers(self, after: int) -> Iterator[int]:
        """Yield the rounds that are to be there: a curious worker that was restarted has not seen all of them."""
        if self._is_coordinators:
            yield from range(after + 1, self.rounds + 1)
        else:
            yield from (number for name in self._names if (number := number_of(name)) > after)


def forget_after(folder: Path, number: int) -> None:
    """Remove the rounds after this one from a transcript."""
    later = (path for path in folder.glob("round-*.safetensors") if path.name > round_name(number))
    for path in (*later, *folder.glob("*.partial")):
        path.unlink()


def _read_meta(folder: Path) -> dict[str, Any]:
    """Return what a transcript says of its run, as whole as it was written."""
    try:
        text = read_plain(folder / "meta.json", JSON_BYTES)
        meta: dict[str, Any] = json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_number)
    except FileNotFoundError:
        inside = folder / "transcript"
        hint = f": is it {inside}?" if os.path.lexists(inside / "meta.json") else ""
        raise UserError(f"{folder} is not a transcript: there is no meta.json{hint}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder} is not a transcript: meta.json cannot be read ({error})") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise UserError(f"{folder} is not a transcript of format {FORMAT}, which this release reads")
    if meta.pop("sha256", None) != _checksum(meta):
        raise DamagedError(f"{folder}/meta.json is damaged: its checksum does not fit")
    if odd := sorted(meta.keys() - {"format", "config", "setting"}):
        raise UserError(f"{folder}/meta.json has a key that no transcript has: {plain(odd[0])}")
    return meta


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; one that has a key twice means two things."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {plain(repr(twice))} stands there twice")
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number that JSON has")


def _checksum(meta: dict[str, Any]) -> str:
    as_read = json.loads(json.dumps(meta))  # all keys are strings then, and in one order
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()
