"""What one worker holds, in memory and as a file: its slice of every sample, and the labels at the label holder."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vfl.config import RunConfig
from vfl.datasets import Data, datasets
from vfl.errors import UserError
from vfl.partition import Box, partition


@dataclass(frozen=True)
class WorkerData:
    """One worker's data. Only the label holder has y, y_test and classes."""

    box: Box
    x: Tensor
    ids_digest: bytes
    x_test: Tensor | None = None
    y: Tensor | None = None
    y_test: Tensor | None = None
    classes: int = 0

    def save(self, path: Path) -> None:
        """Write the slice to a file."""
        named = {"x": self.x, "x_test": self.x_test, "y": self.y, "y_test": self.y_test}
        tensors = {name: tensor.contiguous() for name, tensor in named.items() if tensor is not None}
        about = {
            "sample_shape": self.box.sample_shape,
            "start": self.box.start,
            "stop": self.box.stop,
            "ids_digest": self.ids_digest.hex(),
            "classes": self.classes,
        }
        save_file(tensors, path, metadata={"slice": json.dumps(about)})

    @staticmethod
    def load(path: Path) -> "WorkerData":
        """Read the slice from a file."""
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["slice"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            box = Box(tuple(about["sample_shape"]), tuple(about["start"]), tuple(about["stop"]))
            return WorkerData(
                box,
                tensors["x"],
                bytes.fromhex(about["ids_digest"]),
                tensors.get("x_test"),
                tensors.get("y"),
                tensors.get("y_test"),
                int(about["classes"]),
            )
        except FileNotFoundError:
            raise UserError(f"there is no slice file {path}") from None
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise UserError(f"{path} is not a worker's slice file: {error}") from None


def load_data(config: RunConfig) -> Data:
    """Load the whole data set that a config names."""
    return datasets.build(config.data).load()


def slice_for(data: Data, config: RunConfig, worker: int) -> WorkerData:
    """Return what one worker of the federation holds of the data."""
    box = partition(data.sample_shape, config.federation.workers, config.federation.slices)[worker]
    holds_labels = worker == config.federation.label_holder
    return WorkerData(
        box,
        box.cut(data.x),
        digest(data.ids),
        None if data.x_test is None else box.cut(data.x_test),
        data.y if holds_labels else None,
        data.y_test if holds_labels else None,
        data.classes if holds_labels else 0,
    )


def write_slices(config: RunConfig, data: Data, folder: Path) -> list[Path]:
    """Give each worker a file with its own slice, so that none of them ever holds another's features."""
    paths = []
    for worker in range(config.federation.workers):
        path = folder / f"worker-{worker}.safetensors"
        slice_for(data, config, worker).save(path)
        paths.append(path)
    return paths


def digest(ids: Sequence[str]) -> bytes:
    """Return SHA-256 over the sample ids in order."""
    total = hashlib.sha256()
    for name in ids:
        encoded = name.encode()
        total.update(len(encoded).to_bytes(4, "little") + encoded)
    return total.digest()
