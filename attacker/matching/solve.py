"""The running attack: rounds in as they come, then guesses moved until their gradients are the uploaded ones.

It solves one component after the other, all seeds of one side by side.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attacker.disaggregate import Collector
from attacker.exact.steps12.cells import cells_of
from attacker.interface import Progress, Recovery, share
from attacker.inversion.values import PIXELS
from attacker.matching import labels as labelling
from attacker.matching import optimisers
from attacker.matching.components import Component, Task, components
from attacker.matching.engine import Engine
from attacker.matching.objectives import Objective
from attacker.matching.regularisers import Regulariser, Situation
from vfl.observation import Observation, Setting
from vfl.seeds import generator


class MatchingAttack:
    """Collects rounds, then matches their gradients."""

    def __init__(self, name: str, setting: Setting, engine: Engine, *, collector: Collector, recipe: "Recipe") -> None:
        self._name, self._setting, self._recipe = name, setting, recipe
        self._engine, self._collector = engine, collector

    def observe(self, observation: Observation) -> None:
        """Keep the round, if it is one to keep."""
        self._collector.observe(observation)

    def recover(self, progress: Progress) -> Recovery:
        """Solve problem after problem."""
        problems = self._collector.problems(progress)
        setting, boxes = self._setting, self._setting.boxes
        x = torch.full((setting.samples, *boxes[0].sample_shape), torch.nan)
        labels = torch.full((setting.samples,), -1)
        values, done, silent = [], 0, 0
        total = len(problems) * self._recipe.iterations
        indices = [problem.indices for problem in problems]
        for number, component in enumerate(components(problems, self._engine, setting.frozen)):
            random = generator(setting.seed, f"guess of {self._name}", number)
            weight = len(component.tasks) if not component.tasks[0].each else component.problems

            def tick(at: int, before: int = done, weight: int = weight) -> None:
                progress("matching gradients", before + weight * at, total)

            solution = _Search(component, self._recipe, setting, self._engine, random=random).run(tick)
            done += weight * self._recipe.iterations
            progress("matching gradients", done, total)
            x[component.samples], labels[component.samples] = solution.x, solution.labels
            share(progress, lambda: Recovery(slices=tuple(box.cut(x).contiguous() for box in boxes)))
            values.append(solution.values)
            silent += sum(int((task.targets.squares.sum(1) == 0).sum()) for task in component.tasks)
        return Recovery(
            slices=tuple(box.cut(x).contiguous() for box in boxes),
            labels=labels,
            used=(*Recovery.used, *((PIXELS,) if self._recipe.clip and len(boxes[0].sample_shape) == 3 else ())),
            rounds=tuple(self._collector.rounds),
            cells=tuple(cell.samples for cell in cells_of(indices, setting.samples) if len(cell.samples) > 1),
            notes=tuple(self._notes(torch.cat(values), silent, int(x.flatten(1).isnan().any(1).sum()))),
        )

    def _notes(self, values: torch.Tensor, silent: int, missing: int) -> list[str]:
        ends = f"the objective, which is 0 where they match, ends at {values.nanmedian():.1e} (the median)"
        notes = [f"The attack searched {len(values)} times for data whose gradients match; {ends}."]
        if silent:
            notes.append(f"In {silent} of {len(values)} searches all gradients are zero, which tells nothing.")
        if missing:
            notes.append(f"{missing} samples were not attacked: they are in no kept round, or beyond attack.samples.")
        return notes


@dataclass(frozen=True)
class Recipe:
    """A rival in parts: what it minimises and how."""

    objective: Objective
    optimiser: optimisers.Name
    lr: float
    iterations: int
    optimise_labels: bool
    regularisers: tuple[tuple[float, Regulariser], ...] = ()
    """Weights and terms; a term with weight 0 is left out."""
    decay: bool = False
    """Whether the step size goes down three times."""
    clip: bool = False
    """Whether pixels are kept within [0, 1]."""
    noise: float = 1.0
    """How far the first guess is from mid-grey (images) or zero (tables)."""
    seeds: int = 1
    """How many first guesses are solved side by side; the best is kept."""
    tolerance: float = 1e-12
    """An objective below this is as good as zero."""
    coupled: bool = False
    """Whether a regulariser looks at the mean over the seeds."""


@dataclass(frozen=True)
class Solution:
    """What came out for a component's samples."""

    x: Tensor
    """(samples, *sample shape)"""
    labels: Tensor
    values: Tensor
    """The objective of each problem at the end."""


