"""Slices that several rounds showed: where one h leaves pixels open, the h of other parameters says more.

Later in training most of an h is zero, and a slice has more pixels than are left. But every round has parameters of its
own, so a slice that was seen in several of them has several h, which are looked for together. Which of two rounds' rows
are one sample's is guessed by what a slice found from one of them would be in the other; that all of them are explained
by one slice, to rounding, is the proof.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain

import torch
from torch import Tensor, nn

from attacker.inversion import InversionOptions
from attacker.inversion.attempt import Tick, attempt, polish
from attacker.inversion.coarse import CoarseGradients
from attacker.inversion.objective import lay_out
from attacker.inversion.pooling import Sharpness, SoftenedPooling
from attacker.inversion.spread import in_parallel
from vfl.models.layers import representation

CHUNK = 32
CLOSE, CLEAR = 0.1, 0.5
"""A row may be the sample's if what was predicted is so near to it, relative, and so much nearer than to others."""
PARTNERS = 4
"""Rounds that are taken together at most, the nearest: more cost time, and two are often enough."""
ATTEMPTS = 2


@dataclass(frozen=True)
class Sighting:
    """An h of a person's slice at a worker, in one of the rounds."""

    at: int
    worker: int
    h: Tensor
    person: int


@dataclass
class Sightings:
    """All of them, and which were tried together."""

    all: list[Sighting] = field(default_factory=list)
    tried: set[frozenset[int]] = field(default_factory=set)

    def follow(self, place: Tensor) -> None:
        """Follow people who became one: `place` says who each of them is now."""
        self.all = [replace(one, person=int(place[one.person])) for one in self.all]

    def groups(
        self, worker: int, open_: Tensor, predict: Callable[[int, Tensor], Tensor], may_be: Callable[[int, int], bool]
    ) -> Iterator[list[int]]:
        """Yield sightings (their places) that may be of one slice of an open person (people,), not tried before.

        `predict` has the h (people, inputs) that some people would have in a round; `may_be` says if nothing speaks
        against two people being one.
        """
        own = [n for n, one in enumerate(self.all) if one.worker == worker and bool(open_[one.person])]
        people = torch.tensor(sorted({self.all[n].person for n in own}), dtype=torch.long)
        nearest: dict[int, list[tuple[float, int]]] = {int(person): [] for person in people}
        for at in sorted({self.all[n].at for n in own}):
            there = [n for n in own if self.all[n].at == at]
            targets = torch.stack([self.all[n].h for n in there])
            away = torch.cdist(predict(at, people), targets) / targets.norm(dim=1).clamp_min(1e-12)
            for row, person in zip(away, people.tolist(), strict=True):
                if not any(self.all[n].person == person for n in there):
                    first, second = row.argsort()[:2].tolist() if len(row) > 1 else (0, None)
                    clear = second is None or float(row[first]) < CLEAR * float(row[second])
                    if float(row[first]) < CLOSE and clear and may_be(person, self.all[there[first]].person):
                        nearest[person].append((float(row[first]), there[first]))
        for person, others in nearest.items():
            mine = [n for n in own if self.all[n].person == person]
            partners = [n for _, n in sorted(others)]
            for group in (mine + partners[:PARTNERS], mine + partners[:1]):
                key = frozenset(group)
                if len(group) > 1 and key not in self.tried:
                    self.tried.add(key)
                    yield group
                    break


@dataclass(frozen=True)
class SeveralRounds:
    """h(x; parameters) = h for the parameters of several rounds at once, the errors relative to each length."""

    models: Mapping[int, nn.Module]
    """By round."""
    layer: str
    targets: Sequence[Sequence[tuple[int, Tensor]]]
    """Of each sample: rounds and their h."""

    def rows(self, index: Tensor) -> "SeveralRounds":
        """Return the same for some of the samples."""
        return replace(self, targets=[self.targets[n] for n in index.tolist()])

    @cached_property
    def _by_round(self) -> list[tuple[int, Tensor, Tensor, Tensor, Tensor]]:
        """Return for each round the samples in it, which of their rounds it is, their h, and what errors count by."""
        found: dict[int, list[tuple[int, int, Tensor, float]]] = {}
        for sample, own in enumerate(self.targets):
            for slot, (at, h) in enumerate(own):
                weight = 1 / max(float(h.norm()), 1e-20) / len(own) ** 0.5
                found.setdefault(at, []).append((sample, slot, h.float(), weight))
        return [
            (at, torch.tensor([n for n, *_ in each]), torch.tensor([slot for _, slot, *_ in each]),
             torch.stack([h for *_, h, _ in each]), torch.tensor([weight for *_, weight in each])[:, None])
            for at, each in found.items()
        ]  # fmt: skip

    def errors(self, x: Tensor, sharpness: Sharpness) -> Tensor:
        """Return (samples, rounds x inputs), differentiable, max-pooling's gradient softened."""
        errors = x.new_zeros(len(x), max(map(len, self.targets)), len(self.targets[0][0][1]))
        for at, samples, slots, h, weight in self._by_round:
            soft = sharpness[samples] if isinstance(sharpness, Tensor) else sharpness
            with SoftenedPooling(soft), CoarseGradients():
                found = representation(self.models[at], self.layer, x[samples])
            errors[samples, slots] = (found - h) * weight
        return errors.flatten(1)

    def residuals(self, x: Tensor) -> Tensor:
        """Return each sample's error."""
        with torch.no_grad():
            errors: Tensor = self.errors(x, torch.inf).norm(dim=1)
        return errors


def invert_several(
    goal: SeveralRounds, x: Tensor, *, seed: int, options: InversionOptions, progress: Callable[[int, int], None]
) -> tuple[Tensor, Tensor]:
    """Return slices that explain all of their rounds' h, from what there is of them, and how far they are from that."""
    parts = torch.arange(len(x)).split(CHUNK)
    jobs = [partial(_inverted, goal.rows(part), x[part], part, seed=seed, options=options) for part in parts]
    found, residual, done = x.clone(), torch.full((len(x),), torch.inf), 0
    with closing(in_parallel(jobs, torch.get_num_threads())) as looks:
        for number, (moved, left) in chain.from_iterable(looks):
            found[parts[number]], residual[parts[number]] = moved, left
            done += len(moved)
            progress(done, len(x))
    return found, residual


def _inverted(
    goal: SeveralRounds, x: Tensor, samples: Tensor, tick: Tick, *, seed: int, options: InversionOptions
) -> tuple[Tensor, Tensor]:
    # copies: the hook that catches the representation must not meet that of another thread
    needed = {at for own in goal.targets for at, _ in own}
    models = {at: copy.deepcopy(goal.models[at]).float() for at in needed}
    layout = {lay_out(model, goal.layer, x) for model in models.values()}.pop()  # all of one architecture
    goal, x = replace(goal, models=models), x.to(memory_format=layout)
    found, residual = polish(goal, x, options, tick)
    for number in range(ATTEMPTS):
        wrong = (residual > options.acceptable).nonzero()[:, 0]
        if len(wrong):
            again, left = attempt(
                goal.rows(wrong), found[wrong], samples[wrong], number=number, seed=seed, options=options, tick=tick
            )
            better = left < residual[wrong]
            found[wrong[better]], residual[wrong[better]] = again[better], left[better]
    return found, residual
