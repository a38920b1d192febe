"""What the coordinator saw, on disk: any attack can be run on it later. Safetensors and JSON, checksums, no pickle."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vfl.config import RunConfig, parse_config
from vfl.errors import UserError
from vfl.files import PRIVATE, PRIVATE_FOLDER, read_plain, sync, write_atomically
from vfl.files.tensor_file import DamagedError, write_tensors
from vfl.folder.transcript.files import RoundReader, files_of, number_of, round_name
from vfl.limits import CLASSES, FEATURES, JSON_BYTES, SAMPLES
from vfl.observation import Observation, Setting
from vfl.partition import Box, tiling_problem

FORMAT = 2


class TranscriptWriter:
    """Writes rounds as they come: one file a round, one a version of the parameters, and `meta.json`."""

    def __init__(self, folder: Path, config: RunConfig, setting: Setting) -> None:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._folder = folder
        self._version = 0
        self._syncs = config.federation.checkpoint_every is not None
        self._unsure: list[Path] = []
        """What was written, and would be lost if the machine stopped now; kept for checkpoints only."""
        meta = {"format": FORMAT, "config": config.model_dump(mode="json"), "setting": _setting_tree(setting)}
        text = json.dumps({**meta, "sha256": _checksum(meta)}, indent=1) + "\n"
        write_atomically(folder / "meta.json", lambda path: path.write_text(text, encoding="utf-8"), mode=PRIVATE)

    def observe(self, observation: Observation) -> None:
        """Write one round."""
        for file in files_of(observation, new_parameters=observation.version != self._version):
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
        try:
            meta: dict[str, Any] = json.loads(read_plain(folder / "meta.json", JSON_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{folder} is not a transcript: meta.json cannot be read ({error})") from None
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise UserError(f"{folder} is not a transcript of format {FORMAT}, which this release reads")
        if meta.pop("sha256", None) != _checksum(meta):
            raise DamagedError(f"{folder}/meta.json is damaged: its checksum does not fit")
        self.config = parse_config(meta.get("config", {}), f"{folder}/meta.json")
        names = sorted(path.name for path in folder.glob("round-*.safetensors"))
        self.first = next((number_of(name) for name in names), 1)
        """The first round that is there: of a run that can be resumed, rounds that its attack needs no more may go."""
        # A run that was stopped early has fewer rounds than it planned.
        self.rounds = self.first - 1 + len(names)
        try:
            self.setting = _setting(meta["setting"], self.config, self.rounds)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder}/meta.json does not describe a run's setting: {error!r}") from None

    def __iter__(self) -> Iterator[Observation]:
        """Yield the rounds; the model that the setting names is built, to compare its tensors with those on disk."""
        return self.after(0)

    def after(self, number: int) -> Iterator[Observation]:
        """Yield the rounds after this one."""
        if self.first > number + 1:
            gone = f"{self._folder} has no rounds before {self.first}"
            why = "the run's attack had seen them, and they were kept for it alone (transcript: true keeps all)"
            raise DamagedError(f"{gone}: {why}")
        reader = RoundReader(self.setting, self._folder.joinpath, checked=True)
        return map(reader.read, range(number + 1, self.rounds + 1))


def forget_after(folder: Path, number: int) -> None:
    """Remove the rounds after this one from a transcript."""
    later = (path for path in folder.glob("round-*.safetensors") if path.name > round_name(number))
    for path in (*later, *folder.glob("*.partial")):
        path.unlink()


def _checksum(meta: dict[str, Any]) -> str:
    as_read = json.loads(json.dumps(meta))  # all keys are strings then, and in one order
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def _setting_tree(setting: Setting) -> dict[str, Any]:
    return {
        "boxes": [{"sample_shape": b.sample_shape, "start": b.start, "stop": b.stop} for b in setting.boxes],
        "classes": setting.classes,
        "samples": setting.samples,
        "batch_size": setting.batch_size,
        "schedule": setting.schedule,
        "shares": setting.topology.shares,
        **({} if setting.labels is None else {"labels": list(setting.labels)}),
    }


def _setting(tree: dict[str, Any], config: RunConfig, rounds: int) -> Setting:
    boxes = tuple(Box(tuple(b["sample_shape"]), tuple(b["start"]), tuple(b["stop"])) for b in tree["boxes"])
    sizes = {name: tree[name] for name in ("classes", "samples", "batch_size")}
    most = {"classes": CLASSES, "samples": SAMPLES, "batch_size": SAMPLES}
    if not all(type(size) is int and 0 < size <= most[name] for name, size in sizes.items()):
        raise ValueError(f"{sizes} are not numbers of things")
    if len(boxes) != config.topology.bottoms or not 0 < math.prod(boxes[0].sample_shape) <= FEATURES:
        raise ValueError(f"{len(boxes)} slices for {config.topology.bottoms} bottom models")
    shares = tuple(tree.get("shares", ()))
    wanted = (config.federation.workers, tree["samples"]) if config.topology.is_horizontal else (0, 0)
    if not all(type(share) is int and share > 0 for share in shares) or (len(shares), sum(shares)) != wanted:
        raise ValueError(f"{shares} samples for {config.federation.workers} workers of a {config.federation.kind} run")
    problem = tiling_problem(boxes)
    if problem:
        raise ValueError(problem)
    labels = _labels(tree.get("labels"), tree["samples"], tree["classes"])
    if (labels is None) == config.topology.labels_at_coordinator:
        raise ValueError("it has labels exactly if federation.label_holder is coordinator")
    planned = Setting.of(config, boxes, tree["classes"], tree["samples"], shares=shares, labels=labels)
    return replace(planned, batch_size=tree["batch_size"], schedule=tree["schedule"], rounds=rounds)


def _labels(found: Any, samples: int, classes: int) -> tuple[int, ...] | None:
    """Return the labels that a coordinator knew, None if it knew none."""
    if found is None:
        return None
    right = isinstance(found, list) and len(found) == samples
    if not right or not all(type(label) is int and 0 <= label < classes for label in found):
        raise ValueError(f"its labels are not {samples} numbers below {classes}")
    return tuple(found)
