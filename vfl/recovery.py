"""What an attack hands over: its best estimate, and what it used to get there."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

MOST_SPANS = 4
SEEN = ("gradients", "outputs", "answers")
"""What crosses the wire in a round, of which each seat sees some: uploads, outputs, the gradients of outputs."""
CERTIFIED = 1e-3
"""A sample whose certificates are below this at every worker is certified."""


@dataclass(frozen=True)
class Ledger:
    """What a recovery rests on: of the rounds that the attack was shown, those it used, and what of them."""

    rounds: tuple[int, ...]
    """The rounds that were used."""
    versions: int
    """How many different parameters were in force in these rounds."""
    shown: int
    """How many rounds the attack was shown."""
    indices: bool
    parameters: bool
    labels: bool
    learning_rate: bool
    other: tuple[str, ...]
    seen: tuple[str, ...] = ("gradients",)
    """What of `SEEN` was used."""

    @property
    def sentence(self) -> str:
        """Return the ledger in words."""
        which = spans(self.rounds)
        moved = "the same in all of them" if self.versions == 1 else f"{self.versions} versions"
        parts = [
            f"{' and '.join(self.seen) or 'nothing'} of {len(self.rounds)} of {self.shown} rounds ({which})",
            f"their parameters ({moved})" if self.parameters else "no parameters",
            "their batch indices" if self.indices else "no indices",
            "the labels" if self.labels else "no labels",
            "the learning rate" if self.learning_rate else "no learning rate",
        ]
        return ", ".join([*parts, *self.other])


def spans(rounds: Sequence[int]) -> str:
    """Write ascending numbers as spans: 1 to 4, 7, 9 to 12; many as the first and the last."""
    ends: list[list[int]] = []
    for number in rounds:
        if ends and number == ends[-1][1] + 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    if len(ends) > MOST_SPANS:
        return f"between {rounds[0]} and {rounds[-1]}"
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ends) or "none"


@dataclass(frozen=True)
class Recovery:
    """The best estimate of an attack. What it could not recover is None; a single lost sample is a row of NaN."""

    slices: tuple[Tensor, ...] | None = None
    """The data: for each worker (samples, *slice shape)."""
    representations: tuple[Tensor, ...] | None = None
    """The internal representations: for each worker (samples, inputs of the layer)."""
    layers: tuple[str, ...] | None = None
    """For each worker the name of the layer whose inputs the representations are."""
    labels: Tensor | None = None
    """The class of each sample, -1 where unknown; where a number is predicted, the number, NaN where unknown."""
    labels_named: bool = True
    """Whether the classes are known by their names; else samples of one number are of one class, whichever it is."""
    label_scores: Tensor | None = None
    """With two classes: how much each sample looks like one of the second, NaN where unknown."""
    told: tuple[int, ...] = ()
    """Samples that the adversary knew from elsewhere, or whose labels, if these are recovered: they are not scored."""
    cells: tuple[tuple[int, ...], ...] = ()
    """Groups of samples that no batch tells apart: within one the order is arbitrary."""
    certificates: Tensor | None = None
    """(samples, workers): how far off the gradients say that a slice may be (docs/certificates.md); NaN: not known."""
    used: tuple[str, ...] = ("indices", "parameters", "gradients")
    """What the attack made use of: these, "outputs", "answers", "labels", "learning rate", or in its own words."""
    rounds: tuple[int, ...] | None = None
    """The rounds whose gradients it used; None for all that it was shown."""
    ledger: Ledger | None = None
    """The same in full; filled in by the driver, which shows the attack its rounds."""
    altered: tuple[float, ...] | None = None
    """For each worker the share of its rounds whose gradients look altered; None if the attack did not look."""
    elsewhere: bool = False
    """Whether the attack is another party's, which has what it found."""
    notes: tuple[str, ...] = field(default=())
    """Sentences for the report."""

    @property
    def certified(self) -> Tensor | None:
        """Return for each sample whether it is certified; None where the attack certifies nothing."""
        return None if self.certificates is None else (self.certificates < CERTIFIED).all(dim=1)

    def cell_of(self, samples: int) -> Tensor:
        """Return for each sample the first sample of its cell."""
        cell = torch.arange(samples)
        for members in self.cells:
            cell[list(members)] = min(members)
        return cell
