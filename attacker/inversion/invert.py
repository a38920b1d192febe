"""Inversion of representations: chunks of samples, searched and polished, the unfinished ones again."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.inversion.objective import Objective
from attacker.inversion.options import InversionOptions
from attacker.inversion.polish import polish
from attacker.inversion.search import Anneal, search
from vfl.seeds import generator

CHUNKS = {"cpu": 32, "cuda": 512}
"""What fits the caches of a processor, and what fills a graphics card."""


SAME = 1e-5
"""Mean square difference below which two attempts have found the same."""
WARM = None


@dataclass(frozen=True)
class Inversion:
    """The data found, (samples, *shape) in [0, 1], and |h(x) - h| / |h| of each; NaN where the target was."""

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
) -> Inversion:
    """Return data whose representations at the layer are the targets (samples, inputs of the layer)."""
    place = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    known = targets.isfinite().all(1).nonzero().flatten().cpu()
    work = _Work(
        objective=Objective.of(
            _frozen(model, place), layer, targets[known.to(targets.device)].to(place, torch.float32)
        ),
        start=lambda sample, attempt: _start(seed, int(known[sample]), attempt, shape, options.noise),
        options=options,
        progress=progress,
    )
    x = torch.full((len(targets), *shape), torch.nan)
    residual = torch.full((len(targets),), torch.nan)
    x[known], residual[known] = work.run(len(known), shape)
    return Inversion(x, residual)


@dataclass
class _Work:
    """The samples' attempts: which are open, and the best of each."""

    objective: Objective
    start: Callable[[int, int], Tensor]
    options: InversionOptions
    progress: Callable[[int, int], None]

    def run(self, samples: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the best of each sample's attempts and its residual."""
        best = torch.full((samples, *shape), 0.5)
        residual = torch.full((samples,), torch.inf)
        undecided = torch.arange(samples)
        size = self.options.chunk or CHUNKS.get(self.objective.targets.device.type, CHUNKS["cpu"])
        for attempt in range(self.options.attempts):
            left = []
            for chunk in undecided.split(size) if len(undecided) else ():
                x, found = self._attempt(chunk, attempt, best[chunk])
                # the same minimum twice: the target itself is off by that much, and no attempt will do better
                again = (x - best[chunk]).flatten(1).square().mean(1) < SAME
                better = found < residual[chunk]
                best[chunk[better]], residual[chunk[better]] = x[better], found[better]
                left.append(chunk[(residual[chunk] > self.options.acceptable) & ~again])
            undecided = torch.cat(left) if left else undecided
        return best, residual

    def _attempt(self, chunk: Tensor, attempt: int, best: Tensor) -> tuple[Tensor, Tensor]:
        options = self.options
        objective = self.objective.rows(chunk.to(self.objective.targets.device))
        if attempt and WARM:
            x = best + WARM["noise"] * torch.stack([self.start(int(sample), attempt) - 0.5 for sample in chunk])
            anneal = Anneal(WARM["steps"], WARM["lr"], WARM["w"], WARM["s"])
        else:
            x = torch.stack([self.start(int(sample), attempt) for sample in chunk])
            anneal = Anneal(
                options.search_steps * (attempt + 1), options.learning_rate, options.smoothness, options.sharpness
            )
        x = search(objective, x.to(objective.targets.device), anneal, self._tick)
        x, residual = polish(objective, x, options, self._tick)
        return x.cpu(), residual.cpu()

    def _tick(self) -> None:
        self.progress(0, len(self.objective.targets))


def _start(seed: int, sample: int, attempt: int, shape: tuple[int, ...], noise: float) -> Tensor:
    """Return grey with noise of the sample's own, whatever chunk it is in."""
    return 0.5 + noise * torch.randn(shape, generator=generator(seed, f"inversion {attempt}", sample))


def _frozen(model: nn.Module, place: torch.device) -> nn.Module:
    """Return a copy that is only differentiated by its input."""
    return copy.deepcopy(model).to(place, torch.float32).eval().requires_grad_(False)
