"""The running attack: rounds in as they come, representations and labels out, then the data (step III)."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from attacker.exact.cells import Cell, cells_of
from attacker.exact.certificate import UNSURE, certify
from attacker.exact.choice import Choice
from attacker.exact.collect import Rounds
from attacker.exact.labels import Joined, join_workers
from attacker.exact.moving.recover import recover_moving
from attacker.exact.moving.trail import Trails
from attacker.exact.relink import relink
from attacker.exact.solve import Solved, solve
from attacker.exact.squares import rank_one_residual
from attacker.exact.tails import cut_off
from attacker.exact.threads import one_thread
from attacker.interface import Progress, Recovery
from attacker.inversion import InversionOptions
from attacker.least_squares import leaks, pseudo_inverse, representations
from vfl.errors import UserError
from vfl.models.whole import known_model
from vfl.observation import ModelTensors, Observation, Setting

ALTERED = 1e-3
"""A median certificate above this is not rounding: somebody changed the gradients."""


class ExactAttack:
    """Collects rounds, solves, inverts."""

    def __init__(
        self,
        setting: Setting,
        choice: Choice,
        single: bool,
        inversion: InversionOptions | None,
        relinks: bool = False,
    ) -> None:
        self._setting, self._choice, self._single, self._inversion = setting, choice, single, inversion
        self._relinks = relinks
        self._rounds = Rounds(setting, choice, single)
        self._parameters: ModelTensors | None = None
        self._version = -1
        self._trails = None if setting.frozen else Trails(setting, choice)
        """While parameters move; None once there is no need for it."""

    def observe(self, observation: Observation) -> None:
        """Reduce one round to what is needed of it."""
        if self._parameters is None:
            self._parameters, self._version = observation.parameters, observation.version
        with one_thread():
            if self._trails:
                self._trails.add(observation)
            if observation.version != self._version:
                return
            if not self._relinks or len(self._rounds.batches) < 2 * self._per_epoch:
                self._rounds.add(observation)
            if self._trails and self._rounds.twice:
                self._trails = None  # a warm-up: its frozen rounds tell everything

    @property
    def _per_epoch(self) -> int:
        return -(-self._setting.samples // self._setting.batch_size)

    def recover(self, progress: Progress) -> Recovery:
        """Steps I and II, then III."""
        if self._parameters is None:
            raise UserError("attack exact: no round was observed")
        if self._trails:
            if self._inversion is None and not all(layer.sees_data for layer in self._choice.layers):
                raise UserError(
                    "attack exact with step_three false: the parameters moved, and step III is how it follows"
                )
            return recover_moving(
                self._setting, self._choice, self._trails, self._inversion or InversionOptions(), progress
            )
        if self._relinks and len(self._rounds.batches) == 2 * self._per_epoch:
            with one_thread():
                self._rounds.batches = relink(self._rounds.factors, self._per_epoch)
        cells = cells_of(self._rounds.batches, self._setting.samples)
        self._check(cells)
        known = known_model(self._setting, self._parameters)
        bottoms, top = list(known.bottoms), known.top
        if self._choice.method == "least_squares":
            solved, certificates = self._least_squares(progress)
            cells = [Cell((n,), ()) for n in range(self._setting.samples)]
        else:
            with one_thread():
                solved, certificates = self._subspaces(cells, bottoms, progress)
        names = [layer.name for layer in self._choice.layers]
        with one_thread():
            joined = join_workers(cells, solved, bottoms, names, [box.shape for box in self._setting.boxes], top)
        certificate = torch.stack([c[order] for c, order in zip(certificates, joined.orders, strict=True)], dim=1)
        certificate = torch.fmax(certificate, joined.misfits)
        found = [own.h[order] for own, order in zip(solved, joined.orders, strict=True)]
        slices = self._step_three(bottoms, found, progress)
        return Recovery(
            slices=slices,
            representations=tuple(h.float() for h in found),
            layers=tuple(names),
            labels=joined.labels,
            cells=self._arbitrary(cells),
            certificates=certificate,
            rounds=tuple(self._rounds.numbers),
            used=("parameters", "gradients")
            if self._single or self._relinks
            else ("indices", "parameters", "gradients"),
            notes=tuple(self._notes(cells, certificate, joined, _alike(solved))),
        )

    def _arbitrary(self, cells: Sequence[Cell]) -> tuple[tuple[int, ...], ...]:
        """Return the groups of samples whose order is arbitrary: all of them where the names are made up."""
        if self._relinks:
            return (tuple(range(self._setting.samples)),)
        return tuple(cell.samples for cell in cells if len(cell.samples) > 1)

    def _subspaces(
        self, cells: Sequence[Cell], bottoms: Sequence[nn.Module], progress: Progress
    ) -> tuple[list[Solved], list[Tensor]]:
        solved, certificates = [], []
        for worker, factors in enumerate(self._rounds.factors):
            batches = self._rounds.batches
            name, shape = self._choice.layers[worker].name, self._setting.boxes[worker].shape
            blocked = partial(cut_off, bottoms[worker].double(), name, shape)
            own = solve(cells, batches, factors, self._setting.samples, blocked)
            solved.append(own)
            certificates.append(certify(batches, factors, own.h, own.v))
            progress("steps I and II", worker + 1, self._setting.workers)
        return solved, certificates

    def _least_squares(self, progress: Progress) -> tuple[list[Solved], list[Tensor]]:
        inverse, rank = pseudo_inverse(self._rounds.batches, self._setting.samples)
        if rank < self._setting.samples:
            raise UserError(
                f"attack exact by least squares: the {len(self._rounds.batches)} rounds determine {rank} of "
                f"{self._setting.samples} samples; more rounds are needed"
            )
        solved, certificates = [], []
        for worker, (sketch, kept) in enumerate(zip(self._rounds.sketches, self._rounds.sketched, strict=True)):
            bias = torch.stack([part for part, _ in kept])
            weight = torch.stack([product for _, product in kept])
            v = inverse @ bias
            h = representations(inverse, v, sketch, weight)
            h[~leaks(inverse, bias, v)] = torch.nan
            solved.append(Solved(h, torch.where(h[:, :1].isfinite(), v, torch.nan)))
            certificates.append(rank_one_residual(inverse, v, sketch, weight, h))
            progress("steps I and II", worker + 1, self._setting.workers)
        return solved, certificates

    def _step_three(
        self, bottoms: list[nn.Module], found: list[Tensor], progress: Progress
    ) -> tuple[Tensor, ...] | None:
        """Return the slices: h itself where the layer sees the data, else by inverting the layers before it."""
        slices = []
        for worker, (layer, box, h) in enumerate(zip(self._choice.layers, self._setting.boxes, found, strict=True)):
            if layer.sees_data:
                slices.append(h.float().reshape(-1, *box.shape))
            elif self._inversion is None:
                return None
            else:
                slices.append(_invert(self._setting, self._inversion, worker, bottoms[worker], layer.name, h, progress))
        return tuple(slices)

    def _check(self, cells: Sequence[Cell]) -> None:
        """Refuse rounds that leave samples undetermined."""
        drawn = sum(len(cell.samples) for cell in cells)
        if drawn < self._setting.samples:
            missing = sorted(set(range(self._setting.samples)) - {n for cell in cells for n in cell.samples})
            raise UserError(
                f"attack exact: {len(missing)} of {self._setting.samples} samples were never drawn (sample "
                f"{missing[0]} for one) in {len(self._rounds.batches)} rounds; more rounds are needed"
            )
        once = [n for cell in cells if len(cell.rounds) < 2 for n in cell.samples]
        if once and not self._single and self._choice.method == "subspaces":
            raise UserError(
                f"attack exact: {len(once)} of {self._setting.samples} samples were drawn only once (sample {once[0]} "
                f"for one) and each must be in two batches; more rounds are needed"
            )

    def _notes(self, cells: Sequence[Cell], certificates: Tensor, joined: Joined, alike: int) -> list[str]:
        notes = [f"Steps I and II by {self._choice.method.replace('_', ' ')}."]
        several = [cell for cell in cells if len(cell.samples) > 1]
        if several:
            notes.append(
                f"{sum(len(c.samples) for c in several)} samples are in {len(several)} cells that no batch parts."
            )
        lost = certificates.isnan()
        if bool(lost.any()):
            notes.append(f"Nothing leaked, or nothing could be parted, for {int(lost.sum())} of {lost.numel()} slices.")
        alone = certificates[[cell.samples[0] for cell in cells if len(cell.samples) == 1]]
        if self._rounds.noisy or bool(alone.nanmedian() > ALTERED):
            notes.append("The gradients look altered: their residuals are far above rounding (a defence?).")
        wrong = int((certificates > UNSURE).sum())
        if wrong:
            notes.append(f"{wrong} slices have a certificate above {UNSURE:g} and are not to be trusted.")
        if alike:
            notes.append(
                f"{alike} slices look like another sample's and no batch parts them: their certificates show that "
                f"such a slice is in their batches, not that it is theirs."
            )
        if not joined.matched:
            notes.append("The top model is not affine, so candidates within cells were not matched across workers.")
        return notes


def _alike(solved: Sequence[Solved]) -> int:
    """Count the slices with an h that others have too and no v of their own."""
    return sum(int((own.h.isfinite().all(1) & own.v.isnan().any(1)).sum()) for own in solved)


def _invert(
    setting: Setting,
    options: InversionOptions,
    worker: int,
    model: nn.Module,
    layer: str,
    h: Tensor,
    progress: Progress,
) -> Tensor:
    """Return the slices with these representations; identical ones are inverted once."""
    from attacker.inversion import invert

    known = h.isfinite().all(dim=1).nonzero()[:, 0]
    slices = torch.full((len(h), *setting.boxes[worker].shape), torch.nan)
    if len(known) == 0:
        return slices
    distinct, which = h[known].float().unique(dim=0, return_inverse=True)
    done = invert(
        model.float(), layer, distinct, setting.boxes[worker].shape, seed=setting.seed, device=setting.device,
        options=options, progress=lambda at, of: progress("step III", *_overall(setting, worker, at / max(of, 1))),
    )  # fmt: skip
    slices[known] = done.x.float().cpu()[which]
    return slices


def _overall(setting: Setting, worker: int, share: float) -> tuple[int, int]:
    """Return how many slices are done and how many there are, given a share of one worker's."""
    return int((worker + share) * setting.samples), setting.workers * setting.samples
