"""What the coordinator saw, on disk: any attack can be run on it later. Safetensors and JSON, no pickle."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from vfl.config import RunConfig, parse_config
from vfl.errors import UserError
from vfl.observation import BOTTOM, TOP, ModelTensors, Observation, Setting, Tensors, with_prefix, without_prefix
from vfl.partition import Box
from vfl.results import write_atomically

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
            self._save(_parameters_name(observation.version), _flat(observation.parameters), {})
            self._version = observation.version
        about = {"round": str(observation.round), "version": str(observation.version)}
        tensors = {**_flat(observation.gradients), "indices": observation.indices}
        self._save(_round_name(observation.round), tensors, about)

    def _save(self, name: str, tensors: Tensors, about: dict[str, str]) -> None:
        whole = {key: tensor.contiguous() for key, tensor in tensors.items()}
        write_atomically(self._folder / name, lambda path: save_file(whole, path, metadata=about))


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
        version, parameters = 0, ModelTensors((), {})
        workers = self.setting.workers
        for path in sorted(self._folder.glob("round-*.safetensors")):
            tensors, about = _load(path)
            if int(about["version"]) != version:
                version = int(about["version"])
                parameters = _nested(_load(self._folder / _parameters_name(version))[0], workers)
            indices = tensors.pop("indices")
            yield Observation(int(about["round"]), indices, version, parameters, _nested(tensors, workers))


def _round_name(number: int) -> str:
    return f"round-{number:07d}.safetensors"


def _parameters_name(version: int) -> str:
    return f"parameters-{version:07d}.safetensors"


def _flat(tensors: ModelTensors) -> dict[str, Any]:
    flat = with_prefix(TOP, tensors.top)
    for worker, bottom in enumerate(tensors.bottoms):
        flat |= with_prefix(f"{worker}.{BOTTOM}", bottom)
    return flat


def _nested(flat: Tensors, workers: int) -> ModelTensors:
    bottoms = tuple(without_prefix(f"{worker}.{BOTTOM}", flat) for worker in range(workers))
    return ModelTensors(bottoms, without_prefix(TOP, flat))


def _load(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = dict(file.metadata() or {})
        return load_file(path), about
    except (SafetensorError, OSError) as error:
        raise UserError(f"the transcript's file {path} cannot be read: {error}") from None


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
