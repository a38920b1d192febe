"""A transcript without torch and without this project: numpy, safetensors, and the standard library.

Copy this file into the system that has the gradients. `docs/transcript.md` describes what it writes.

    with Transcript("mine/transcript", config, setting) as transcript:
        transcript.parameters(1, bottoms=[{"0.weight": w, ...}, ...], top={"weight": w, "bias": b})
        transcript.round(1, version=1, indices=[4, 0, 2], bottoms=[...], top={...})
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

Arrays = Mapping[str, np.ndarray]
NO_SUM = "0" * 64


class Transcript:
    """Writes `meta.json` first, then a file for each version of the parameters and for each round."""

    def __init__(self, folder: str | Path, config: Mapping[str, Any], setting: Mapping[str, Any]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        meta = {"format": 2, "config": config, "setting": setting}
        text = json.dumps(meta, sort_keys=True)
        meta["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        (self._folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")

    def __enter__(self) -> "Transcript":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def parameters(self, version: int, bottoms: Sequence[Arrays], top: Arrays) -> None:
        """Write the parameters that are in force from now on, under a number that is theirs."""
        self._write(f"parameters-{version:07d}", _named(bottoms, top), {})

    def round(
        self,
        number: int,
        version: int,
        bottoms: Sequence[Arrays],
        top: Arrays,
        indices: Sequence[int] | None = None,
        samples: int | None = None,
    ) -> None:
        """Write the gradients that reached the server; `indices`, or how many `samples`, or neither if unknown."""
        about = {"round": str(number), "version": str(version)}
        tensors = _named(bottoms, top)
        if indices is not None:
            tensors["indices"] = np.asarray(indices, dtype=np.int64)
        elif samples is not None:
            about["samples"] = str(samples)
        self._write(f"round-{number:07d}", tensors, about)

    def outputs(
        self,
        number: int,
        version: int,
        outputs: Sequence[np.ndarray],
        answers: Sequence[np.ndarray],
        top: Arrays,
        indices: Sequence[int],
    ) -> None:
        """Write what reached a server that has the labels and the top model, and none of the parties' networks.

        `outputs` are the parties', `answers` the loss's gradients of them, which it sent back, `top` its own gradients.
        """
        each = {f"output.{party}": one for party, one in enumerate(outputs)}
        each |= {f"answer.{party}": one for party, one in enumerate(answers)}
        tensors = {name: np.ascontiguousarray(one, dtype=np.float32) for name, one in each.items()}
        tensors |= {**_named([], top), "indices": np.asarray(indices, dtype=np.int64)}
        self._write(f"round-{number:07d}", tensors, {"round": str(number), "version": str(version)})

    def known(self, samples: np.ndarray) -> None:
        """Write the first samples, whole, if that server knows them from elsewhere."""
        self._write("held", {"auxiliary": np.ascontiguousarray(samples, dtype=np.float32)}, {})

    def _write(self, name: str, tensors: Arrays, about: Mapping[str, str]) -> None:
        # The checksum is over the whole file, itself taken as zeros.
        whole = save(dict(tensors), metadata={"sha256": NO_SUM, **about})
        made = whole.replace(NO_SUM.encode(), hashlib.sha256(whole).hexdigest().encode(), 1)
        (self._folder / f"{name}.safetensors").write_bytes(made)


def _named(bottoms: Sequence[Arrays], top: Arrays) -> dict[str, np.ndarray]:
    """Return all tensors under their names in a file: `0.bottom.NAME` of party 0, `top.NAME` of the top model."""
    named = {f"{party}.bottom.{name}": one for party, own in enumerate(bottoms) for name, one in own.items()}
    named |= {f"top.{name}": one for name, one in top.items()}
    return {name: np.ascontiguousarray(one, dtype=np.float32) for name, one in named.items()}
