"""The running attack: rounds in as they come, representations and labels out, then the data (step III)."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from attacker.certificate import Evidence
from attacker.exact.choice import Choice
from attacker.exact.collect import Rounds
from attacker.exact.moving.recover import recover_moving
from attacker.exact.moving.trail import Trails
from attacker.exact.notes import notes_on_certificates, notes_on_gradients, notes_on_models, notes_on_rounds
from attacker.exact.step_three import Inverted, step_three
from attacker.exact.steps12.cells import Cell, cells_of
from attacker.exact.steps12.methods import FirstSteps
from attacker.exact.steps12.residual import UNSURE
from attacker.exact.steps12.solve import Solved
from attacker.exact.workers.labels import NOTE, Joined, Network, by_labels, join_workers, unjoined
from attacker.interface import Progress, Recovery
from attacker.inversion import LATE, InversionOptions
from attacker.inversion.values import prior
from vfl.device import one_thread
from vfl.errors import UserError
from vfl.models.whole import WholeModel, known_model
from vfl.observation import ModelTensors, Observation, Setting
from vfl.recovery import CERTIFIED

FEW = 0.02
"""The share of all slices that may stay together without rounds after a warm-up being looked at: that takes longer."""


class ExactAttack:
    """Collects rounds, solves, inverts."""

    def __init__(
        self,
        setting: Setting,
        choice: Choice,
        inversion: InversionOptions | None,
        *,
        beside: "ExactAttack | None" = None,
    ) -> None:
        """Begin; an attack `beside` another one sees the same rounds, and leaves keeping the evidence to it."""
        self._setting, self._choice, self._inversion = setting, choice, inversion
        self._rounds = Rounds(setting, choice)
        self._parameters: ModelTensors | None = None
        self._version = -1
        self._trails = None if setting.frozen else Trails(setting, choice)
        """While parameters move; None once there is no need for it."""
        self._evidence: Evidence
        self._collects = beside is None or beside._choice.layers != choice.layers
        self._evidence = Evidence(setting, choice.layers) if beside is None or self._collects else beside._evidence
        self.explained = 0
        """How many slices' pairs of h and v explain their gradients, by the last recovery from frozen rounds."""

    def observe(self, observation: Observation) -> None:
        """Reduce one round to what is needed of it."""
        if self._parameters is None:
            self._parameters, self._version = observation.parameters, observation.version
        if self._collects:
            self._evidence.add(observation)
        with one_thread():
            if self._trails:
                self._trails.add(observation)
            if observation.version != self._version:
                return
            self._rounds.add(observation)
            if self._trails and self._rounds.twice and self._rounds.parted:
                self._trails = None  # a warm-up: its frozen rounds tell everything

    @property
    def slices(self) -> int:
        """Return how many slices there are to recover."""
        return self._setting.samples * self._setting.workers

    def without_step_three(self) -> "ExactAttack":
        """Return the same attack on the same rounds, which ends with the representations."""
        shorter = copy(self)
        shorter._inversion = None
        return shorter

    @property
    def _known(self) -> Tensor | None:
        """Return the labels that the coordinator has."""
        return None if self._setting.labels is None else torch.tensor(self._setting.labels)

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
        options = self._inversion or InversionOptions()
        # what is stuck there is so because its h is off: late attempts, made for hard data, are no help
        options = options.model_copy(update={"attempts": min(LATE, options.attempts)})
        return recover_moving(
            self._setting, self._choice, trails, evidence=self._evidence, options=options, progress=progress
        )

    def _from_frozen(self, progress: Progress) -> Recovery:
        """Recover from the rounds with the first parameters."""
        assert self._parameters is not None
        cells = cells_of(self._rounds.batches, self._setting.samples)
        self._check(cells)
        known = known_model(self._setting, self._parameters).eval()
        bottoms = list(known.bottoms)
        first_steps = FirstSteps(self._setting, self._choice, self._rounds)
        solved, unexplained = first_steps.solve(cells, bottoms, progress)
        if self._choice.method != "subspaces":
            cells = [Cell((n,), ()) for n in range(self._setting.samples)]
        around = Network.of(self._setting, self._choice.layers, known).bypassed()
        early = self._invert(cells, bottoms, [own.h for own in solved], progress) if any(around) else None
        with one_thread():
            joined = self._join(cells, solved, known, around=around, early=early)
        groups, known_labels = self._arbitrary(cells), self._known
        if known_labels is not None:
            joined, groups = by_labels(cells, joined, known_labels)
        residual = torch.stack([own[order] for own, order in zip(unexplained, joined.orders, strict=True)], dim=1)
        residual = torch.fmax(residual, joined.misfits)
        self.explained = int((residual <= UNSURE).sum())
        found = [own.h[order] for own, order in zip(solved, joined.orders, strict=True)]
        inverted = early.reordered(joined.orders) if early else self._invert(cells, bottoms, found, progress)
        certificates = self._certify(inverted, joined.labels)
        by = self._choice.method.replace("_", " ")
        return Recovery(
            slices=inverted.slices if inverted else None,
            representations=tuple(h.float() for h in found),
            layers=tuple(layer.name for layer in self._choice.layers),
            labels=joined.labels,
            cells=groups,
            certificates=certificates,
            rounds=tuple(self._rounds.numbers),
            used=(
                "indices",
                "parameters",
                "gradients",
                *(() if known_labels is None else ("labels",)),
                *prior(self._setting, self._choice.layers, self._inversion),
            ),
            notes=(
                f"The attack split each batch's gradients into those of its samples, by {by}.",
                *((f"{self._choice.remark}.",) if self._choice.remark else ()),
                *notes_on_gradients(cells, residual, self._rounds, solved),
                *notes_on_models(self._setting, self._choice, bottoms, residuals=residual, inverted=inverted),
                *notes_on_rounds(self._choice, residual, self._rounds.noisy),
                *notes_on_certificates(certificates, self._evidence),
                *joined.notes,
                *(() if known_labels is None else (NOTE,)),
            ),
        )

    def _certify(self, inverted: Inverted | None, labels: Tensor) -> Tensor | None:
        """Hold the data against all rounds."""
        return None if inverted is None else self._evidence.certify(inverted.slices, labels)

    def _join(
        self,
        cells: Sequence[Cell],
        solved: Sequence[Solved],
        model: WholeModel,
        *,
        around: Sequence[bool],
        early: Inverted | None,
    ) -> Joined:
        """Put the workers' candidates side by side; where data go past the layer that takes the data themselves."""
        if not all(layer.bias for layer in self._choice.layers):
            return unjoined(solved, loss=self._setting.loss)
        if any(around) and early is None:
            return unjoined(
                solved,
                "Data go past the attacked layer too, so labels would take step III, which is switched off.",
                loss=self._setting.loss,
            )
        given = None if early is None else [x if past else None for x, past in zip(early.slices, around, strict=True)]
        network = Network.of(self._setting, self._choice.layers, model)
        return join_workers(cells, solved, network, given=given, known=self._known)

    def _invert(
        self, cells: Sequence[Cell], bottoms: Sequence[nn.Module], found: Sequence[Tensor], progress: Progress
    ) -> Inverted | None:
        return step_three(
            self._setting, self._choice, bottoms, found,
            options=self._inversion, cells=self._arbitrary(cells), progress=progress,
        )  # fmt: skip

    def _arbitrary(self, cells: Sequence[Cell]) -> tuple[tuple[int, ...], ...]:
        """Return the groups of samples whose order is arbitrary."""
        return tuple(cell.samples for cell in cells if len(cell.samples) > 1)

    def _check(self, cells: Sequence[Cell]) -> None:
        """Refuse rounds that leave samples undetermined."""
        missing = sorted(set(range(self._setting.samples)) - {n for cell in cells for n in cell.samples})
        if missing:
            raise UserError(
                f"attack exact: {len(missing)} of {self._setting.samples} samples were never drawn (sample "
                f"{missing[0]} for one) in {len(self._rounds.batches)} rounds; more rounds are needed"
            )
        once = [n for cell in cells if len(cell.rounds) < 2 for n in cell.samples]
        if once and self._choice.method == "subspaces":
            raise UserError(
                f"attack exact: {len(once)} of {self._setting.samples} samples were drawn only once (sample {once[0]} "
                f"for one) and each must be in two batches; more rounds are needed"
            )


