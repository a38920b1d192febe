"""`cafe`: the paper's attack, three steps of stochastic gradient descent over the rounds."""

from collections import deque
from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from attacker.cafe import steps
from attacker.cafe.steps import DataObjective, Loop, Name, Phases, Weights, cosine_decay, optimiser_for, scaled
from attacker.interface import Attack, AttackPlugin, Progress, Recovery, attacks
from attacker.inversion.values import PIXELS
from attacker.least_squares import first_layers
from attacker.refusal import FROZEN, Lack, RefusalError
from attacker.steady import refuse_unsteady
from vfl.errors import UserError
from vfl.maths.adam import RowAdam
from vfl.models.layers import FullyConnected
from vfl.observation import Observation, Setting
from vfl.seeds import generator

Share = Annotated[float, Field(ge=0)]


@attacks.register("cafe")
class Cafe(AttackPlugin):
    """Jin et al., CAFE: Catastrophic Data Leakage in Vertical Federated Learning, NeurIPS 2021, Algorithms 1 to 4.

    It needs the batch indices, the parameters, all gradients, and a fully connected layer with a bias at every worker.
    One round of the federation is one iteration of the paper. The paper's guarantees are for frozen parameters, K < N,
    and for step II N < d2; with parameters that move each iteration uses those of its own round, and recovers the
    less the faster they move. The defaults are Table 9's for MNIST.
    """

    loop: Loop = Field("single", description="nested: the steps one after the other; single: all in one loop")
    shares: tuple[Share, Share, Share] | None = Field(
        None,
        description="how the rounds are divided among the steps (nested; null: 1, 1, 1), "
        "or when they begin at the latest (single; null: 1, 2, 7)",
    )
    switch_one: float | None = Field(1e-9, ge=0, description="single: step II begins below this F1; null: at once")
    switch_two: float | None = Field(5e-9, ge=0, description="single: step III begins below this F2; null: at once")
    optimiser_one: Name = Field("sgd", description="of step I")
    optimiser_two: Name = Field("adam", description="of step II; step III has Adam")
    lr_one: float = Field(1e-2, gt=0)
    lr_two: float = Field(1e-2, gt=0)
    lr_three: float = Field(1e-2, gt=0)
    final_two: float = Field(0.02, ge=0, le=1, description="what Adam's lr_two falls to along a cosine, as a share")
    final_three: float = Field(1.0, ge=0, le=1, description="the same for lr_three; 1: constant, as in the paper")
    replay: int = Field(
        0,
        ge=0,
        description="beyond the paper: step I again on so many earlier rounds each round; frozen parameters only",
    )
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    epsilon: float = Field(1e-8, gt=0, description="Adam's, in all steps")
    alpha: float = Field(
        1e-2, ge=0, description="weight of the gradients' distance; 0 leaves out all second derivatives"
    )
    beta: float = Field(1e-4, ge=0, description="weight of the total variation")
    gamma: float = Field(1e-3, ge=0, description="weight of the representations' distance")
    xi: float = Field(25.0, ge=0, description="the total variation of a slice below which it costs nothing")
    clip: bool = Field(False, description="keep the guessed data in [0, 1]")
    scale_v: float | None = Field(
        None, gt=0, description="V begins uniform in plus or minus this; null: a K-th of the first bias gradient's size"
    )
    scale_h: float = Field(8e-2, ge=0, description="H begins uniform between 0 and this")

    def start(self, setting: Setting) -> Attack:
        """Begin, unless the batches or the model rule the attack out."""
        if setting.batch_size >= setting.samples > 1:
            same = f"here every batch holds all {setting.samples} samples, so nothing tells them apart"
            raise RefusalError("cafe", Lack("batches that differ", same))
        if self.shares is not None and sum(self.shares) == 0:
            raise UserError("attack cafe: shares are all 0; give at least one step a share of the rounds")
        if self.optimiser_one == "sgd" and self.lr_one * setting.batch_size >= 1:
            raise UserError(
                f"attack cafe: step I diverges, as lr_one {self.lr_one:g} times the batch size {setting.batch_size} is "
                f"not below 1; choose lr_one {0.5 / setting.batch_size:g}, or optimiser_one scaled_sgd"
            )
        if not (self.alpha or self.beta or self.gamma):
            raise UserError("attack cafe: alpha, beta and gamma are all 0, so step III has nothing to go by")
        if self.replay and not setting.frozen:
            raise RefusalError("cafe with replay", FROZEN)
        refuse_unsteady(setting, "cafe")
        return CafeAttack(setting, self, first_layers(setting, "cafe"))


