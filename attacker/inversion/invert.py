"""Inversion of representations: chunks of samples, searched and polished, the wrong ones repaired or started again."""

import copy
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.inversion.attempt import Chunk, Problem, repairs
from attacker.inversion.spread import spread
from attacker.inversion.values import InversionOptions
from vfl.device import resolve_device

SAME = (1e-4, 0.05)
"""Two attempts have found the same when they differ by less in mean square, and in residual by less, relative."""


@dataclass(frozen=True)
class Inversion:
    """The data found, (samples, *shape), and |h(x) - h| / |h| of each; NaN where the target was."""

    x: Tensor
    residual: Tensor


def invert(
    model: nn.Module,
    layer: str,
    targets: Tensor,
    shape: tuple[int, ...],
    *,
    seed: int,
    device: str,
    options: InversionOptions,
    progress: Callable[[int, int], None],
    offer: Callable[[Tensor], None] = lambda _: None,
    unit: bool = False,
) -> Inversion:
    """Return data whose representations at the layer are the targets (samples, inputs of the layer).

    With `unit` the targets are directions: representations of any length along them will do. `offer` is shown what
    there is so far whenever it gets better; it must not keep it.
    """
    place = torch.device(resolve_device(device))
    frozen = copy.deepcopy(model).to("cpu", torch.float32).eval().requires_grad_(False)
    problem = Problem(frozen, layer, seed, str(place), unit)
    targets = targets.detach().to("cpu", torch.float32)
    samples = _Samples(torch.full((len(targets), *shape), torch.nan), torch.full((len(targets),), torch.nan))
    undecided = targets.isfinite().all(1).nonzero().flatten()

    for number in range(options.attempts):
        if not len(undecided):
            break
        chunks = undecided.split(options.chunk or chunk_size(shape, place))
        jobs = [Chunk(problem, options, chunk, targets[chunk], samples.x[chunk], number) for chunk in chunks]
        decided = len(targets) - len(undecided)
        wrong = [undecided[:0]]
        with closing(spread(jobs, options)) as looks:
            for ended in looks:
                for at, (x, residual) in ended:
                    wrong.append(samples.improve(chunks[at], x, residual, options, independent=not repairs(number)))
                    decided += len(chunks[at]) - len(wrong[-1])
                if ended:
                    offer(samples.x)
                progress(decided, len(targets))
        undecided = torch.cat(wrong).sort().values
    progress(len(targets), len(targets))
    return Inversion(samples.x, samples.residual)


@dataclass(frozen=True)
class _Samples:
    """The best of each sample so far."""

    x: Tensor
    residual: Tensor

    def improve(
        self, chunk: Tensor, x: Tensor, residual: Tensor, options: InversionOptions, *, independent: bool
    ) -> Tensor:
        """Keep what is better than before; return the samples of the chunk that need another attempt."""
        # the same minimum twice, independently: the target itself is off by that much, and no attempt will do better
        again = (x - self.x[chunk]).flatten(1).square().mean(1) < SAME[0]
        again &= (residual - self.residual[chunk]).abs() < SAME[1] * residual
        better = ~(residual >= self.residual[chunk])
        self.x[chunk[better]], self.residual[chunk[better]] = x[better], residual[better]
        wrong = (self.residual[chunk] > options.acceptable) & (self.residual[chunk] < options.hopeless)
        return chunk[wrong & ~again] if independent else chunk[wrong]


def chunk_size(shape: tuple[int, ...], place: torch.device) -> int:
    """Return how many samples fit the caches of a processor, or fill a graphics card."""
    fitting = min(64, max(8, 16384 // max(1, math.prod(shape))))
    return fitting if place.type == "cpu" else 16 * fitting
