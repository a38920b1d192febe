"""What the coordinator saw, on disk: any attack can be run on it later. Safetensors and JSON, no pickle."""

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from vfl.config import RunConfig, parse_config
from vfl.errors import UserError
from vfl.observation import BOTTOM, TOP, ModelTensors, Observation, Setting, Tensors, with_prefix, without_prefix
from vfl.partition import Box
from vfl.results import write_atomically
from vfl.tensor_file import read_tensors, write_tensors

FORMAT = 1


class TranscriptWriter:
    """Writes rounds as they come: one file a round, one a version of the parameters, and `meta.json`."""

    def __init__(self, folder: Path, config: RunConfig, setting: Setting) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._version = 0
        meta = {"format": FORMAT, "config": config.model_dump(mode="json"), "setting": _setting_tree(setting)}
        text = json.dumps(meta, indent=1)
        write_atomically(folder / "meta.json", lambda path: path.write_text(text + "\n", encoding="utf-8"))

    def observe(self, observation: Observation) -> None:
        """Write one round."""
        if observation.version != self._version:
            path = self._folder / parameters_name(observation.version)
            write_atomically(path, lambda path: write_parameters(path, observation))
            self._version = observation.version
        path = self._folder / round_name(observation.round)
        write_atomically(path, lambda path: write_round(path, observation))


class Transcript:
    """A recorded run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            meta: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} is not a transcript: meta.json cannot be read ({error})") from None
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise UserError(f"{folder} is not a transcript of format {FORMAT}, which this release reads")
        self.config = parse_config(meta.get("config", {}), f"{folder}/meta.json")
        # A run that was stopped early has fewer rounds than it planned.
        self.rounds = len(list(folder.glob("round-*.safetensors")))
        try:
            self.setting = _setting(meta["setting"], self.config, self.rounds)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder}/meta.json does not describe a run's setting: {error!r}") from None

    def __iter__(self) -> Iterator[Observation]:
        workers = self.setting.workers

        @lru_cache(maxsize=1)
        def parameters(version: int) -> ModelTensors:
            return read_parameters(self._folder / parameters_name(version), workers)

        for path in sorted(self._folder.glob("round-*.safetensors")):
            yield read_round(path, workers, parameters)


def round_name(number: int) -> str:
    """Return what a round's file is called."""
    return f"round-{number:07d}.safetensors"


def parameters_name(version: int) -> str:
    """Return what the file of a version of the parameters is called."""
    return f"parameters-{version:07d}.safetensors"


def write_round(path: Path, observation: Observation) -> None:
    """Write all of a round but its parameters."""
    about = {"round": str(observation.round), "version": str(observation.version)}
    write_tensors(path, {**_flat(observation.gradients), "indices": observation.indices}, about)


def write_parameters(path: Path, observation: Observation) -> None:
    """Write the parameters that were in force in a round."""
    write_tensors(path, _flat(observation.parameters), {})


def read_round(path: Path, workers: int, parameters: Callable[[int], ModelTensors]) -> Observation:
    """Return a round; `parameters` returns those of a version."""
    tensors, about = read_tensors(path)
    version, indices = int(about["version"]), tensors.pop("indices")
    return Observation(int(about["round"]), indices, version, parameters(version), _nested(tensors, workers))


def read_parameters(path: Path, workers: int) -> ModelTensors:
    """Return the parameters that a file holds."""
    return _nested(read_tensors(path)[0], workers)


def _flat(tensors: ModelTensors) -> dict[str, Any]:
    flat = with_prefix(TOP, tensors.top)
    for worker, bottom in enumerate(tensors.bottoms):
        flat |= with_prefix(f"{worker}.{BOTTOM}", bottom)
    return flat


def _nested(flat: Tensors, workers: int) -> ModelTensors:
    bottoms = tuple(without_prefix(f"{worker}.{BOTTOM}", flat) for worker in range(workers))
    return ModelTensors(bottoms, without_prefix(TOP, flat))


def _setting_tree(setting: Setting) -> dict[str, Any]:
    return {
        "boxes": [{"sample_shape": b.sample_shape, "start": b.start, "stop": b.stop} for b in setting.boxes],
        "classes": setting.classes,
        "samples": setting.samples,
        "batch_size": setting.batch_size,
        "schedule": setting.schedule,
    }


def _setting(tree: dict[str, Any], config: RunConfig, rounds: int) -> Setting:
    boxes = tuple(Box(tuple(b["sample_shape"]), tuple(b["start"]), tuple(b["stop"])) for b in tree["boxes"])
    return Setting(
        model=config.model,
        boxes=boxes,
        classes=tree["classes"],
        samples=tree["samples"],
        batch_size=tree["batch_size"],
        schedule=tree["schedule"],
        rounds=rounds,
        frozen=config.training.frozen,
        seed=config.seed,
        device=config.device,
    )