SHARES = {"nested": (1.0, 1.0, 1.0), "single": (1.0, 2.0, 7.0)}
"""Each step T iterations as in Algorithm 3; in the single loop the thresholds may never be met at another scale."""


class CafeAttack:
    """V, H, the data and the labels, and what each round does to them. Memory grows with the samples alone."""

    def __init__(self, setting: Setting, options: Cafe, layers: Sequence[FullyConnected]) -> None:
        self._setting, self._options, self._layers = setting, options, layers
        weights = Weights(options.alpha, options.beta, options.gamma, options.xi)
        self._objective = DataObjective(setting, [layer.name for layer in layers], weights)
        thresholds = (options.switch_one, options.switch_two)
        self._phases = Phases(options.loop, setting.rounds, options.shares or SHARES[options.loop], thresholds)
        self._variables(setting, options)
        self._earlier: deque[tuple[Tensor, list[Tensor]]] = deque(maxlen=2 * setting.samples)
        """The bias gradients of the last rounds for `replay`: twice as many rounds as there are unknowns."""
        self._random = generator(setting.seed, "cafe replay")
        self._drawn = torch.zeros(setting.samples, dtype=torch.bool)
        self.iterations = [0, 0, 0]
        self.objectives = [0.0, 0.0, 0.0]

    def _variables(self, setting: Setting, options: Cafe) -> None:
        n, device = setting.samples, self._objective.device

        def uniform(purpose: str, number: int, shape: Sequence[int], *, low: float = 0.0, high: float = 1.0) -> Tensor:
            random = generator(setting.seed, f"cafe {purpose}", number)
            return torch.rand(n, *shape, generator=random).mul_(high - low).add_(low).to(device)

        scale, high = options.scale_v or 1.0, options.scale_h
        self.v = [uniform("V", m, (of.outputs,), low=-scale, high=scale) for m, of in enumerate(self._layers)]
        self.h = [uniform("H", m, (of.inputs,), high=high) for m, of in enumerate(self._layers)]
        self.x = [uniform("data", m, box.shape) for m, box in enumerate(setting.boxes)]
        self.y = uniform("labels", 0, (setting.classes,))
        adam = (options.betas, options.epsilon)
        self._move_v = [optimiser_for(options.optimiser_one, v, *adam) for v in self.v]
        self._move_h = [optimiser_for(options.optimiser_two, h, *adam) for h in self.h]
        self._move_x = [RowAdam(x, *adam) for x in self.x]
        self._move_y = RowAdam(self.y, *adam)

    def observe(self, observation: Observation) -> None:
        """Make one iteration of the steps that are due."""
        if self._options.scale_v is None and not bool(self._drawn.any()):
            self._measure_scale(observation)
        self._drawn[observation.indices] = True

        def counted(number: int, objective: float) -> float:
            self.iterations[number] += 1
            self.objectives[number] = objective
            return objective

        self._phases.iterate(
            lambda _: counted(0, self._step_one(observation)),
            lambda share: counted(1, self._step_two(observation, share)),
            lambda share: counted(2, self._step_three(observation, share)),
        )

    def _measure_scale(self, observation: Observation) -> None:
        """Let V begin as large as the first round's bias gradient says: each sample has a K-th of it."""
        for worker, (layer, v) in enumerate(zip(self._layers, self.v, strict=True)):
            bias = observation.gradients.bottoms[worker][f"{layer.name}.bias"]
            v *= float(bias.square().mean().sqrt()) / len(observation.indices)

    def _step_one(self, observation: Observation) -> float:
        """Lines 11 and 12 of Algorithm 1 for every worker."""
        rows, scale = self._rows(observation)
        biases = [
            observation.gradients.bottoms[worker][f"{layer.name}.bias"].to(v) * scale
            for worker, (layer, v) in enumerate(zip(self._layers, self.v, strict=True))
        ]
        objective = self._move_outputs(rows, biases)
        if self._options.replay:
            self._earlier.append((rows, biases))
            drawn = torch.randint(len(self._earlier), (self._options.replay,), generator=self._random)
            for number in drawn.tolist():
                self._move_outputs(*self._earlier[number])
        return objective

    def _move_outputs(self, rows: Tensor, biases: Sequence[Tensor]) -> float:
        total, lr = 0.0, self._options.lr_one
        for v, move, bias in zip(self.v, self._move_v, biases, strict=True):
            objective, gradient, curvature = steps.outputs_objective(v[rows], bias)
            rate = scaled(lr, curvature) if self._options.optimiser_one == "scaled_sgd" else lr
            move.step(v, rows, gradient, rate)
            total += objective
        return total

    def _step_two(self, observation: Observation, share: float) -> float:
        """Lines 11 and 12 of Algorithm 2 for every worker."""
        rows, scale = self._rows(observation)
        curved = self._options.optimiser_two == "scaled_sgd"
        lr = self._options.lr_two
        if self._options.optimiser_two == "adam":
            lr = cosine_decay(lr, self._options.final_two, share)
        total = 0.0
        for worker, (layer, h, move) in enumerate(zip(self._layers, self.h, self._move_h, strict=True)):
            weight = observation.gradients.bottoms[worker][f"{layer.name}.weight"].to(h)
            weight = weight if scale == 1.0 else weight * scale
            objective, gradient, curvature = steps.inputs_objective(h[rows], self.v[worker][rows], weight, curved)
            move.step(h, rows, gradient, scaled(lr, curvature) if curved else lr)
            total += objective
        return total

    def _step_three(self, observation: Observation, share: float) -> float:
        """The last two lines of Algorithms 3 and 4."""
        rows, _ = self._rows(observation)
        lr = cosine_decay(self._options.lr_three, self._options.final_three, share)
        moved = self._objective(observation, [x[rows] for x in self.x], self.y[rows], [h[rows] for h in self.h])
        for x, move, gradient in zip(self.x, self._move_x, moved.slices, strict=True):
            move.step(x, rows, gradient, lr)
            if self._options.clip:
                x[rows] = x[rows].clamp_(0.0, 1.0)
        if moved.labels is not None:
            self._move_y.step(self.y, rows, moved.labels, lr)
        return moved.objective

    def _rows(self, observation: Observation) -> tuple[Tensor, float]:
        """Return the batch's rows, and what makes its mean a sum of v_n that are the same in every batch.

        v_n holds 1/K of the sample's gradient; the mean over a short last batch weighs its samples more.
        """
        rows = observation.indices.to(self._objective.device)
        return rows, len(rows) / min(self._setting.batch_size, self._setting.samples)

    def recover(self, progress: Progress) -> Recovery:
        """Return what the iterations so far have come to."""
        if not bool(self._drawn.any()):
            raise UserError("attack cafe: no round was observed")
        one, two, three = self.iterations
        progress("cafe", max(one, two, three), max(self._setting.rounds, one, two, three))
        unknown = ~self._drawn
        h = [_without(rows, unknown) for rows in self.h]
        slices: tuple[Tensor, ...] | None = None
        if three or all(layer.sees_data for layer in self._layers):
            slices = tuple(
                of_h.reshape(-1, *box.shape) if layer.sees_data else _without(x, unknown)
                for layer, box, x, of_h in zip(self._layers, self._setting.boxes, self.x, h, strict=True)
            )
        labels = self.y.argmax(1).cpu().masked_fill(unknown, -1) if three and self._options.alpha else None
        return Recovery(
            slices=slices if two else None,
            representations=tuple(h) if two else None,
            layers=tuple(layer.name for layer in self._layers) if two else None,
            labels=labels,
            used=(*Recovery.used, *((PIXELS,) if three and self._options.clip else ())),
            notes=tuple(self._notes()),
        )

    def _notes(self) -> list[str]:
        ran = ", ".join(
            f"step {name} {count} times" + (f" down to {objective:.1e}" if count else "")
            for name, count, objective in zip(("I", "II", "III"), self.iterations, self.objectives, strict=True)
        )
        notes = [f"CAFE, {self._options.loop} loop: {ran}."]
        if not self.iterations[2]:
            notes.append("Step III never began, so there is no data; more rounds, or larger thresholds, are needed.")
        if not self._options.alpha:
            notes.append("With alpha 0 nothing tells the labels.")
        missing = int((~self._drawn).sum())
        if missing:
            notes.append(f"{missing} samples were never drawn.")
        return notes


def _without(rows: Tensor, unknown: Tensor) -> Tensor:
    """Return a copy on the CPU, with NaN for the samples that no round has touched."""
    copy = rows.detach().cpu().clone()
    copy[unknown] = torch.nan
    return copy
