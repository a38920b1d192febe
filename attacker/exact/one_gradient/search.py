"""The search for all samples: each round by its own gradient, then again with what others showed of its samples."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacker.exact.choice import Choice
from attacker.exact.one_gradient.batch import Batch, Present, Row, solve_batch
from attacker.exact.one_gradient.jointly import invert_batch
from attacker.exact.one_gradient.kept import Kept
from attacker.exact.one_gradient.names import Names, made_up, names_of
from attacker.exact.one_gradient.people import SAME, People
from attacker.exact.one_gradient.presence import Presence, namesakes, twins
from attacker.exact.one_gradient.sightings import Sighting, Sightings
from attacker.exact.rays import Known
from attacker.exact.step_three import Inverted, step_three
from attacker.interface import Progress
from attacker.inversion import InversionOptions
from attacker.inversion.values import on_levels
from vfl.device import one_thread
from vfl.maths.loss import is_known
from vfl.models.whole import WholeModel, known_model
from vfl.observation import Setting
from vfl.seeds import generator

ROOM = 1.2
"""By how much an h that is not zero must outnumber a slice's values to determine them."""
UNSURE = 0.02
"""The residual that stands for that of a slice which explains its h, and is not the only one that does."""
NEAR = 0.05
"""The residual from which on a slice says nothing of the sample: what it was made from is no sample's h."""