def certified(recovery: Recovery) -> int:
    """Return how many slices are certified."""
    return 0 if recovery.certificates is None else int((recovery.certificates < CERTIFIED).sum())


def _leaves_cells(recovery: Recovery) -> bool:
    """Tell whether more than a few slices of samples that no batch parts are not certified."""
    if recovery.certificates is None:
        return False
    together = [sample for cell in recovery.cells for sample in cell]
    unsure = ~(recovery.certificates[together] < CERTIFIED)
    return int(unsure.sum()) > FEW * recovery.certificates.numel()


class Either:
    """Subspaces, and least squares over the same rounds where these leave samples open: what explains more is kept."""

    def __init__(self, subspaces: ExactAttack, squares: ExactAttack) -> None:
        self._subspaces, self._squares = subspaces, squares

    def observe(self, observation: Observation) -> None:
        """Show both a round."""
        self._subspaces.observe(observation)
        self._squares.observe(observation)

    def recover(self, progress: Progress) -> Recovery:
        """Recover by subspaces; by least squares where that explains more slices' gradients."""
        first = self._subspaces.recover(progress)
        before, slices = self._subspaces.explained, self._subspaces.slices
        if before == slices:
            return first
        trial = self._squares.without_step_three()
        try:
            trial.recover(progress)
        except UserError as error:  # a run that ended early
            note = f"The attack then tried least squares, which gave nothing more: {error}."
            return replace(first, notes=(*first.notes, note))
        after = trial.explained
        if after <= before:
            note = f"Least squares was tried too: it explains {after} of {slices} slices, subspaces {before}."
            return replace(first, notes=(*first.notes, note))
        second = self._squares.recover(progress)
        note = f"Subspaces were tried first: they explain {before} of {slices} slices, least squares {after}."
        return replace(second, notes=(second.notes[0], note, *second.notes[1:]))
