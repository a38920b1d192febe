"""`inverse_network`: the label holder learns the way back from outputs to slices, from samples that it knows."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from attacker.interface import Attack, AttackPlugin, Lack, Progress, Recovery, RefusalError, Setting, attacks
from attacker.outputs.regression import Fit, fit
from attacker.passes import by_passes
from vfl.device import one_thread
from vfl.errors import UserError
from vfl.observation import LabelHolderObservation
from vfl.optimisers.training import LossName
from vfl.seats import SeatKind

NAME = "inverse_network"
LEAST = 10
"""Fewer known samples than this cannot be divided into those to learn from and those to test on."""


@attacks.register(NAME)
class InverseNetwork(AttackPlugin):
    """UIFV (Yang et al. 2024, arXiv 2406.12588, "data passive"): the way back from outputs, learned from known samples.

    The label holder alone, without any worker's parameters: of the first `auxiliary` samples of the run it knows the
    whole, of all others it finds the slices from their outputs.
    """

    seats: ClassVar[tuple[frozenset[SeatKind], ...]] = (frozenset({"label_holder"}),)
    losses: ClassVar[frozenset[LossName]] = frozenset({"cross_entropy", "binary", "squared"})  # it reads no gradient
    weighs: ClassVar[bool] = True
    hidden: int = Field(256, ge=1, description="units of each of the network's two hidden layers")
    steps: int = Field(600, ge=1, description="of gradient descent at the most, for each of five networks")
    passes: int = Field(8, ge=1, description="of each sample's outputs the last so many are looked at")

    def start(self, setting: Setting) -> Attack:
        """Begin, if some samples are known and all slices' places are."""
        if setting.auxiliary < LEAST:
            found = f"auxiliary, which says of how many it knows the whole, is {setting.auxiliary}"
            raise RefusalError(NAME, Lack(f"{LEAST} samples that it knows from elsewhere, at the least", found))
        hidden = next((worker for worker, box in enumerate(setting.boxes) if box.empty), None)
        if hidden is not None:
            raise RefusalError(NAME, Lack("the places of all slices", f"those of worker {hidden}'s are not known"))
        return _Inverse(self, setting)


class _Inverse:
    def __init__(self, options: InverseNetwork, setting: Setting) -> None:
        self._options, self._setting = options, setting
        self._rounds: list[LabelHolderObservation] = []

    def observe(self, observation: LabelHolderObservation) -> None:
        self._rounds.append(observation)

    def recover(self, progress: Progress) -> Recovery:
        if not self._rounds:
            raise UserError("the label holder has seen no output yet: it takes one round at the least")
        setting = self._setting
        whole = setting.held.auxiliary
        if whole is None:
            raise UserError(f"attack.name: {NAME} needs the auxiliary samples themselves, and has got none")
        slices, notes, images = [], [], False
        for worker, box in enumerate(setting.boxes):
            own = setting.held.slices.get(worker)
            if own is not None:
                slices.append(own.float())
                continue
            progress(f"outputs of worker {worker}", worker, len(setting.boxes))
            rows = self._outputs(worker)
            known = box.cut(whole).flatten(1).double()
            found = self._fit(worker, rows, known)
            images = images or len(box.shape) > 1
            slices.append(_put(found.predict(rows), known, box.shape, len(box.shape) > 1))
            notes.append(f"Worker {worker}: {found.sentence}")
        used = ("indices", "outputs", f"{len(whole)} samples known whole")
        held = ("own slice",) if setting.held.slices else ()
        scale = ("pixels between 0 and 1",) if images else ()
        told = tuple(range(len(whole)))
        return Recovery(slices=tuple(slices), told=told, used=(*used, *held, *scale), notes=tuple(notes))

    def _outputs(self, worker: int) -> Tensor:
        """Return a row for each sample, its outputs side by side, each at mean 0 and deviation 1; NaN: none seen."""
        rounds = [(one.indices, one.outputs[worker]) for one in self._rounds]
        passes = by_passes(rounds, self._setting.samples)[-self._options.passes :]
        rows = torch.cat(passes, dim=1)
        mean = rows.nanmean(0)
        spread = (rows - mean).square().nanmean(0).sqrt().clamp(min=1e-12)
        scaled = (rows - mean) / spread
        unseen = scaled.isnan().all(1, keepdim=True)
        return torch.where(unseen, scaled, scaled.nan_to_num(0.0))

    def _fit(self, worker: int, rows: Tensor, known: Tensor) -> Fit:
        there = rows[: len(known)].isfinite().all(1)
        if int(there.sum()) < LEAST:
            seen = f"{int(there.sum())} of {len(known)} known samples"
            raise UserError(f"attack.name: {NAME} has seen outputs of {seen} only; {LEAST} are the least: more rounds")
        classes = None
        if self._setting.labels is not None and not self._setting.loss.of_number:
            classes = torch.tensor(self._setting.labels[: len(known)])[there]
        options, seed = self._options, self._setting.seed + worker
        sizes = (options.hidden, options.steps)
        with one_thread():
            return fit(rows[: len(known)][there], known[there], sizes=sizes, seed=seed, classes=classes)


def _put(found: Tensor, known: Tensor, shape: tuple[int, ...], images: bool) -> Tensor:
    """Return slices: those that are known as they are, the others as they were found."""
    found = found.clamp(0, 1) if images else found
    return torch.cat([known, found[len(known) :]]).reshape(len(found), *shape).float()
