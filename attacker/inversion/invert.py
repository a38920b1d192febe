"""Inversion of representations: chunks of samples, searched and polished, the wrong ones repaired or started again."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
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

LATE, NEARLY = 6, 0.05
"""The attempt from which on only samples with a smaller residual are tried again: others' h may be no sample's."""
SAME = (1e-4, 0.05)
"""Two attempts have found the same when they differ by less in mean square, and in residual by less, relative."""


@dataclass(frozen=True)
class Inversion:
    """The data found, (samples, *shape), and |h(x) - h| / |h| of each; NaN where the target was."""

    x: Tensor
    residual: Tensor


@dataclass(frozen=True)
class Wanted:
    """What one model is to be inverted for: data whose representations at the layer are the targets."""

    model: nn.Module
    layer: str
    targets: Tensor
    """(samples, inputs of the layer)."""
    shape: tuple[int, ...]
    """Of a sample."""
    unit: bool = False
    """Whether targets are directions: representations of any length along them will do."""
    versions: Sequence[Tensors] = ()
    """The parameters, where targets were made with different ones."""
    version_of: Tensor | None = None
    """(samples,): which of them are whose."""


def invert(
    wanted: Wanted, *, seed: int, device: str, options: InversionOptions, progress: Callable[[int, int], None]
) -> Inversion:
    """Return the data of one model."""
    return invert_together([wanted], seed=seed, device=device, options=options, progress=progress)[0]


def invert_together(
    wanted: Sequence[Wanted],
    *,
    seed: int,
    device: str,
    options: InversionOptions,
    progress: Callable[[int, int], None],
    offer: Callable[[Sequence[Tensor]], None] = lambda _: None,
) -> list[Inversion]:
    """Return the data of several models, whose few hard samples are tried again side by side, on all cores.

    `offer` is shown what there is so far whenever it gets better; it must not keep it.
    """
    place = torch.device(resolve_device(device))
    works = [_Work.of(one, seed, str(place)) for one in wanted]
    total = sum(len(one.targets) for one in wanted)
    for number in range(options.attempts):
        parts = [part for work in works for part in work.parts(options.chunk or chunk_size(work.shape, place))]
        if not parts:
            break
        jobs = [work.job(chunk, version, number, options) for work, chunk, version in parts]
        decided = total - sum(len(work.undecided) for work in works)
        wrong: dict[int, list[Tensor]] = {id(work): [work.undecided[:0]] for work in works}
        with closing(spread(jobs, options)) as looks:
            for ended in looks:
                for at, (x, residual) in ended:
                    work, chunk, _ = parts[at]
                    left = work.samples.improve(chunk, x, residual, options, independent=not repairs(number))
                    wrong[id(work)].append(left)
                    decided += len(chunk) - len(left)
                if ended:
                    offer([work.samples.x for work in works])
                progress(decided, total)
        for work in works:
            left = torch.cat(wrong[id(work)]).sort().values
            work.undecided = left if number + 1 < LATE else left[work.samples.residual[left] < NEARLY]
    progress(total, total)
    return [Inversion(work.samples.x, work.samples.residual) for work in works]


@dataclass
class _Work:
    """One model's samples, and what there is of them so far."""

    problem: Problem
    shape: tuple[int, ...]
    targets: Tensor
    start: Tensor
    samples: "_Samples"
    undecided: Tensor
    versions: Sequence[Tensors]
    version_of: Tensor | None

    @classmethod
    def of(cls, wanted: Wanted, seed: int, place: str) -> "_Work":
        """Begin with an estimate where there can be one."""
        frozen = copy.deepcopy(wanted.model).to("cpu", torch.float32).eval().requires_grad_(False)
        targets = wanted.targets.detach().to("cpu", torch.float32)
        x = torch.full((len(targets), *wanted.shape), torch.nan)
        samples, start = _Samples(x, torch.full((len(targets),), torch.nan)), x.clone()
        undecided = targets.isfinite().all(1).nonzero().flatten()
        if len(undecided) and not wanted.unit:
            with one_thread():  # so that the numbers are the same whatever the number of threads
                estimated = estimates(frozen, wanted.layer, targets[undecided], wanted.shape, seed=seed)
            if estimated is not None:
                start[undecided] = estimated
        problem = Problem(frozen, wanted.layer, seed, place, wanted.unit)
        return cls(problem, wanted.shape, targets, start, samples, undecided, wanted.versions, wanted.version_of)

    def parts(self, size: int) -> Iterator[tuple["_Work", Tensor, int]]:
        """Yield its undecided samples in chunks, each of one version of the parameters."""
        for version, group in _by_version(self.undecided, self.version_of).items():
            for chunk in group.split(size) if len(group) else ():
                yield self, chunk, version

    def job(self, chunk: Tensor, version: int, number: int, options: InversionOptions) -> Chunk:
        """Return an attempt at a chunk."""
        best = self.start if number == 0 else self.samples.x
        own = (self.versions or (None,))[version]
        return Chunk(self.problem, options, chunk, self.targets[chunk], best[chunk], number, own)


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
