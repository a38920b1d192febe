"""What is solved together: rounds that share samples, or many single samples with the same parameters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.disaggregate import Problem
from attacker.matching.engine import Engine, Guess
from attacker.matching.objectives import Targets

TOGETHER_BYTES = 128 << 20
"""Gradients of single samples that are solved side by side: more of them no longer fit any cache."""


@dataclass(frozen=True)
class Task:
    """One evaluation of the engine: a batch, or single samples side by side."""

    rows: Tensor
    """The samples' positions in the component."""
    parameters: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    """As uploaded; with a leading axis for single samples."""
    targets: Targets
    each: bool

    def guess(self, engine: Engine, slices: Sequence[Tensor], targets: Tensor) -> Guess:
        """Return what guessed data would have uploaded."""
        run = engine.guess_each if self.each else engine.guess
        return run(self.parameters, slices, targets)

    def flat(self, guess: Guess) -> list[Tensor]:
        """Return a guess's gradients as (problems, entries)."""
        return [gradient.reshape(self.problems, -1) for gradient in guess.gradients]

    @property
    def problems(self) -> int:
        """Return how many independent problems it holds."""
        return len(self.rows) if self.each else 1


@dataclass(frozen=True)
class Component:
    """Samples, and the tasks that tell of them; no other task does."""

    samples: Tensor
    tasks: tuple[Task, ...]

    @property
    def problems(self) -> int:
        """Return how many independent problems it holds."""
        return self.tasks[0].problems


def components(problems: Sequence[Problem], engine: Engine, frozen: bool) -> Iterator[Component]:
    """Yield what is solved together, one after the other, so that the gradients of one are in memory at a time."""
    indices = [problems[at].indices for at in range(len(problems))]
    groups = _connected(indices)
    if frozen and all(len(own) == 1 for own in indices) and all(len(group) == 1 for group in groups):
        yield from _single_samples(problems, engine)
        return
    for group in groups:
        samples = torch.cat([indices[at] for at in group]).unique()
        yield Component(samples, tuple(_batch(problems[at], samples, engine) for at in group))


def _single_samples(problems: Sequence[Problem], engine: Engine) -> Iterator[Component]:
    parameters = engine.flat(problems[0].parameters)
    size = sum(tensor.numel() for tensor in parameters) * 4
    together = max(1, TOGETHER_BYTES // size)
    for start in range(0, len(problems), together):
        group = [problems[at] for at in range(start, min(start + together, len(problems)))]
        gradients = tuple(map(torch.stack, zip(*(engine.flat(one.gradients) for one in group), strict=True)))
        targets = Targets.of([gradient.flatten(1) for gradient in gradients], depths(engine))
        samples = torch.cat([one.indices for one in group])
        rows = torch.arange(len(group), device=engine.device)
        yield Component(samples, (Task(rows, parameters, gradients, targets, each=True),))


def _batch(problem: Problem, samples: Tensor, engine: Engine) -> Task:
    gradients = engine.flat(problem.gradients)
    targets = Targets.of([gradient.reshape(1, -1) for gradient in gradients], depths(engine))
    rows = torch.searchsorted(samples, problem.indices).to(engine.device)
    return Task(rows, engine.flat(problem.parameters), gradients, targets, each=False)


def depths(engine: Engine) -> Tensor:
    """Return how deep each parameter's layer is in its worker's model and the top model after it, 0 to 1."""
    layers: dict[int, list[str]] = {}
    at = []
    for worker, name in engine.names:
        own = layers.setdefault(worker, [])
        layer = name.rpartition(".")[0]
        if layer not in own:
            own.append(layer)
        at.append((worker, own.index(layer)))
    top = engine.top
    below = max((len(own) for worker, own in layers.items() if worker != top), default=0)
    deep = torch.tensor([place + (below if worker == top else 0) for worker, place in at], dtype=torch.float32)
    return (deep / deep.max().clamp(min=1)).to(engine.device)


def _connected(indices: Sequence[Tensor]) -> list[list[int]]:
    """Group the problems that share samples, directly or through others."""
    group_of: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    for at, own in enumerate(indices):
        met = sorted({group_of[n] for n in own.tolist() if n in group_of})
        merged = [problem for group in met for problem in groups.pop(group)]
        groups[at] = [*merged, at]
        for problem in groups[at]:
            for n in indices[problem].tolist():
                group_of[n] = at
    return sorted(sorted(group) for group in groups.values())
