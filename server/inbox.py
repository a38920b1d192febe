"""What workers answer to an order, a round's uploads or their counts on test samples, checked before it is used."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

import grpc
import torch

from protos.codec import CodecError, describe, raw_bytes
from protos.coordinator_pb2 import Evaluation, UploadHeader
from server.membership import Member
from server.refusal import RefusedError, invalid, unfit
from vfl.maths.tensors import all_finite
from vfl.observation import Tensors
from vfl.topology import Topology


class Answers:
    """What is expected of the workers: of the last start alone, as rounds are begun anew after a worker was lost."""

    def __init__(self) -> None:
        self.run_id = ""
        """Of the last start."""
        self.inboxes: dict[int, Inbox] = {}
        """Of the rounds that are under way."""
        self.counts: Counts | None = None
        """Of the last test batch."""

    def inbox_of(self, member: Member, header: UploadHeader) -> "Inbox":
        """Return where an upload belongs, if its round is under way."""
        if header.worker != member.worker:
            other = f"worker {member.worker} cannot upload for worker {header.worker}"
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, other)
        if header.run_id != self.run_id:
            raise RefusedError(grpc.StatusCode.ABORTED, f"round {header.round} was begun anew")
        if header.round not in self.inboxes:
            now = min(self.inboxes, default=None)
            on = "no round is on" if now is None else f"the current round is {now}"
            raise unfit(f"worker {member.worker} uploaded for round {header.round}, {on}")
        return self.inboxes[header.round]

    def evaluated(self, member: Member, evaluation: Evaluation) -> None:
        """Take what a worker counted on test samples."""
        if evaluation.run_id != self.run_id:
            raise RefusedError(grpc.StatusCode.ABORTED, "that evaluation was begun anew")
        if self.counts is None:
            raise unfit("no evaluation of that number is on")
        self.counts.put(member.worker, evaluation)


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
            raise invalid(f"worker {worker}: {error}") from None
        if header.HasField("withheld"):
            problem = "withholds its upload and announces one" if announced else None
        else:
            problem = _difference(announced, expected)
        if problem:
            raise invalid(f"worker {worker} {problem}: is its model the coordinator's?")
        if self._topology.holds_labels(worker) != header.HasField("loss"):
            rule = "from each worker" if self._topology.is_horizontal else "from the label holder, and only from it"
            raise invalid(f"worker {worker}: the loss comes {rule}")
        if not math.isfinite(header.loss):
            raise invalid(
                f"worker {worker} uploaded a loss of {header.loss}: did training diverge (lower training.lr)?"
            )
        return raw_bytes(expected.values()) + 8 * len(expected)

    def put(self, upload: Upload) -> None:
        """Take a complete upload, if all its values are finite."""
        for name, tensor in upload.gradients.items():
            if not all_finite(tensor):
                diverged = "values that are not finite: did training diverge (lower training.lr)?"
                raise invalid(f"worker {upload.worker} uploaded {name} with {diverged}")
        if upload.worker in self._uploads:
            raise RefusedError(
                grpc.StatusCode.ALREADY_EXISTS, f"worker {upload.worker} has uploaded for round {self.number} already"
            )
        self._uploads[upload.worker] = upload
        if not self.missing:
            self.full.set()


class Counts:
    """What workers count on a batch of test samples: the label holder on all of it, or each worker on its own part."""

    def __init__(self, number: int, totals: Mapping[int, int]) -> None:
        """Begin without counts; `totals` says which workers are asked, and on how many samples."""
        self._number, self._totals = number, totals
        self._counted: dict[int, Evaluation] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def correct(self) -> int:
        """Return how many samples were classified right."""
        return sum(one.correct for one in self._counted.values())

    @property
    def loss_sum(self) -> float:
        """Return the samples' summed loss; always in the workers' order, so that it is always the same."""
        return sum(self._counted[worker].loss_sum for worker in sorted(self._counted))

    def put(self, worker: int, evaluation: Evaluation) -> None:
        """Take what a worker counted."""
        if self.done.done() or worker in self._counted or evaluation.round != self._number:
            raise unfit("no evaluation of that number is on")
        total = self._totals.get(worker)
        if total is None:
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, f"worker {worker} was not asked to evaluate")
        if evaluation.total != total or evaluation.correct > total:
            raise invalid(f"{evaluation.correct} of {evaluation.total} right, expected of {total}")
        self._counted[worker] = evaluation
        if len(self._counted) == len(self._totals):
            self.done.set_result(None)


def _difference(announced: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], expected: Tensors) -> str | None:
    missing = [name for name in expected if name not in announced]
    if missing:
        return f"uploaded no {', '.join(missing[:5])}"
    unknown = [name for name in announced if name not in expected]
    if unknown:
        return f"uploaded {', '.join(unknown[:5])}, which the coordinator did not ask for"
    for name, (dtype, shape) in announced.items():
        if shape != tuple(expected[name].shape):
            return f"uploaded {name} with shape {shape}, expected {tuple(expected[name].shape)}"
        if dtype != expected[name].dtype:
            return f"uploaded {name} as {dtype}, expected {expected[name].dtype}"
    return None
