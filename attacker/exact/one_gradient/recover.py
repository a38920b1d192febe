"""All rounds together: each batch from its own gradient, its data by step III, names from rounds that share samples."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from attacker.certificate import Evidence
from attacker.exact.attack import ExactAttack, certified
from attacker.exact.choice import Choice
from attacker.exact.collect import noisy
from attacker.exact.notes import ALTERED, NOT_RECOVERED, notes_on_certificates, notes_on_models
from attacker.exact.one_gradient.kept import Kept, Seen
from attacker.exact.one_gradient.people import People
from attacker.exact.one_gradient.search import Search
from attacker.exact.one_gradient.several import join_rounds
from attacker.exact.workers.labels import NOTE
from attacker.interface import Progress, Recovery
from attacker.inversion import InversionOptions
from attacker.inversion.values import prior
from vfl.errors import UserError
from vfl.models import build_bottom
from vfl.observation import Observation, Setting

ENOUGH = 0.9
"""The share of slices from which on no other way is tried: that takes its time, and mends a few at best."""


class OneGradient:
    """Collects rounds, solves each by itself, inverts."""

    def __init__(
        self,
        setting: Setting,
        choice: Choice,
        inversion: InversionOptions | None,
        *,
        trust_indices: bool,
        first_round: int = 1,
    ) -> None:
        self._setting, self._choice, self._inversion, self._trusts = setting, choice, inversion, trust_indices
        self._first_round = first_round
        self._kept, self._evidence = Kept(setting, choice), Evidence(setting, choice.layers)

    def observe(self, observation: Observation) -> None:
        """Keep what is needed of a round."""
        if observation.round >= self._first_round:
            self._evidence.add(observation)
            self._kept.add(observation)

    def recover(self, progress: Progress) -> Recovery:
        """Solve rounds until every sample is found, then name them."""
        if not self._kept.rounds:
            raise UserError("attack exact: no round was observed")
        search = Search(self._setting, self._choice, self._kept, self._inversion, self._trusts)
        order = list(waves(self._kept.rounds))
        for wave in order if self._inversion else order[:1]:
            search.look(wave, progress)
            if search.complete:
                break
        more = bool(self._inversion)
        while more and not search.complete:
            # What one round shows is known in all, and takes others out of their mixtures: again, as long as it helps
            more = max([search.look(wave, progress) for wave in order]) or join_rounds(search, progress)
        return self._recovery(search)

    def _recovery(self, search: Search) -> Recovery:
        names, setting = search.names(), self._setting
        people = search.people
        lost = names.person < 0
        nobody = People.unknown(1, setting, self._choice, people.acceptable)
        found = people.joined(nobody).take(torch.where(lost, len(people), names.person))
        known = None if setting.labels is None or not self._trusts else torch.tensor(setting.labels)
        labels = torch.where(lost, setting.loss.unknown(len(lost)), found.labels) if known is None else known
        certain = self._inversion is not None and not self._choice.jointly
        certificates = self._evidence.certify(found.x, labels, batches=names.batches) if certain else None
        one_version = len(self._kept.versions) == 1
        return Recovery(
            slices=found.x if self._inversion else None,
            representations=tuple(h.float() for h in found.h) if one_version else None,
            layers=tuple(layer.name for layer in self._choice.layers) if one_version else None,
            labels=labels,
            cells=names.cells,
            certificates=certificates,
            rounds=tuple(
                seen.number for at, seen in enumerate(self._kept.rounds) if self._trusts or at in search.solved
            ),
            used=(
                *(("indices",) if self._trusts else ()),
                "parameters",
                "gradients",
                *(() if known is None else ("labels",)),
                *prior(setting, self._choice.layers, self._inversion),
            ),
            notes=(
                *self._notes(search, names.cells, int(lost.sum())),
                *notes_on_certificates(certificates, self._evidence),
                *(() if known is None else (NOTE,)),
            ),
        )

    def _notes(self, search: Search, cells: Sequence[Sequence[int]], lost: int) -> Iterator[str]:
        """Yield what there is to say of the search."""
        yield f"The attack split the gradients of {len(search.solved)} rounds, each alone, into those of their samples."
        if self._choice.remark:
            yield f"{self._choice.remark}."
        together = sum(map(len, cells))
        if together:
            yield f"{together} samples come in the same batches as another: which is which is not known."
        if noisy([own for one in self._evidence.rounds for own in one.factors]):
            yield ALTERED
        if lost:
            yield f"{lost} of {self._setting.samples} samples were not recovered: {NOT_RECOVERED}."
        bottoms = [build_bottom(self._setting.model, box.shape, 0, m) for m, box in enumerate(self._setting.boxes)]
        nothing = torch.zeros(0, self._setting.workers)
        yield from notes_on_models(self._setting, self._choice, bottoms, residuals=nothing, inverted=None)
        yield from search.notes


class OrTogether:
    """One gradient each, and rounds together where that leaves many slices open: what certifies more is kept."""

    def __init__(self, alone: OneGradient, together: ExactAttack) -> None:
        self._alone, self._together = alone, together

    def observe(self, observation: Observation) -> None:
        """Show both a round."""
        self._alone.observe(observation)
        self._together.observe(observation)

    def recover(self, progress: Progress) -> Recovery:
        """Recover by one gradient each; by subspaces too if fewer than `ENOUGH` of the slices are found."""
        first = self._alone.recover(progress)
        assert first.slices is not None
        found = torch.stack([part.flatten(1).isfinite().all(dim=1) for part in first.slices])
        if float(found.double().mean()) >= ENOUGH:
            return first
        try:
            second = self._together.recover(progress)
        except UserError as error:  # a run that ended early
            note = f"The attack then tried subspaces, which gave nothing more: {error}."
            return replace(first, notes=(*first.notes, note))
        kept, other, names = first, second, ("one gradient each", "subspaces")
        if certified(second) >= certified(first):
            kept, other, names = second, first, names[::-1]
        note = f"The attack went two ways and kept what certifies more: {names[0]}, {certified(kept)} slices"
        return replace(kept, notes=(*kept.notes, f"{note}; {names[1]}, {certified(other)}."))


def waves(rounds: Sequence[Seen]) -> Iterator[list[int]]:
    """Yield rounds that follow each other and share no index: an epoch, or what comes before an index comes again."""
    wave: list[int] = []
    met: set[int] = set()
    for at, seen in enumerate(rounds):
        own = set(seen.batch.tolist())
        if met & own:
            yield wave
            wave, met = [], set()
        wave.append(at)
        met |= own
    yield wave
