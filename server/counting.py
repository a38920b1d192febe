"""A batch of test samples that workers count on: the label holder all of it, or each worker its own part."""

import asyncio
from collections.abc import Mapping

import grpc

from protos.coordinator_pb2 import Evaluation
from server.membership import RefusedError


class Counting:
    """Waits for what each worker counted; `totals` says who is asked, and on how many samples."""

    def __init__(self, number: int, totals: Mapping[int, int]) -> None:
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
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, "no evaluation of that number is on")
        total = self._totals.get(worker)
        if total is None:
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, f"worker {worker} was not asked to evaluate")
        if evaluation.total != total or evaluation.correct > total:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{evaluation.correct} of {evaluation.total} right, expected of {total}",
            )
        self._counted[worker] = evaluation
        if len(self._counted) == len(self._totals):
            self.done.set_result(None)
