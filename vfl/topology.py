"""Who holds which features, samples and labels, and which part of the model each party trains and uploads."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

from vfl.errors import UserError

if TYPE_CHECKING:  # a config says the topology, and is read without torch
    from torch import Tensor

Kind = Literal["vertical", "horizontal"]


@dataclass(frozen=True)
class Topology:
    """The parties of a federation: its workers, and the coordinator's own label holder where there is one.

    Vertical: all have the same samples; each worker has features of its own and trains a bottom model of its own, and
    one party, the label holder, has the labels and trains the top model. It may have no features.
    Horizontal: each worker has samples of its own, whole and with their labels, and trains the one bottom and the top.
    """

    workers: int
    label_holder: int = 0
    """A worker's number, or the one after the last worker's: the coordinator's own. Always 0 if horizontal."""
    label_holder_features: bool = True
    kind: Kind = "vertical"
    shares: tuple[int, ...] = ()
    """How many samples each worker of a horizontal federation has, once that is known: worker 0's come first."""

    @property
    def is_horizontal(self) -> bool:
        """Whether workers have different samples, and not different features of the same."""
        return self.kind == "horizontal"

    @property
    def labels_at_coordinator(self) -> bool:
        """Whether the coordinator has the labels; it then runs the label holder beside itself, as one party more."""
        return self.label_holder == self.workers

    @property
    def parties(self) -> int:
        """Return how many take part in the rounds: the workers, and the coordinator's label holder if it has one."""
        return self.workers + self.labels_at_coordinator

    @property
    def feature_holders(self) -> int:
        """Return how many workers have features: all, or all but the last, which has the labels alone."""
        return self.workers if self.label_holder_features else self.workers - 1

    @property
    def bottoms(self) -> int:
        """Return how many bottom models there are: one for each worker with features, or one for all."""
        return 1 if self.is_horizontal else self.feature_holders

    def holds_features(self, party: int) -> bool:
        """Tell whether a party has features: it then trains and uploads a bottom model."""
        return party < self.feature_holders

    def bottom_of(self, party: int) -> int:
        """Return which of the bottom models is a party's: its own, or the one that all have."""
        return 0 if self.is_horizontal else party

    def holds_labels(self, party: int) -> bool:
        """Tell whether a party has labels: it then trains and uploads the top model, and reports the loss."""
        return self.is_horizontal or party == self.label_holder

    def serves_peers(self, party: int) -> bool:
        """Tell whether the other parties send their outputs to this one: to the label holder of a vertical one."""
        return not self.is_horizontal and party == self.label_holder

    def sends_outputs(self, party: int) -> bool:
        """Tell whether a party's outputs go to the label holder, and their gradients come back."""
        return not self.is_horizontal and party != self.label_holder

    def even_shares(self, samples: int, batch_size: int) -> tuple[int, ...]:
        """Divide the training samples of a horizontal federation; each worker needs a whole batch of its own."""
        if not self.is_horizontal:
            return ()
        shares = tuple(run.stop - run.start for run in even_runs(samples, self.workers))
        if min(shares) < batch_size:
            raise UserError(
                f"federation.batch_size: {samples} samples among {self.workers} workers leave one with {min(shares)}, "
                f"and in a horizontal federation each worker draws {batch_size} of its own a round"
            )
        return shares

    def rows_of_each(self, indices: "Tensor") -> list["Tensor"]:
        """Return each party's part of a batch, in the batch's order, counted from its own first sample."""
        if not self.is_horizontal:
            return [indices] * self.parties
        edges = pairwise(accumulate(self.shares, initial=0))
        return [indices[(first <= indices) & (indices < last)] - first for first, last in edges]

    def indices_of(self, rows: Sequence["Tensor"]) -> list["Tensor"]:
        """Return each worker's rows, counted from its own first sample, as indices of all samples."""
        return [own + first for own, first in zip(rows, accumulate(self.shares, initial=0), strict=False)]


def even_runs(count: int, workers: int) -> list[slice]:
    """Divide so many samples into runs, one a worker, as even as possible; with few samples some are empty."""
    return [slice(first, last) for first, last in pairwise(round(i * count / workers) for i in range(workers + 1))]
