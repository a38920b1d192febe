"""`averaging`: least squares over all rounds, none of which need be exact, and what a told attacker makes of them."""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor, nn

from attacker.adaptive.detector import Detector
from attacker.adaptive.own import Own, RankOne, Sums, rank_one
from attacker.adaptive.replay import Kept, fill_in
from attacker.adaptive.sizes import labels_of, unclipped
from attacker.adaptive.step_three import EXACT, invert_inexact
from attacker.adaptive.told import Told
from attacker.adaptive.typical import Typical, typical
from attacker.exact.steps12.solve import Solved
from attacker.exact.workers.labels import Network
from attacker.interface import Attack, AttackPlugin, Progress, Recovery, attacks
from attacker.inversion import InversionOptions
from attacker.inversion.values import prior
from attacker.least_squares import first_layers, undetermined
from attacker.refusal import FROZEN, RefusalError
from attacker.steady import refuse_unsteady
from vfl.device import one_thread
from vfl.errors import UserError
from vfl.maths.least_squares import Gram, batch_matrix
from vfl.models.layers import FullyConnected
from vfl.models.whole import known_model
from vfl.observation import ModelTensors, Observation, Setting


@attacks.register("averaging")
class Averaging(AttackPlugin):
    """The adaptive attacker (this project): more rounds against noise, and what it was told of a worker's defence."""

    told: Told | None = Field(None, description="the kind of defence, as the attacker learnt it: {name: prune}")
    iterations: int = Field(40, ge=1, description="of filling in what a told defence hid, and solving again")
    memory: int = Field(1 << 30, gt=0, description="bytes for what is kept of the rounds, however many there are")
    step_three: bool = Field(True, description="go on from the representations to the data")
    smoothness: float = Field(
        0.4, ge=0, description="weight of roughness in step III for every 1 that h is off, relative"
    )
    inversion: InversionOptions = Field(InversionOptions(), description="the tunables of step III")

    def start(self, setting: Setting) -> Attack:
        """Begin, unless the schedule or the model cannot give the samples away."""
        if not setting.frozen:
            raise RefusalError("averaging", FROZEN)
        lack = undetermined(setting)
        if lack:
            raise RefusalError("averaging", lack)
        refuse_unsteady(setting, "averaging")
        if self.step_three:
            self.inversion.check_engine()
        return AveragingAttack(setting, first_layers(setting, "averaging"), self)


ENOUGH = 4
"""Rounds that are kept for a told attacker, at most, for every sample."""
MOST_DIRECTIONS = 64
"""Of a weight's gradient; more cost time and hold next to nothing of v."""
MOST_ROWS = 16
"""Of a weight's gradient where all of them are gone through again and again."""


