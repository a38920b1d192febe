"""One round's uploads: what is checked before any of it is used."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

import grpc
import torch
from torch import Tensor

from protos.codec import CodecError, describe, raw_bytes
from protos.coordinator_pb2 import UploadHeader
from server.membership import RefusedError
from vfl.observation import Tensors
from vfl.topology import Topology


@dataclass(frozen=True)
class Upload:
    """What one worker uploaded for a round."""

    worker: int
    gradients: Tensors
    loss: float | None
    withheld: str | None = None
    """Why the worker uploaded no gradients; None if it did."""


class Inbox:
    """Collects the uploads of one round. `expected` holds, for each worker, tensors of the right names and shapes."""

    def __init__(self, number: int, expected: Mapping[int, Tensors], topology: Topology) -> None:
        """Begin without uploads; a loss comes with those of parties that hold labels."""
        self.number = number
        self._expected, self._topology = expected, topology
        self._uploads: dict[int, Upload] = {}
        self.full = asyncio.Event()

    @property
    def missing(self) -> list[int]:
        """Return the workers whose upload has not come."""
        return [worker for worker in self._expected if worker not in self._uploads]

    @property
    def uploads(self) -> dict[int, Upload]:
        """Return the uploads by worker, in the order of their numbers."""
        return dict(sorted(self._uploads.items()))

    def check_header(self, header: UploadHeader) -> int:
        """Check names, shapes and dtypes; return how many bytes may follow."""
        worker = header.worker
        if worker in self._uploads:
            raise RefusedError(
                grpc.StatusCode.ALREADY_EXISTS, f"worker {worker} has uploaded for round {self.number} already"
            )
        expected = self._expected[worker]
        try:
            announced = describe(header.gradients)
        except CodecError as error:
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, f"worker {worker}: {error}") from None
        if header.HasField("withheld"):
            problem = "withholds its upload and announces one" if announced else None
        else:
            problem = _difference(announced, expected)
        if problem:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT, f"worker {worker} {problem}: is its model the coordinator's?"
            )
        if self._topology.holds_labels(worker) != header.HasField("loss"):
            rule = "from each worker" if self._topology.is_horizontal else "from the label holder, and only from it"
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, f"worker {worker}: the loss comes {rule}")
        if not math.isfinite(header.loss):
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"worker {worker} uploaded a loss of {header.loss}: did training diverge (lower training.lr)?",
            )
        return raw_bytes(expected.values()) + 8 * len(expected)

    def put(self, upload: Upload) -> None:
        """Take a complete upload, if all its values are finite."""
        for name, tensor in upload.gradients.items():
            if not all_finite(tensor):
                raise RefusedError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"worker {upload.worker} uploaded {name} with values that are not finite: "
                    f"did training diverge (lower training.lr)?",
                )
        if upload.worker in self._uploads:
            raise RefusedError(
                grpc.StatusCode.ALREADY_EXISTS, f"worker {upload.worker} has uploaded for round {self.number} already"
            )
        self._uploads[upload.worker] = upload
        if not self.missing:
            self.full.set()


def all_finite(tensor: Tensor) -> bool:
    """Tell whether there is neither NaN nor infinity; one pass in the usual case."""
    # A sum over finite values can overflow, so only a finite sum settles it.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _difference(announced: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], expected: Tensors) -> str | None:
    missing = [name for name in expected if name not in announced]
    if missing:
        return f"uploaded no {', '.join(missing[:5])}"
    unknown = [name for name in announced if name not in expected]
    if unknown:
        return f"uploaded {', '.join(unknown[:5])}, which nobody asked for"
    for name, (dtype, shape) in announced.items():
        if shape != tuple(expected[name].shape):
            return f"uploaded {name} with shape {shape}, expected {tuple(expected[name].shape)}"
        if dtype != expected[name].dtype:
            return f"uploaded {name} as {dtype}, expected {expected[name].dtype}"
    return None
