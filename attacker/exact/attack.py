"""The running attack: rounds in as they come, representations and labels out, then the data (step III)."""

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor, nn

from attacker.exact.certificate import UNSURE, certify
from attacker.exact.choice import Choice
from attacker.exact.collect import Rounds
from attacker.exact.moving.recover import recover_moving
from attacker.exact.moving.trail import Trails
from attacker.exact.notes import notes_on_gradients, notes_on_models, notes_on_rounds
from attacker.exact.step_three import Inverted, step_three
from attacker.exact.steps12.cells import Cell, cells_of
from attacker.exact.steps12.completion import ALL_OUTPUTS, MOST_TURNS, complete
from attacker.exact.steps12.relink import relink
from attacker.exact.steps12.solve import CutOff, Solved, solve
from attacker.exact.steps12.squares import rank_one_residual
from attacker.exact.steps12.threads import one_thread
from attacker.exact.workers.known_labels import NOTE, by_labels
from attacker.exact.workers.labels import Joined, join_workers, unjoined
from attacker.exact.workers.tails import bypassed, cut_off
from attacker.interface import Progress, Recovery
from attacker.inversion import InversionOptions
from attacker.least_squares import leaks, representations
from vfl.errors import UserError
from vfl.maths.least_squares import pseudo_inverse
from vfl.models.whole import known_model
from vfl.observation import ModelTensors, Observation, Setting

