"""One attempt at a chunk of samples: where it starts, how it searches, and the way down from there."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.inversion.objective import Goal, Objective
from attacker.inversion.options import InversionOptions
from attacker.inversion.parallel import Tick
from attacker.inversion.polish import polish
from attacker.inversion.search import Anneal, search
from attacker.inversion.values import nothing_known, start_near
from vfl.observation import Tensors
from vfl.seeds import generator


@dataclass(frozen=True)
class Problem:
    """What all chunks of a model have in common; the model is on the CPU, wherever they are worked on."""

    model: nn.Module
    layer: str
    seed: int
    device: str
    unit: bool = False


@dataclass(frozen=True)
class Chunk:
    """Some samples and what there is of them so far: all that an attempt needs, here or on another machine."""

    problem: Problem
    options: InversionOptions
    samples: Tensor
    targets: Tensor
    best: Tensor
    number: int | None
    """Of the attempt, 0, 1, …; None: no search, on from the best so far."""
    parameters: Tensors | None = None
    """In place of some of the model's own."""

    def __call__(self, tick: Tick) -> tuple[Tensor, Tensor]:
        """Return data and residuals."""
        problem, place = self.problem, torch.device(self.problem.device)
        # a copy: the hook that catches the representation must not meet that of another thread
        model = copy.deepcopy(problem.model)
        if self.parameters is not None:
            model.load_state_dict(dict(self.parameters), strict=False)
        objective = Objective.of(model.to(place), problem.layer, self.targets.to(place), problem.unit)
        best = self.best.to(place)
        if self.number is None:
            x, residual = polish(objective, best, self.options, tick)
        else:
            x, residual = attempt(
                objective, best, self.samples,
                number=self.number, seed=problem.seed, options=self.options, tick=tick,
            )  # fmt: skip
        return x.cpu(), residual.cpu()


def attempt(
    objective: Goal, best: Tensor, samples: Tensor, *, number: int, seed: int, options: InversionOptions, tick: Tick
) -> tuple[Tensor, Tensor]:
    """Return data and residuals of attempt number 0, 1, …; `best` (samples, *shape) is what there is so far."""
    middle = best if repairs(number) else nothing_known(best)
    noise = torch.stack([_noise(seed, int(sample), number, best.shape[1:]) for sample in samples])
    start = middle + start_near(best, options.noise, number < 2) * noise.to(best.device)
    return polish(objective, search(objective, start, _anneal(options, number), tick), options, tick)


def repairs(number: int) -> bool:
    """Tell whether an attempt starts from the best so far, most of which is right, or from grey."""
    return number % 2 == 1


def _noise(seed: int, sample: int, number: int, shape: torch.Size) -> Tensor:
    """Return noise of the sample's own, whatever chunk it is in."""
    return torch.randn(shape, generator=generator(seed, f"inversion attempt {number}", sample))


def _anneal(options: InversionOptions, number: int) -> Anneal:
    """Return how to search: slower with every new start, and gently where there is something to repair."""
    steps = options.search_steps * (1 + number // 2 * 2)
    gentle = 1 / 3 if repairs(number) else 1.0
    return Anneal(steps, gentle * options.learning_rate, gentle * options.smoothness, options.sharpness)
