"""The model on test samples, which the workers hold: they count, and the coordinator adds up."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from protos.coordinator_pb2 import Purpose
from server.inbox import Counts
from server.parameters import Parameters
from server.session import Session
from vfl.config import EVALUATION_BATCH
from vfl.folder.journal import Journal
from vfl.folder.summary import Evaluated
from vfl.observation import Setting


class Evaluator:
    """Has the workers of a session evaluate the parameters as they are."""

    def __init__(self, setting: Setting, session: Session, parameters: Parameters, journal: Journal) -> None:
        self._session, self._parameters, self._journal = session, parameters, journal
        self._topology, self._rounds, self._loss = setting.topology, setting.rounds, setting.loss
        self._held = [member.test_samples for member in session.members]
        """The test samples of each party: the same at all of them, or in a horizontal federation others."""
        self._batches = 0
        widths = enumerate(parameters.output_widths)
        self.peers_outputs = sum(width for party, width in widths if self._topology.sends_outputs(party))
        """How many numbers of a sample's outputs go to the label holder."""

    async def evaluate(self) -> None:
        """Let the workers count on the test samples, if there are any and they have not just done so."""
        record = self._session.record
        samples = sum(self._held) if self._topology.is_horizontal else self._held[0]
        if not samples or record.last_evaluation:
            return
        correct, loss = 0, 0.0
        for start in range(0, max(self._held), EVALUATION_BATCH):
            # Numbers beyond the training rounds': at the label holder no output is taken for another round's.
            self._batches += 1
            counts = await self._counted(self._rounds + self._batches, start)
            correct += counts.correct
            loss += counts.loss_sum
        right = math.nan if self._loss.of_number else correct / samples
        record.train.evaluations.append(Evaluated(round=record.rounds, loss=loss / samples, accuracy=right))
        self._journal.evaluation(record.rounds, loss / samples, right)

    async def _counted(self, number: int, start: int) -> Counts:
        """Have a batch of test samples counted."""
        batches = {party: torch.arange(held)[start : start + EVALUATION_BATCH] for party, held in enumerate(self._held)}
        rows = {party: batch for party, batch in batches.items() if len(batch)}
        await self._session.undisturbed(lambda: self._order_and_wait(number, rows))
        self._session.record.bytes.raw += 4 * max(map(len, rows.values())) * self.peers_outputs
        assert self._session.answers.counts is not None
        return self._session.answers.counts

    async def _order_and_wait(self, number: int, rows: Mapping[int, Tensor]) -> None:
        totals = {party: len(own) for party, own in rows.items() if self._topology.holds_labels(party)}
        self._session.answers.counts = counts = Counts(number, totals)
        self._session.order(number, Purpose.PURPOSE_EVALUATE, rows, self._parameters)
        await self._session.wait_for(counts.done, lambda: "no evaluation came")
