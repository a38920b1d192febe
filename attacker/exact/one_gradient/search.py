"""The search for all samples: rounds that hide one are solved, what they show is inverted, the known recognised."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacker.exact.choice import Choice
from attacker.exact.one_gradient.batch import Batch, solve_batch
from attacker.exact.one_gradient.kept import Kept, Seen
from attacker.exact.one_gradient.names import Names, made_up, names_of
from attacker.exact.one_gradient.people import People
from attacker.exact.step_three import step_three
from attacker.exact.steps12.cells import cells_of
from attacker.interface import Progress
from attacker.inversion import InversionOptions
from vfl.device import one_thread
from vfl.maths.factors import Factors, factorize
from vfl.models.whole import WholeModel, known_model
from vfl.observation import Setting


@dataclass
class Search:
    """What is known so far."""

    setting: Setting
    choice: Choice
    kept: Kept
    inversion: InversionOptions | None
    trusts: bool
    """Whether the indices are the workers' own, too."""
    people: People | None = None
    present: dict[int, Tensor] = field(default_factory=dict)
    """By round: which people take part in it, as many as there were when it was looked at."""
    looked: list[Seen] = field(default_factory=list)
    solved: list[int] = field(default_factory=list)
    settled: bool = False
    """Whether a look at rounds that hide something showed nothing new."""
    notes: dict[str, None] = field(default_factory=dict)

    def look(self, wave: Sequence[Seen], progress: Progress) -> None:
        """Look at some rounds that share no index."""
        batches: list[tuple[Seen, Batch]] = []
        with one_thread():
            for done, seen in enumerate(wave):
                if self._hides(seen):
                    size = len(seen.batch) if self.trusts else None
                    batches.append((seen, solve_batch(self.setting, self.choice, seen, self._model(seen), size=size)))
                progress("one gradient each", done + 1, len(wave))
        self.looked += wave
        self.solved += [seen.number for seen, _ in batches]
        if batches and not self._add(batches, progress):
            self.settled = True
        for seen in wave:  # nothing was known before: who was found in a round is there, and nowhere else in the wave
            if self.people is not None and seen.number not in self.present:
                self.present[seen.number] = self.people.born == seen.number

    @property
    def complete(self) -> bool:
        """Whether every sample is known, and which is which as far as rounds can tell."""
        if self.people is None or len(self.people) < self.setting.samples:
            return False
        cells = cells_of([seen.batch for seen in self.looked], self.setting.samples)
        return bool(self.people.sure.all()) and (not self.trusts or len(cells) == self.setting.samples)

    def _model(self, seen: Seen) -> WholeModel:
        return known_model(self.setting, self.kept.versions[seen.version]).eval()

    def _factors(self, seen: Seen) -> list[Factors]:
        return [factorize(weight, bias, len(seen.batch)) for weight, bias in seen.gradients]

    def _hides(self, seen: Seen) -> bool:
        """Tell whether a round has a sample that is not known, or a slice of a known one that is not."""
        if self.people is None:
            return True
        known = len(self.people) >= self.setting.samples and bool(self.people.sure.all())
        if known and not self.trusts:
            return False
        factors = self._factors(seen)
        inside = self.people.members(factors, self._model(seen), self.choice)
        self.present[seen.number] = inside
        hidden = int(inside.sum()) < max(own.rank for own in factors) or not bool(self.people.sure[inside].all())
        return hidden and not known and not self.settled

    def _add(self, batches: Sequence[tuple[Seen, Batch]], progress: Progress) -> bool:
        """Invert what is new, or better, in some rounds."""
        rows: list[tuple[int, int, int]] = []  # of the batch, in it, of the person met again or -1
        for at, (seen, batch) in enumerate(batches):
            who = torch.full((len(batch.labels),), -1)
            if self.people is not None:
                who = self.people.recognised(batch, self._model(seen), self.choice, self.present[seen.number])
            visible = torch.stack([h.isfinite().all(dim=1) for h in batch.h], dim=1)
            for row, person in enumerate(who.tolist()):
                wanted = visible[row] if person < 0 or self.people is None else visible[row] & ~self.people.sure[person]
                if bool(wanted.any()):
                    rows.append((at, row, person))
            self.notes.update(dict.fromkeys(batch.notes))
        if not rows:
            return False
        found = self._invert(batches, rows, progress)
        again = torch.tensor([person for *_, person in rows])
        if self.people is None:
            self.people = found
        else:
            self.people.better(again[again >= 0], found.take((again >= 0).nonzero()[:, 0]))
            self.people = self.people.joined(found.take((again < 0).nonzero()[:, 0]))
        if not self.trusts:  # rounds that claim to share no sample may
            self.people = self.people.take(self.people.distinct())
        return True

    def _invert(
        self, batches: Sequence[tuple[Seen, Batch]], rows: Sequence[tuple[int, int, int]], progress: Progress
    ) -> People:
        """Return the data of some rows of the batches."""
        workers, versions = range(self.setting.workers), sorted({seen.version for seen, _ in batches})
        h = tuple(torch.stack([batches[at][1].h[worker][row] for at, row, _ in rows]) for worker in workers)
        version_of = torch.tensor([versions.index(batches[at][0].version) for at, *_ in rows])
        inverted = step_three(
            self.setting, self.choice, list(self._model(batches[0][0]).bottoms), h, options=self.inversion,
            cells=(), progress=progress, versions=[self.kept.versions[version] for version in versions],
            version_of=version_of,
        )  # fmt: skip
        blank = (torch.full((len(rows), *box.shape), torch.nan) for box in self.setting.boxes)
        return People(
            x=inverted.slices if inverted else tuple(blank),
            h=h,
            residual=inverted.residual if inverted else torch.full((len(rows), len(workers)), torch.nan),
            misfits=torch.stack([batches[at][1].misfits[row] for at, row, _ in rows]),
            labels=torch.stack([batches[at][1].labels[row] for at, row, _ in rows]),
            born=torch.tensor([batches[at][0].number for at, *_ in rows]),
            acceptable=self.inversion.acceptable if self.inversion else 0.0,
        )

    def names(self) -> Names:
        """Tell which sample each person is."""
        assert self.people is not None
        samples, labels = self.setting.samples, self.setting.labels
        if not self.trusts:
            rounds = [seen for seen in self.looked if seen.number in self.solved]
            return made_up(self.people, {seen.number: self._inside(seen, 0) for seen in rounds}, samples)
        inside = [
            torch.cat([self.present[seen.number], self._inside(seen, len(self.present[seen.number]))])
            for seen in self.looked
        ]
        batches = {seen.number: seen.batch for seen in self.looked}
        return names_of(self.people, torch.stack(inside), batches, samples=samples, labels=labels)

    def _inside(self, seen: Seen, first: int) -> Tensor:
        """Tell which people, from the first-th on, take part in a round."""
        assert self.people is not None
        rest = self.people.take(torch.arange(first, len(self.people)))
        if len(rest) == 0:
            return torch.zeros(0, dtype=torch.bool)
        return rest.members(self._factors(seen), self._model(seen), self.choice)
