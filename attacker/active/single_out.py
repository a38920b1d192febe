"""`single_out`: a malicious coordinator's batches of one sample, or batches that differ in one, show rows by name."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from attacker.active.network import Dense, dense_bottoms
from attacker.interface import (
    Attack,
    AttackPlugin,
    Lack,
    Observation,
    Progress,
    Proposal,
    Recovery,
    RefusalError,
    Setting,
    attacks,
)
from vfl.errors import UserError

PARTNERS = 3
"""So many units, or batches with another sample in its place, must agree on a row; twice as many are asked."""
AGREE = 1e-4
"""How near two rows must be to count as the same, relative to their size."""
FAINT = 1e-3
"""Units that show less than this share of the strongest one's gradient are left out: they are rounding."""


@attacks.register("single_out")
class SingleOut(AttackPlugin):
    """Our own, for a malicious coordinator: each sample alone in a batch, or as all that two batches differ in.

    The parameters are the honest ones. A unit of the first layer that is active for one of the samples alone has x as
    the quotient of its weights' and its bias's gradients.
    """

    active: ClassVar[bool] = True
    by: Literal["one", "swap"] = Field("one", description="one: batches of one; swap: one sample of a batch changes")

    def start(self, setting: Setting) -> Attack:
        """Begin, if the first layers see the data themselves."""
        bottoms = dense_bottoms(setting)
        lacks = [bottoms] if isinstance(bottoms, Lack) else []
        if setting.augmented or setting.local_steps > 1:
            lacks.append(Lack("plain gradients of the rows themselves", "the workers augment them, or take steps"))
        if self.by == "swap" and not setting.frozen:
            lacks.append(Lack("parameters that are the same in both batches", "here they move (training.lr)"))
        if self.by == "swap" and setting.samples < setting.batch_size + 2 * PARTNERS:
            lacks.append(Lack(f"{2 * PARTNERS} samples more than a batch has", f"there are {setting.samples}"))
        if lacks or isinstance(bottoms, Lack):
            raise RefusalError("single_out", *lacks)
        return _SinglingOut(self, setting, bottoms)


@dataclass(frozen=True)
class _Batch:
    sample: int
    """The one that it is for."""
    rest: int
    """Batches of the same number differ in that sample alone."""
    indices: Tensor


def _alone(setting: Setting) -> list[_Batch]:
    """Return a batch of each sample alone."""
    return [_Batch(sample, sample, torch.tensor([sample])) for sample in range(setting.samples)]


def _swapped(setting: Setting) -> list[_Batch]:
    """Return batches in which one sample changes, several times the rest that stays, until each was the one."""
    samples, stays = setting.samples, setting.batch_size - 1
    made: list[_Batch] = []
    first = 0
    while first < samples:
        # Of the last ones there may be too few to be each other's partners: some of those before come again.
        start = min(first, samples - 2 * PARTNERS - 1)
        changing = torch.arange(start, min(samples, start + samples - stays))
        rest = torch.cat([torch.arange(start), torch.arange(int(changing[-1]) + 1, samples)])[:stays]
        made += [_Batch(one, first, torch.cat([rest, torch.tensor([one])])) for one in changing.tolist()]
        first = int(changing[-1]) + 1
    return made


class _SinglingOut:
    def __init__(self, options: SingleOut, setting: Setting, bottoms: tuple[Dense, ...]) -> None:
        self._options, self._setting, self._bottoms = options, setting, bottoms
        self._batches = _alone(setting) if options.by == "one" else _swapped(setting)
        self._seen: dict[int, list[Tensor]] = {}
        """By place among the batches: every worker's first layer's gradients, summed over the batch."""
        self._rounds: list[int] = []

    def propose(self, number: int) -> Proposal | None:  # noqa: ARG002
        place = len(self._seen)
        return Proposal(self._batches[place].indices) if place < len(self._batches) else None

    def observe(self, observation: Observation) -> None:
        place = len(self._seen)
        if place == len(self._batches) or not torch.equal(observation.indices, self._batches[place].indices):
            return
        pairs = zip(self._bottoms, observation.gradients.bottoms, strict=True)
        self._seen[place] = [dense.gradients(own) * len(observation.indices) for dense, own in pairs]
        self._rounds.append(observation.round)

    def recover(self, progress: Progress) -> Recovery:
        if not self._seen:
            raise UserError("single_out was shown no round that was played as it proposed")
        setting = self._setting
        slices = [torch.full((setting.samples, *box.shape), torch.nan) for box in setting.boxes]
        certificates = torch.full((setting.samples, len(setting.boxes)), torch.nan)
        for place in self._seen:
            progress("rows", place + 1, len(self._seen))
            sample = self._batches[place].sample
            others = [one for one in self._partners(place) if one in self._seen]
            for worker, whole in enumerate(slices):
                own = self._seen[place][worker]
                if self._options.by == "one":
                    seen = [unit.unsqueeze(0) for unit in _quotients(own)]
                else:  # of one partner alone the units would agree, on a mixture
                    seen = [_quotients(own - self._seen[one][worker]) for one in others]
                row, off = _row(seen)
                if row is not None:
                    whole[sample], certificates[sample, worker] = row.reshape(whole.shape[1:]).float(), off
        chosen = "a batch of one sample" if self._options.by == "one" else "a batch that differs in one sample"
        note = f"The malicious coordinator ordered {chosen} in {len(self._rounds)} rounds, one for each sample."
        used = ("indices", "gradients", "batches of its own choosing")
        rounds = tuple(self._rounds)
        return Recovery(slices=tuple(slices), certificates=certificates, used=used, rounds=rounds, notes=(note,))

    def _partners(self, place: int) -> list[int]:
        """Return the next batches with the same rest, around in a circle."""
        same = [one for one, batch in enumerate(self._batches) if batch.rest == self._batches[place].rest]
        at = same.index(place)
        return [*same[at + 1 :], *same[:at]][: 2 * PARTNERS]


def _quotients(shown: Tensor) -> Tensor:
    """Return what each unit has as its row, if one sample alone makes its gradient."""
    strength = shown[:, -1].abs()
    clear = strength > FAINT * strength.max().clamp(min=1e-30)
    return shown[clear, :-1] / shown[clear, -1:]


def _row(several: list[Tensor]) -> tuple[Tensor | None, float]:
    """Return the row that most others agree on: units of a batch of one, or batches with different other samples.

    Beside another sample a unit that both activate shows a mixture, and one that the other activates alone that one's
    row. Either may come again with a partner like it, so a row that is not seen more often than any other is none.
    """
    if len(several) < PARTNERS or not sum(map(len, several)):
        return None, float("nan")
    rows, whose = torch.cat(several), torch.arange(len(several)).repeat_interleave(torch.tensor([*map(len, several)]))
    apart = torch.cdist(rows, rows) / rows.norm(dim=1, keepdim=True).clamp(min=1e-6)
    with_whom = torch.stack([(apart[:, whose == one] < AGREE).any(dim=1) for one in range(len(several))], dim=1)
    times = with_whom.sum(dim=1)
    best = int(times.argmax())
    rivals = times[apart[best] > 10 * AGREE]
    if times[best] < PARTNERS or (len(rivals) and rivals.max() >= times[best]):
        return None, float("nan")
    return rows[best], float(apart[best][apart[best] < AGREE].max())
