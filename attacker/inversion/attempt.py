"""One attempt at a chunk of samples: where it starts, how it searches, and the way down from there."""

import torch
from torch import Tensor

from attacker.inversion.objective import Objective
from attacker.inversion.options import InversionOptions
from attacker.inversion.parallel import Tick
from attacker.inversion.polish import polish
from attacker.inversion.search import Anneal, search
from vfl.seeds import generator


def attempt(
    objective: Objective, best: Tensor, samples: Tensor, number: int, seed: int, options: InversionOptions, tick: Tick
) -> tuple[Tensor, Tensor]:
    """Return data and residuals of attempt number 0, 1, …; `best` (samples, *shape) is what there is so far."""
    middle = best if repairs(number) else torch.full_like(best, 0.5)
    noise = torch.stack([_noise(seed, int(sample), number, best.shape[1:]) for sample in samples])
    start = middle + options.noise * noise.to(best.device)
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
