"""CAFE as it runs: four variables with a row for each sample, and what each round does to them."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attacker.cafe import steps
from attacker.cafe.objective import Batch, DataObjective
from attacker.cafe.phases import SHARES, Phases
from attacker.cafe.steps import cosine_decay, scaled
from attacker.cafe.variables import Variables
from attacker.inversion.values import PIXELS
from vfl.device import moved
from vfl.errors import UserError
from vfl.models.layers import FullyConnected
from vfl.observation import Observation, Setting
from vfl.recovery import Recovery
from vfl.seeds import generator

if TYPE_CHECKING:
    from attacker.cafe import Cafe
    from attacker.interface import Progress


class CafeAttack:
    """V, H, the data and the labels, and what each round does to them. Memory grows with the samples alone."""

    def __init__(self, setting: Setting, options: "Cafe", layers: Sequence[FullyConnected]) -> None:
        self._setting, self._options, self._layers = setting, options, layers
        self._objective = DataObjective(setting, [layer.name for layer in layers], options.terms())
        thresholds = (options.switch_one, options.switch_two)
        # Without the representations' term nothing uses what steps I and II find: all rounds are step III's
        shares = options.shares or SHARES[options.loop] if options.gamma else (0.0, 0.0, 1.0)
        loop = options.loop if options.gamma else "nested"
        self._phases = Phases(loop, setting.rounds, shares, thresholds)
        self.variables = Variables(setting, options, layers, self._objective.device)
        self._earlier: deque[tuple[Tensor, list[Tensor]]] = deque(maxlen=2 * setting.samples)
        """The bias gradients of the last rounds for `replay`: twice as many rounds as there are unknowns."""
        self._random = generator(setting.seed, "cafe replay")
        self._drawn = torch.zeros(setting.samples, dtype=torch.bool)
        self.iterations = [0, 0, 0]
        self._objectives = [torch.zeros((), device=self._objective.device)] * 3

    @property
    def objectives(self) -> list[float]:
        """Return what each step's objective was when it was last taken."""
        return [float(value) for value in self._objectives]

    def observe(self, observation: Observation) -> None:
        """Make one iteration of the steps that are due."""
        batch = self.batch(observation)
        if self._options.scale_v is None and not any(self.iterations):
            self._measure_scale(batch)
        self._drawn[observation.indices] = True

        def counted(number: int, objective: Tensor) -> Tensor:
            self.iterations[number] += 1
            self._objectives[number] = objective
            return objective

        self._phases.iterate(
            lambda _: counted(0, self.step_one(batch)),
            lambda share: counted(1, self.step_two(batch, share)),
            lambda share: counted(2, self.step_three(batch, share)),
        )

    def batch(self, observation: Observation) -> "Round":
        """Bring a round to the device, each tensor once.

        v_n holds 1/K of the sample's gradient; the mean over a short last batch weighs its samples more, so that it is
        scaled for steps I and II.
        """
        engine, uploaded, count = self._objective.engine, observation.gradients, len(observation.indices)
        scale = count / min(self._setting.batch_size, self._setting.samples)
        whole = engine.flat(uploaded) if self._options.alpha else ()
        there = dict(zip(engine.names, whole, strict=False))

        def of_layer(kind: str) -> list[Tensor]:
            names = [(worker, f"{layer.name}.{kind}") for worker, layer in enumerate(self._layers)]
            found = [
                there[name] if name in there else moved(uploaded.bottoms[name[0]][name[1]], engine.device)
                for name in names
            ]
            return found if scale == 1.0 else [one * scale for one in found]

        rows = moved(observation.indices, engine.device)
        return Round(rows, Batch(observation.parameters, whole), of_layer("bias"), of_layer("weight"))

    def _measure_scale(self, batch: "Round") -> None:
        """Let V begin as large as the first round's bias gradient says: each sample has a K-th of it."""
        for v, bias in zip(self.variables.v, batch.biases, strict=True):
            v *= bias.square().mean().sqrt() / min(self._setting.batch_size, self._setting.samples)

    def step_one(self, batch: "Round") -> Tensor:
        """Lines 11 and 12 of Algorithm 1 for every worker."""
        objective = self._move_outputs(batch.rows, batch.biases)
        if self._options.replay:
            self._earlier.append((batch.rows, batch.biases))
            drawn = torch.randint(len(self._earlier), (self._options.replay,), generator=self._random)
            for number in drawn.tolist():
                self._move_outputs(*self._earlier[number])
        return objective

    def _move_outputs(self, rows: Tensor, biases: Sequence[Tensor]) -> Tensor:
        objectives, lr = [], self._options.lr_one
        for v, move, bias in zip(self.variables.v, self.variables.move_v, biases, strict=True):
            objective, gradient, curvature = steps.outputs_objective(v[rows], bias)
            rate = scaled(lr, curvature) if self._options.optimiser_one == "scaled_sgd" else lr
            move.step(v, rows, gradient, rate)
            objectives.append(objective)
        return torch.stack(objectives).sum()

    def step_two(self, batch: "Round", share: float) -> Tensor:
        """Lines 11 and 12 of Algorithm 2 for every worker."""
        rows, curved, lr = batch.rows, self._options.optimiser_two == "scaled_sgd", self._options.lr_two
        if self._options.optimiser_two == "adam":
            lr = cosine_decay(lr, self._options.final_two, share)
        objectives, own = [], self.variables
        for v, h, move, weight in zip(own.v, own.h, own.move_h, batch.weights, strict=True):
            objective, gradient, curvature = steps.inputs_objective(h[rows], v[rows], weight, curved)
            move.step(h, rows, gradient, scaled(lr, curvature) if curved else lr)
            objectives.append(objective)
        return torch.stack(objectives).sum()

    def step_three(self, batch: "Round", share: float) -> Tensor:
        """The last two lines of Algorithms 3 and 4."""
        rows = batch.rows
        lr = cosine_decay(self._options.lr_three, self._options.final_three, share)
        wanted = [h[rows] for h in self.variables.h] if self._options.gamma else []
        mean = [x[rows] for x in self.variables.x] if self._options.consistency else []
        objectives = []
        for guess in self.variables.guesses:
            slices, scores = [x[rows] for x in guess.x], guess.y[rows]
            found = self._objective(batch.whole, slices, scores, wanted=wanted, mean=mean)
            guess.move(rows, found.slices, found.labels, lr=lr, clip=self._options.clip)
            objectives.append(found.objective)
        return torch.stack(objectives).mean()

    def beginning(self) -> Recovery:
        """Return what step III begins with, which is noise: the paper's iteration 0."""
        return Recovery(slices=tuple(x.cpu().clone() for x in self.variables.x), used=())

    def recover(self, progress: "Progress") -> Recovery:
        """Return what the iterations so far have come to."""
        if not bool(self._drawn.any()):
            raise UserError("attack cafe: no round was observed")
        one, two, three = self.iterations
        progress("cafe", max(one, two, three), max(self._setting.rounds, one, two, three))
        unknown = ~self._drawn
        h = [_without(rows, unknown) for rows in self.variables.h]
        slices: tuple[Tensor, ...] | None = None
        if three or (two and all(layer.sees_data for layer in self._layers)):
            slices = tuple(
                of_h.reshape(-1, *box.shape) if layer.sees_data and two else _without(x, unknown)
                for layer, box, x, of_h in zip(self._layers, self._setting.boxes, self.variables.x, h, strict=True)
            )
        labels = self.variables.y.argmax(1).cpu().masked_fill(unknown, -1) if three and self._options.alpha else None
        return Recovery(
            slices=slices,
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
            notes.append("The attack recovered no labels: its option alpha is 0, and then nothing tells them.")
        missing = int((~self._drawn).sum())
        if missing:
            notes.append(f"The attack never drew {missing} samples, so nothing was recovered of them.")
        return notes

    def state(self) -> dict[str, Tensor]:
        """Return all that it has come to, to be kept: with `restore` another goes on as if it had seen the rounds."""
        kept = {name: tensor.to("cpu", copy=True) for name, tensor in self._named().items()}
        for number, (rows, biases) in enumerate(self._earlier):
            kept |= {f"replay.{number}.{part}": one.cpu() for part, one in enumerate((rows, *biases))}
        counts = [*self.iterations, *self._phases.counts]
        return kept | {"counts": torch.tensor(counts), "random": self._random.get_state()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what another attack with the same options on the same setting had come to."""
        for name, tensor in self._named().items():
            tensor.copy_(state[name])
        self.iterations, phases = state["counts"][:3].tolist(), state["counts"][3:].tolist()
        self._phases.go_on(phases)
        self._random.set_state(state["random"])
        for number in range(sum(name.startswith("replay.") for name in state) // (len(self._layers) + 1)):
            rows, *biases = (
                state[f"replay.{number}.{part}"].to(self._objective.device) for part in range(len(self._layers) + 1)
            )
            self._earlier.append((rows, biases))

    def _named(self) -> dict[str, Tensor]:
        self._objectives = [value.clone() for value in self._objectives]  # three of their own, to be copied into
        objectives = {f"objective.{number}": value for number, value in enumerate(self._objectives)}
        return {"drawn": self._drawn, **objectives, **self.variables.tensors()}


@dataclass(frozen=True)
class Round:
    """A round on the attack's device: for each worker the gradients of its first fully connected layer."""

    rows: Tensor
    whole: Batch
    biases: list[Tensor]
    weights: list[Tensor]


def _without(rows: Tensor, unknown: Tensor) -> Tensor:
    """Return a copy on the CPU, with NaN for the samples that no round has touched."""
    copy = rows.detach().cpu().clone()
    copy[unknown] = torch.nan
    return copy