class _Search:
    """The variables of a component and the function of them that is minimised.

    The variables are one tensor (seeds, samples, entries): of each sample the flattened data and, if labels are
    optimised, their logits.
    """

    def __init__(
        self, component: Component, recipe: Recipe, setting: Setting, engine: Engine, *, random: torch.Generator
    ) -> None:
        self._component, self._recipe, self._setting, self._engine = component, recipe, setting, engine
        self._sample_shape = setting.boxes[0].sample_shape
        self._entries = torch.Size(self._sample_shape).numel()
        self._image = len(self._sample_shape) == 3
        count = len(component.samples)
        x = recipe.noise * torch.randn(recipe.seeds, count, self._entries, generator=random)
        if self._image:
            x = x + 0.5
        x = self.clipped(x)
        logits = torch.randn(recipe.seeds, count, setting.classes, generator=random)
        x, logits = x.to(engine.device), logits.to(engine.device)
        self.labels: Tensor | None = None
        """(samples,) where they were read off the gradient, -1 where that tells nothing."""
        if recipe.optimise_labels:
            self.start = torch.cat([x, logits], dim=2)
        else:
            self.start = x
            self.labels = self._read_labels(x[0])

    def run(self, tick: Callable[[int], None]) -> Solution:
        """Run the recipe; `tick` is called with the number of iterations so far and may raise."""
        recipe, guess, shape = self._recipe, self.start, self.start.shape
        rows = recipe.seeds * self._component.problems
        optimiser = optimisers.make(recipe.optimiser, recipe.lr, recipe.iterations, recipe.decay)
        for at in range(recipe.iterations):
            values, gradient = self.evaluate(guess)
            moved = optimiser.step(guess.reshape(rows, -1), values.reshape(rows), gradient.reshape(rows, -1))
            guess = self.clipped(moved.reshape(shape))
            tick(at + 1)
            if optimiser.finished or bool((values <= recipe.tolerance).all()):
                break
        return self.solution(optimiser.best(guess.reshape(rows, -1)).reshape(shape))

    def clipped(self, guess: Tensor) -> Tensor:
        """Return the guess with its pixels in range, if the recipe asks for it."""
        if self._recipe.clip and self._image:
            guess[..., : self._entries].clamp_(0, 1)
        return guess

    def evaluate(self, guess: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values (seeds, problems) and their gradient."""
        mean = guess[..., : self._entries].mean(0) if self._recipe.coupled else None
        values, gradients = [], []
        for one in guess:
            leaf = one.detach().requires_grad_()
            value = self._value(leaf, mean)
            gradients.append(torch.autograd.grad(value.sum(), leaf)[0])
            values.append(value.detach())
        return torch.stack(values), torch.stack(gradients)

    def solution(self, guess: Tensor) -> Solution:
        """Return the best seed for each problem."""
        values, _ = self.evaluate(guess)
        best = values.nan_to_num(torch.inf, torch.inf).argmin(0)
        problems = self._component.problems
        by_problem = guess.reshape(len(guess), problems, -1)
        chosen = by_problem[best, torch.arange(problems, device=guess.device)].reshape(guess.shape[1:])
        x = chosen[:, : self._entries].reshape(-1, *self._sample_shape)
        labels = self.labels if self.labels is not None else self._optimised_labels(chosen)
        return Solution(x.cpu(), labels.cpu(), values.gather(0, best[None])[0].cpu())

    def _value(self, leaf: Tensor, mean: Tensor | None) -> Tensor:
        total = leaf.new_zeros(self._component.problems)
        for task in self._component.tasks:
            own = leaf if len(task.rows) == len(leaf) and task.each else leaf[task.rows]
            x = own[:, : self._entries].reshape(-1, *self._sample_shape)
            targets = self._targets(own, task)
            guess = task.guess(self._engine, self._cut(x), targets)
            total = total + self._recipe.objective(task.flat(guess), task.targets)
            consensus = None if mean is None else mean[task.rows].reshape(x.shape)
            situation = Situation(x, targets, guess, task.problems, consensus)
            for weight, term in self._recipe.regularisers:
                if weight:
                    total = total + weight * term(situation)
        return total / len(self._component.tasks)

    def _cut(self, x: Tensor) -> list[Tensor]:
        return [box.cut(x).contiguous() for box in self._setting.boxes]

    def _targets(self, own: Tensor, task: Task) -> Tensor:
        if self.labels is None:
            return own[:, self._entries :].softmax(1)
        known = self.labels[task.rows]
        hot = one_hot(known.clamp(min=0), self._setting.classes).to(own)
        return torch.where(known[:, None] >= 0, hot, torch.full_like(hot, 1 / self._setting.classes))

    def _read_labels(self, x: Tensor) -> Tensor:
        labels = torch.full((len(x),), -1, device=x.device)
        for task in self._component.tasks:
            if task.each or len(task.rows) == 1:
                rows = task.gradients if task.each else tuple(gradient[None] for gradient in task.gradients)
                labels[task.rows] = labelling.one_label_each(self._engine, rows)
                continue
            new = task.rows[labels[task.rows] < 0]  # those of an earlier round keep what it showed
            slices = self._cut(x[task.rows].reshape(-1, *self._sample_shape))
            uniform = x.new_full((len(task.rows), self._setting.classes), 1 / self._setting.classes)
            predicted = task.guess(self._engine, slices, uniform).logits.detach().softmax(1)
            read = labelling.batch_labels(self._engine, task.gradients, predicted)
            labels[new] = _without(read, labels[task.rows])[: len(new)]
        return labels

    def _optimised_labels(self, chosen: Tensor) -> Tensor:
        labels = chosen[:, self._entries :].argmax(1)
        for task in self._component.tasks:
            silent = (task.targets.squares.sum(1) == 0).expand(len(task.rows))
            labels[task.rows[silent]] = -1
        return labels


def _without(read: Tensor, known: Tensor) -> Tensor:
    """Return the labels of a batch without those that are known already, as far as they occur."""
    rest = read.tolist()
    for label in known.tolist():
        if label in rest and label >= 0:
            rest.remove(label)
    return torch.tensor(rest, device=read.device, dtype=read.dtype)