FEW = 0.02
"""The share of all slices that may stay together without rounds after a warm-up being looked at: that takes longer."""


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
            if self._trails and self._rounds.twice and self._rounds.parted:
                self._trails = None  # a warm-up: its frozen rounds tell everything

    def without_step_three(self) -> "ExactAttack":
        """Return the same attack on the same rounds, which ends with the representations."""
        shorter = copy(self)
        shorter._inversion = None
        return shorter

    @property
    def _known(self) -> Tensor | None:
        """Return the labels that the coordinator has; None too where it is not known which sample is which."""
        labels = self._setting.labels
        return None if labels is None or self._relinks else torch.tensor(labels)

    @property
    def _per_epoch(self) -> int:
        return -(-self._setting.samples // self._setting.batch_size)

    def recover(self, progress: Progress) -> Recovery:
        """Steps I and II, then III."""
        if self._parameters is None:
            raise UserError("attack exact: no round was observed")
        if self._trails and not self._rounds.twice:
            return self._followed(self._trails, progress)
        frozen = self._from_frozen(progress)
        if not self._trails or not self._trails.enough or not self._sees_data or not _leaves_cells(frozen):
            return frozen
        # A warm-up that leaves samples together which nothing parts: what came after it may, as data do not move
        return max(frozen, self._followed(self._trails, progress), key=certified)

    @property
    def _sees_data(self) -> bool:
        return all(layer.sees_data for layer in self._choice.layers)

    def _followed(self, trails: Trails, progress: Progress) -> Recovery:
        """Recover from rounds with different parameters."""
        if self._inversion is None and not self._sees_data:
            raise UserError("attack exact with step_three false: the parameters moved, and step III is how it follows")
        return recover_moving(self._setting, self._choice, trails, self._inversion or InversionOptions(), progress)

    def _from_frozen(self, progress: Progress) -> Recovery:
        """Recover from the rounds with the first parameters."""
        assert self._parameters is not None
        if self._relinks and len(self._rounds.batches) == 2 * self._per_epoch:
            with one_thread():
                self._rounds.batches = relink(self._rounds.factors, self._per_epoch)
        cells = cells_of(self._rounds.batches, self._setting.samples)
        self._check(cells)
        known = known_model(self._setting, self._parameters).eval()
        bottoms, top = list(known.bottoms), known.top
        if self._choice.method != "subspaces":
            by_squares = self._choice.method == "least_squares"
            solved, certificates = (self._least_squares if by_squares else self._completed)(progress)
            cells = [Cell((n,), ()) for n in range(self._setting.samples)]
        else:
            with one_thread():
                solved, certificates = self._subspaces(cells, bottoms, progress)
        around = self._around(bottoms)
        early = self._invert(cells, bottoms, [own.h for own in solved], progress) if any(around) else None
        with one_thread():
            joined = self._join(cells, solved, bottoms, top, around, early)
        groups, told = self._arbitrary(cells), self._known
        if told is not None:
            joined, groups = by_labels(cells, joined, told)
        certificate = torch.stack([c[order] for c, order in zip(certificates, joined.orders, strict=True)], dim=1)
        certificate = torch.fmax(certificate, joined.misfits)
        found = [own.h[order] for own, order in zip(solved, joined.orders, strict=True)]
        inverted = early.reordered(joined.orders) if early else self._invert(cells, bottoms, found, progress)
        return Recovery(
            slices=inverted.slices if inverted else None,
            representations=tuple(h.float() for h in found),
            layers=tuple(layer.name for layer in self._choice.layers),
            labels=joined.labels,
            cells=groups,
            certificates=certificate,
            rounds=tuple(self._rounds.numbers),
            used=(
                *(() if self._relinks or (self._single and told is None) else ("indices",)),
                "parameters",
                "gradients",
                *(() if told is None else ("labels",)),
            ),
            notes=(
                f"Steps I and II by {self._choice.method.replace('_', ' ')}.",
                *((f"{self._choice.remark}.",) if self._choice.remark else ()),
                *notes_on_gradients(cells, certificate, self._rounds.noisy, solved),
                *notes_on_models(self._setting, self._choice, bottoms, certificate, inverted),
                *notes_on_rounds(self._choice, certificate, self._rounds.noisy),
                *joined.notes,
                *(() if told is None else (NOTE,)),
            ),
        )

    def _around(self, bottoms: Sequence[nn.Module]) -> list[bool]:
        """Tell at which workers data also go past the layer, as in a residual block around it."""
        shapes = [box.shape for box in self._setting.boxes]
        return [
            bypassed(model.double(), layer.name, shape)
            for model, layer, shape in zip(bottoms, self._choice.layers, shapes, strict=True)
        ]

    def _join(
        self,
        cells: Sequence[Cell],
        solved: Sequence[Solved],
        bottoms: Sequence[nn.Module],
        top: nn.Module,
        around: Sequence[bool],
        early: Inverted | None,
    ) -> Joined:
        """Put the workers' candidates side by side; where data go past the layer that takes the data themselves."""
        if not all(layer.bias for layer in self._choice.layers):
            return unjoined(solved)
        if any(around) and early is None:
            return unjoined(
                solved, "Data go past the attacked layer too, so labels would take step III, which is switched off."
            )
        names, shapes = [layer.name for layer in self._choice.layers], [box.shape for box in self._setting.boxes]
        given = None if early is None else [x if past else None for x, past in zip(early.slices, around, strict=True)]
        return join_workers(cells, solved, bottoms, names, shapes, top, given, self._known)

    def _invert(
        self, cells: Sequence[Cell], bottoms: Sequence[nn.Module], found: Sequence[Tensor], progress: Progress
    ) -> Inverted | None:
        arbitrary = self._arbitrary(cells)
        return step_three(self._setting, self._choice, self._inversion, bottoms, found, arbitrary, progress)

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
            own = solve(cells, batches, factors, self._setting.samples, self._blocked(worker, bottoms[worker]))
            solved.append(own)
            certificates.append(certify(batches, factors, own.h, own.v))
            progress("steps I and II", worker + 1, self._setting.workers)
        return solved, certificates

    def _completed(self, progress: Progress) -> tuple[list[Solved], list[Tensor]]:
        found = []
        workers = self._setting.workers
        for worker, (sketch, rounds) in enumerate(zip(self._rounds.sketches, self._rounds.sketched, strict=True)):
            layer = self._choice.layers[worker]
            gradients = torch.stack([torch.cat([weight, (sketch @ bias)[:, None]], 1) for bias, weight in rounds])

            def report(turn: int, worker: int = worker) -> None:
                progress("steps I and II", worker * MOST_TURNS + turn, workers * MOST_TURNS)

            whole = layer.outputs <= ALL_OUTPUTS
            found.append(complete(self._rounds.batches, self._setting.samples, gradients, whole, report))
        return [solved for solved, _ in found], [certificate for _, certificate in found]

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

    def _blocked(self, worker: int, model: nn.Module) -> CutOff | None:
        """Return what tells where a worker's v must be zero; None where that depends on data not known yet."""
        layer, shape = self._choice.layers[worker], self._setting.boxes[worker].shape
        model = model.double()
        if not bypassed(model, layer.name, shape):
            return lambda h: cut_off(model, layer.name, shape, h)
        if layer.sees_data and layer.bias:
            return lambda h: cut_off(model, layer.name, shape, h, h.reshape(-1, *shape))
        return None

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


def certified(recovery: Recovery) -> int:
    """Return how many slices explain their gradients."""
    assert recovery.certificates is not None
    return int((recovery.certificates <= UNSURE).sum())


def _leaves_cells(recovery: Recovery) -> bool:
    """Tell whether more than a few slices of samples that no batch parts are unknown or unsure."""
    assert recovery.certificates is not None
    together = [sample for cell in recovery.cells for sample in cell]
    unsure = ~(recovery.certificates[together] <= UNSURE)
    return int(unsure.sum()) > FEW * recovery.certificates.numel()
