"""Inversion of representations: chunks of samples, searched and polished, the wrong ones repaired or started again."""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.inversion.attempt import Chunk, Problem, repairs
from attacker.inversion.estimate import estimates
from attacker.inversion.spread import spread
from attacker.inversion.values import InversionOptions
from vfl.device import one_thread, resolve_device
from vfl.observation import Tensors

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
    versions: Sequence[Tensors] = (),
    version_of: Tensor | None = None,
) -> Inversion:
    """Return data whose representations at the layer are the targets (samples, inputs of the layer).

    With `unit` the targets are directions: representations of any length along them will do. `offer` is shown what
    there is so far whenever it gets better; it must not keep it. Where targets were made with different parameters,
    `versions` has these, and `version_of` (samples,) says which are whose.
    """
    place = torch.device(resolve_device(device))
    frozen = copy.deepcopy(model).to("cpu", torch.float32).eval().requires_grad_(False)
    problem = Problem(frozen, layer, seed, str(place), unit)
    targets = targets.detach().to("cpu", torch.float32)
    samples = _Samples(torch.full((len(targets), *shape), torch.nan), torch.full((len(targets),), torch.nan))
    undecided = targets.isfinite().all(1).nonzero().flatten()
    start = samples.x.clone()
    if len(undecided) and not unit:
        with one_thread():  # so that the numbers are the same whatever the number of threads
            estimated = estimates(frozen, layer, targets[undecided], shape, seed=seed)
        if estimated is not None:
            start[undecided] = estimated

    for number in range(options.attempts):
        if not len(undecided):
            break
        size = options.chunk or chunk_size(shape, place)
        groups = _by_version(undecided, version_of)
        parts = [(chunk, version) for version, group in groups.items() for chunk in group.split(size)]
        chunks = [chunk for chunk, _ in parts]
        own, best = versions or (None,), start if number == 0 else samples.x
        jobs = [
            Chunk(problem, options, chunk, targets[chunk], best[chunk], number, own[version])
            for chunk, version in parts
        ]
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


def _by_version(samples: Tensor, version_of: Tensor | None) -> dict[int, Tensor]:
    """Group samples, whose numbers are given, by the parameters of their targets."""
    if version_of is None:
        return {0: samples}
    own = version_of[samples]
    return {version: samples[own == version] for version in own.unique().tolist()}


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
    fitting = min(64, max(8, 49152 // max(1, math.prod(shape))))
    return fitting if place.type == "cpu" else 16 * fitting