@dataclass
class Search:
    """What is known so far."""

    setting: Setting
    choice: Choice
    kept: Kept
    inversion: InversionOptions | None
    trusts: bool
    """Whether the indices are the workers' own, too."""
    people: People = field(init=False)
    presence: Presence = field(init=False)
    solved: dict[int, int] = field(default_factory=dict)
    """By round: how many dimensions its known samples had added to its spaces when it was last solved."""
    notes: dict[str, None] = field(default_factory=dict)
    sightings: Sightings = field(default_factory=Sightings)
    _failed: dict[tuple[int, int], list[Tensor]] = field(default_factory=dict)
    """By round and worker: directions that no data explain."""

    def __post_init__(self) -> None:
        acceptable = self.inversion.acceptable if self.inversion else 0.0
        self.people = People.unknown(0, self.setting, self.choice, acceptable)
        self.presence = Presence(self.kept, self.choice, self.setting.samples, self.trusts)

    def look(self, wave: Sequence[int], progress: Progress) -> bool:
        """Solve those of some rounds, which share no index, that promise something new; tell if there was any."""
        self._identify(wave)
        batches: list[tuple[int, Batch]] = []
        with one_thread():
            for done, at in enumerate(wave):
                present = [self._present(at, worker) for worker in range(self.setting.workers)]
                if self._promising(at, present):
                    seen = self.kept.rounds[at]
                    size = len(seen.batch) if self.trusts else None
                    model = self.model(at)
                    batches.append(
                        (at, solve_batch(self.setting, self.choice, seen, model, size=size, present=present))
                    )
                progress("one gradient each", done + 1, len(wave))
        before = self.count()
        for at, batch in batches:
            self.notes.update(dict.fromkeys(batch.notes))
            for row in batch.rows:
                for person in row.people:
                    self.presence.of[at, person] = 1
        self._add([(at, row) for at, batch in batches for row in batch.rows], progress)
        return self.count() > before

    def count(self) -> tuple[int, int]:
        """Return what more of is progress."""
        return int(self.people.sure.sum()), int((self.presence.of != 0).sum())

    @property
    def complete(self) -> bool:
        """Whether every sample is known, and which is which as far as rounds can tell."""
        done = len(self.people) >= self.setting.samples and bool(self.people.sure.all())
        return done and (not self.trusts or bool((self.presence.of != 0).all()))

    def model(self, at: int) -> WholeModel:
        """Return the network of a round."""
        return known_model(self.setting, self.kept.versions[self.kept.rounds[at].version]).eval()

    def _identify(self, wave: Sequence[int]) -> None:
        """Find out who takes part in some rounds, and who is who."""
        if not len(self.people):
            return
        distinctive = self.people.distinctive()
        for at in wave:
            if bool((self.presence.of[at] == 0).any()):
                self.presence.look(at, self.people, distinctive, self.model(at))
        alike = self.people.alike()
        if not self.trusts:
            self.merge(alike.triu(1).nonzero().tolist())
            return
        self.merge(twins(alike, self.presence.of))
        self.merge(namesakes(self.presence.names()))

    def merge(self, groups: Sequence[Sequence[int]]) -> Tensor:
        """Make one of each group of people, unless their slices differ; return who each of the people is then."""
        self.people, place = self.people.merged([group for group in groups if self.people.may_be_one(group)])
        self.presence.merge(place)
        self.sightings.follow(place)
        return place

    def _present(self, at: int, worker: int) -> Present:
        """Return who takes part in a round, with slices at a worker that are exact."""
        of_use = self.people.exact[:, worker] & (not self.choice.jointly)  # alone a slice would have another h
        who = ((self.presence.of[at] == 1) & of_use).nonzero()[:, 0]
        exact = on_levels(self.people.x[worker][who], self.inversion)
        return Present(who, Known(self.people.representations(self.model(at), self.choice, worker, who), exact))

    def _promising(self, at: int, present: Sequence[Present]) -> bool:
        """Tell whether a round was not solved yet, or its known samples now take more out of its mixtures."""
        size = len(self.kept.rounds[at].batch)
        added, complete = 0, self.trusts
        for own, factors in zip(present, self.presence.factors(at), strict=True):
            complete &= len(own.people) == size
            apart = own.known.h / own.known.h.norm(dim=1, keepdim=True).clamp_min(1e-12)
            apart = apart - apart @ factors.left @ factors.left.T
            added += int((torch.linalg.svdvals(apart) > 1e-3).sum()) if len(apart) else 0
        if complete or added <= self.solved.get(at, -1):
            return False
        self.solved[at] = added
        return True

    def _add(self, rows: Sequence[tuple[int, Row]], progress: Progress) -> None:
        """Invert what is new in some rounds."""
        place = self.merge([sorted(row.people) for _, row in rows if row.people])  # slices that agree are one's
        wanted: list[tuple[int, Row, dict[int, Tensor], int]] = []
        for at, row in rows:
            person = int(place[next(iter(row.people))]) if row.people else -1
            new = {
                worker: h
                for worker, h in row.h.items()
                if not (person >= 0 and self.people.sure[person, worker]) and not self._fails(at, worker, h)
            }
            if new:
                wanted.append((at, row, new, person))
            elif person >= 0 and is_known(torch.tensor(row.label)):
                self.people.labels[person] = row.label
        if not wanted:
            return
        found = self._invert(wanted, progress)
        for n, (at, _, new, person) in enumerate(wanted):
            for worker, h in new.items():
                if not found.sure[n, worker]:
                    self._failed.setdefault((at, worker), []).append(h / h.norm())
            if not bool((found.residual[n] < NEAR).any()):
                continue
            self.people = self.people.joined(found.take(torch.tensor([n])))
            self.presence.add(at, 1)
            new_one = len(self.people) - 1
            known = [worker for worker in new if bool(found.residual[n, worker] < NEAR)]
            self.sightings.all += [Sighting(at, worker, new[worker], new_one) for worker in known]
            if person >= 0:
                self.merge([[person, new_one]])

    def _fails(self, at: int, worker: int, h: Tensor) -> bool:
        """Tell whether it was tried before, and no data explain it."""
        return any(float(h @ other) > (1 - SAME**2) * float(h.norm()) for other in self._failed.get((at, worker), ()))

    def _invert(self, wanted: Sequence[tuple[int, Row, dict[int, Tensor], int]], progress: Progress) -> People:
        """Return the data of new slices."""
        rounds = self.kept.rounds
        versions = sorted({rounds[at].version for at, *_ in wanted})
        blank = [torch.full((layer.inputs,), torch.nan, dtype=torch.float64) for layer in self.choice.layers]
        h = tuple(
            torch.stack([new.get(worker, nothing) for *_, new, _ in wanted]) for worker, nothing in enumerate(blank)
        )
        inverted = self._jointly(wanted, h, progress) if self.choice.jointly and self.inversion else step_three(
            self.setting, self.choice, list(self.model(wanted[0][0]).bottoms), h, options=self.inversion,
            cells=(), progress=progress, versions=[self.kept.versions[version] for version in versions],
            version_of=torch.tensor([versions.index(rounds[at].version) for at, *_ in wanted]),
        )  # fmt: skip
        none = torch.where(torch.stack([own.isfinite().all(dim=1) for own in h], dim=1), 0.0, torch.nan)
        residual = inverted.residual if inverted else none
        unknown = (torch.full((len(wanted), *box.shape), torch.nan) for box in self.setting.boxes)
        x = inverted.slices if inverted else tuple(unknown)
        for worker, own in enumerate(x):
            own[residual[:, worker] >= NEAR] = torch.nan
            loose = (h[worker] > 0).sum(dim=1) < ROOM * own[0].numel()
            loose &= ~on_levels(own, self.inversion) & (residual[:, worker] < UNSURE)
            residual[loose, worker] = UNSURE
        return People(
            x=x,
            h=h,
            residual=torch.where(residual < NEAR, residual, torch.nan),
            labels=torch.tensor([row.label for _, row, *_ in wanted], dtype=self.people.labels.dtype),
            acceptable=self.people.acceptable,
        )

    def _jointly(
        self, wanted: Sequence[tuple[int, Row, dict[int, Tensor], int]], h: Sequence[Tensor], progress: Progress
    ) -> Inverted:
        """Invert each batch's new slices together, worker by worker."""
        setting, rounds = self.setting, torch.tensor([at for at, *_ in wanted])
        slices = [torch.full((len(wanted), *box.shape), torch.nan) for box in setting.boxes]
        residual = torch.full((len(wanted), setting.workers), torch.nan)
        for done, at in enumerate(rounds.unique().tolist()):
            model, seen = self.model(at), self.kept.rounds[at]
            for worker, (layer, box) in enumerate(zip(self.choice.layers, setting.boxes, strict=True)):
                own = ((rounds == at) & h[worker].isfinite().all(dim=1)).nonzero()[:, 0]
                draws = generator(setting.seed, f"step III of round {seen.number}", worker)
                if len(own):
                    slices[worker][own], residual[own, worker] = invert_batch(
                        model.bottoms[worker], layer.name, h[worker][own], box.shape,
                        size=max(len(seen.batch), len(own)), generator=draws,
                    )  # fmt: skip
            progress("step III", done + 1, len(rounds.unique()))
        return Inverted(tuple(slices), residual, self.people.acceptable)

    def names(self) -> Names:
        """Tell which sample each person is."""
        rounds, samples = self.kept.rounds, self.setting.samples
        self._identify(range(len(rounds)))
        if not self.trusts:
            return made_up(self.people, {rounds[at].number: self.presence.of[at] == 1 for at in self.solved}, samples)
        batches = {seen.number: seen.batch for seen in rounds}
        return names_of(self.people, self.presence.of, batches, samples=samples, labels=self.setting.labels)
