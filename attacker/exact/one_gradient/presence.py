"""Who takes part in which round: by the space of its gradient, and, once people have names, by the indices."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacker.exact.choice import Choice
from attacker.exact.one_gradient.kept import Kept, Seen
from attacker.exact.one_gradient.people import People
from vfl.maths.factors import Factors, factorize
from vfl.models.whole import WholeModel

INSIDE, OUTSIDE = 1e-3, 1e-2
"""Relative distance from a gradient's space up to which an h is in it, and from which on it is not."""


@dataclass
class Presence:
    """What is known of (rounds, people): 1 takes part, -1 does not, 0 unknown."""

    kept: Kept
    choice: Choice
    samples: int
    trusts: bool
    """Whether the indices are the workers' own."""
    of: Tensor = field(init=False)
    _factors: dict[int, list[Factors]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.of = torch.zeros(len(self.kept.rounds), 0, dtype=torch.int8)
        self.drawn = torch.zeros(len(self.kept.rounds), self.samples, dtype=torch.bool)
        for at, seen in enumerate(self.kept.rounds):
            self.drawn[at, seen.batch] = True

    def factors(self, at: int) -> list[Factors]:
        """Return a round's spaces."""
        if at not in self._factors:
            seen: Seen = self.kept.rounds[at]
            self._factors[at] = [factorize(weight, bias, len(seen.batch)) for weight, bias in seen.gradients]
        return self._factors[at]

    def add(self, at: int, people: int) -> None:
        """Take in people who were found in a round."""
        new = torch.zeros(len(self.of), people, dtype=torch.int8)
        new[at] = 1
        if self.trusts:  # nobody is twice in rounds that share no index
            own = self.drawn[at]
            new[(self.drawn & own).sum(dim=1) == 0] = -1
        self.of = torch.cat([self.of, new], dim=1)

    def merge(self, place: Tensor) -> None:
        """Follow people who became one: `place` says who each of them is now."""
        old, self.of = self.of, torch.zeros(len(self.of), int(place.max()) + 1 if len(place) else 0, dtype=torch.int8)
        for column, new in zip(old.T, place.tolist(), strict=True):
            # found here beats not found there
            self.of[:, new] = torch.where((column == 1) | (self.of[:, new] == 0), column, self.of[:, new])

    def look(self, at: int, people: People, distinctive: Tensor, model: WholeModel) -> None:
        """Hold people of whom it is not known against a round's gradients.

        Whoever is in the space of a gradient takes part, unless the slice is one that others have too. Whoever is not
        may be hidden behind others, unless that gradient shows as many samples as it has.
        """
        factors, unknown = self.factors(at), self.of[at] == 0
        inside, outside = torch.zeros_like(unknown), torch.zeros_like(unknown)
        for worker, own in enumerate(factors):
            rows = (unknown & people.exact[:, worker]).nonzero()[:, 0]
            if not len(rows) or own.rank == 0:
                continue
            h = people.representations(model, self.choice, worker, rows)
            away = (h - h @ own.left @ own.left.T).norm(dim=1) / h.norm(dim=1).clamp_min(1e-12)
            inside[rows] |= (away < INSIDE) & distinctive[rows, worker]
            outside[rows] |= (away > OUTSIDE) & (own.rank == own.size)
        self.of[at][outside] = -1
        self.of[at][inside & ~outside] = 1

    def names(self) -> Tensor:
        """Return (people,) the one sample that each can be, -1 where there are several; that settles all rounds."""
        if not self.trusts:
            return torch.full((self.of.shape[1],), -1)
        possible = violations(self.of, self.drawn) == 0
        names = torch.where(possible.sum(dim=1) == 1, possible.to(torch.uint8).argmax(dim=1), -1)
        known = names >= 0
        self.of[:, known] = torch.where(self.drawn[:, names[known]], 1, -1).to(torch.int8)
        return names


def violations(of: Tensor, drawn: Tensor) -> Tensor:
    """Return (people, samples) how many rounds speak against a person being a sample."""
    there, absent = (of == 1).float(), (of == -1).float()
    return there.T @ (~drawn).float() + absent.T @ drawn.float()


def twins(alike: Tensor, of: Tensor) -> list[list[int]]:
    """Return pairs of people who are alike (people, people), whom no round parts, and who are like no one else."""
    there, absent = (of == 1).float(), (of == -1).float()
    alike = alike & (there.T @ absent == 0) & (absent.T @ there == 0)
    alone = alike.sum(dim=1) == 1
    pairs = (alike & alone & alone[:, None]).triu(1)
    return [[int(one), int(other)] for one, other in pairs.nonzero()]


def namesakes(names: Tensor) -> list[list[int]]:
    """Return groups of people who have one name."""
    known, count = names[names >= 0].unique(return_counts=True)
    return [(names == name).nonzero()[:, 0].tolist() for name in known[count > 1]]