class AveragingAttack:
    """Collects rounds, solves, inverts."""

    def __init__(self, setting: Setting, layers: list[FullyConnected], options: Averaging) -> None:
        self._setting, self._layers, self._options = setting, layers, options
        self._names = [layer.name for layer in layers]
        self._most_rounds = min(setting.rounds, ENOUGH * setting.samples)
        self._kind = options.told.kind if options.told else None
        self._clip = options.told is not None and options.told.name == "clip"  # dp's noise hides the factors
        self._replays = self._kind is not None or self._clip
        self._gram = Gram(setting.samples)
        self._detector = Detector(setting.workers)
        self._batches: list[Tensor] = []
        self._sums: list[Sums] = []
        self._kept: list[Kept] = []
        self._typical: list[Typical] = []
        self._power = [0.0] * setting.workers
        self._parameters: ModelTensors | None = None
        self._version = -1

    def observe(self, observation: Observation) -> None:
        """Add one round to the sums; memory does not grow with their number."""
        if self._parameters is None:
            self._begin(observation)
        if observation.version != self._version:
            raise RefusalError("averaging", replace(FROZEN, found=f"they changed before round {observation.round}"))
        with one_thread():
            self._add(observation)

    def recover(self, progress: Progress) -> Recovery:
        """Steps I and II by least squares and rank-one fits, labels, then step III."""
        if self._parameters is None:
            raise UserError("attack averaging: no round was observed")
        if self._gram.rank < self._setting.samples:
            known = f"the {self._gram.rounds} rounds determine {self._gram.rank} of {self._setting.samples} samples"
            raise UserError(f"attack averaging: {known}; more rounds are needed")
        model = known_model(self._setting, self._parameters).eval()
        bottoms = list(model.bottoms)
        fits, solved = [], []
        for worker in range(self._setting.workers):
            own = self._solve(worker, progress)
            fit = rank_one(own.weight, own.bias @ own.directions.T)
            fits.append(fit)
            solved.append(self._told_apart(worker, own, fit))
            progress("steps I and II", worker + 1, self._setting.workers)
        with one_thread():
            labels = labels_of(solved, Network.of(self._setting, self._layers, model))
        told, step_three = self._options.told, self._options.inversion if self._options.step_three else None
        assumed = prior(self._setting, self._layers, step_three)
        return Recovery(
            slices=self._step_three(bottoms, fits, solved, progress),
            representations=tuple(own.h.float() for own in solved),
            layers=tuple(self._names),
            labels=labels,
            used=("indices", "parameters", "gradients", *(("the defence's kind",) if told else ()), *assumed),
            notes=tuple(self._notes(fits, solved)),
            altered=self._detector.shares,
        )

    def _add(self, observation: Observation) -> None:
        gradients = observation.gradients
        self._detector.look(len(observation.indices), gradients.bottoms, gradients.top, self._names)
        if self._replays and len(self._batches) >= self._most_rounds:
            return
        self._gram.add(observation.indices)
        if self._replays:
            self._batches.append(observation.indices.clone())
        for worker, name in enumerate(self._names):
            own = gradients.bottoms[worker]
            weight, bias = own[f"{name}.weight"].detach().cpu(), own[f"{name}.bias"].detach().cpu()
            self._power[worker] += float(bias.double().square().sum())
            if self._replays:
                self._kept[worker].add(weight, bias, self._kind.limit if self._kind else lambda _tensor: 0.0)
            else:
                self._sums[worker].add(observation.indices, weight, bias)

    def _begin(self, observation: Observation) -> None:
        self._parameters, self._version = observation.parameters, observation.version
        model = known_model(self._setting, self._parameters).eval()
        self._typical = typical(self._setting, list(model.bottoms), model.top, self._names)
        for layer, made_up in zip(self._layers, self._typical, strict=True):
            count = self._directions(layer)
            if self._replays:
                self._kept.append(Kept(made_up.strongest(count), layer.outputs))
            else:
                self._sums.append(Sums(self._setting.samples, made_up.leading(count), layer.inputs))

    def _directions(self, layer: FullyConnected) -> int:
        """Return how many directions of a weight's gradient fit into memory: all workers' rounds, one's solution."""
        setting = self._setting
        solution = 3 * 8 * setting.samples * layer.inputs
        rounds = 4 * setting.workers * self._most_rounds * layer.inputs
        sums = 8 * setting.workers * setting.samples * layer.inputs
        fitting = self._options.memory // (max(solution, rounds) if self._replays else max(solution, sums))
        return max(2, min(fitting, layer.outputs, MOST_ROWS if self._replays else MOST_DIRECTIONS))

    def _solve(self, worker: int, progress: Progress) -> Own:
        if not self._replays:
            return self._sums[worker].solve(self._gram.matrix)
        kept, matrix = self._kept[worker], batch_matrix(self._batches, self._setting.samples)
        if self._kind:
            done = iter(range(1, self._options.iterations + 1))
            return fill_in(
                kept, matrix, self._kind, iterations=self._options.iterations,
                tick=lambda: progress("filling in", worker * self._options.iterations + next(done),
                                 self._setting.workers * self._options.iterations),
            )  # fmt: skip
        factors = unclipped(kept.products(), matrix)
        inverse = torch.linalg.pinv(matrix)
        return kept.weighed(inverse if factors is None else inverse * factors)

    def _told_apart(self, worker: int, own: Own, fit: RankOne) -> Solved:
        """Return h and v, NaN where no more leaked than what rounding adds up to."""
        v = own.bias + (fit.v - own.bias @ own.directions.T) @ own.directions
        spread = torch.linalg.inv(self._gram.matrix).diagonal() * self._power[worker] / self._gram.rounds
        leaked = v.norm(dim=1) > 32 * torch.finfo(torch.float32).eps * spread.sqrt()
        h = fit.h.clamp_min(0) if self._typical[worker].non_negative else fit.h
        return Solved(h.masked_fill(~leaked[:, None], torch.nan), v.masked_fill(~leaked[:, None], torch.nan))

    def _step_three(
        self, bottoms: list[nn.Module], fits: list[RankOne], solved: list[Solved], progress: Progress
    ) -> tuple[Tensor, ...] | None:
        slices, setting = [], self._setting
        for worker, (layer, box) in enumerate(zip(self._layers, setting.boxes, strict=True)):

            def step(at: int, of: int, worker: int = worker) -> None:
                done = worker * setting.samples + setting.samples * at // max(1, of)
                progress("step III", done, setting.workers * setting.samples)

            h = solved[worker].h
            if layer.sees_data:
                slices.append(h.float().reshape(-1, *box.shape))
            elif not self._options.step_three:
                return None
            else:
                slices.append(
                    invert_inexact(
                        bottoms[worker], layer.name, h, self._error(fits[worker]), shape=box.shape, seed=setting.seed,
                        device=setting.device, options=self._options.inversion, smoothness=self._options.smoothness,
                        progress=step,
                    )
                )  # fmt: skip
        return tuple(slices)

    def _error(self, fit: RankOne) -> Tensor:
        """Return how far h may be off; where gradients were filled in that does not show before step III."""
        return fit.error.clamp_min(EXACT) if self._kind else fit.error

    def _notes(self, fits: list[RankOne], solved: list[Solved]) -> list[str]:
        told = self._options.told
        notes = [
            f"Least squares over {self._gram.rounds} rounds for {self._setting.samples} samples, "
            + (f"told of {told.name}." if told else "told of no defence.")
        ]
        lost = sum(int(own.h[:, 0].isnan().sum()) for own in solved)
        if lost:
            of = self._setting.samples * self._setting.workers
            notes.append(f"{lost} of {of} slices leaked nothing: their gradients are no larger than rounding.")
        error = torch.cat([fit.error[own.h[:, 0].isfinite()] for fit, own in zip(fits, solved, strict=True)])
        if len(error) and not self._kind:
            likely = f"a relative error of {error.median():.1g} (median)"
            notes.append(f"The noise that is left suggests {likely} in what enters the attacked layer.")
        return notes + [finding.sentence for finding in self._detector.findings]
