"""The running attack: rounds in as they come, then the rival's recipe on each of the problems they make."""

import torch

from attacker.disaggregate import Collector
from attacker.exact.steps12.cells import cells_of
from attacker.interface import Progress, Recovery, share
from attacker.matching.components import Component, components
from attacker.matching.engine import Engine
from attacker.matching.solve import Recipe, solve
from vfl.observation import Observation, Setting
from vfl.seeds import generator


class MatchingAttack:
    """Collects rounds, then matches their gradients."""

    def __init__(self, name: str, setting: Setting, engine: Engine, collector: Collector, recipe: Recipe) -> None:
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
        indices = [problems[at].indices for at in range(len(problems))]
        for number, component in enumerate(components(problems, self._engine, setting.frozen)):
            random = generator(setting.seed, f"guess of {self._name}", number)
            weight = len(component.tasks) if not component.tasks[0].each else component.problems
            counter = _Counter(progress, done, total, weight)
            solution = solve(component, self._recipe, setting, self._engine, random=random, tick=counter)
            done += weight * self._recipe.iterations
            progress("matching gradients", done, total)
            x[component.samples], labels[component.samples] = solution.x, solution.labels
            share(progress, lambda: Recovery(slices=tuple(box.cut(x).contiguous() for box in boxes)))
            values.append(solution.values)
            silent += _silent(component)
        return Recovery(
            slices=tuple(box.cut(x).contiguous() for box in boxes),
            labels=labels,
            rounds=tuple(self._collector.rounds),
            cells=tuple(cell.samples for cell in cells_of(indices, setting.samples) if len(cell.samples) > 1),
            notes=tuple(self._notes(torch.cat(values), silent, int(x.flatten(1).isnan().any(1).sum()))),
        )

    def _notes(self, values: torch.Tensor, silent: int, missing: int) -> list[str]:
        notes = [f"The objective ends at {values.nanmedian():.1e} (the median of {len(values)} problems)."]
        if silent:
            notes.append(f"{silent} of {len(values)} problems have gradients of zeros, which tell nothing.")
        if missing:
            notes.append(f"{missing} samples were not attacked: they are in no kept round, or beyond attack.samples.")
        return notes


class _Counter:
    """Counts iterations for the progress."""

    def __init__(self, progress: Progress, done: int, total: int, weight: int) -> None:
        self._progress, self._done, self._total, self._weight = progress, done, total, weight

    def __call__(self) -> None:
        self._done += self._weight
        self._progress("matching gradients", self._done, self._total)


def _silent(component: Component) -> int:
    return sum(int((task.targets.squares.sum(1) == 0).sum()) for task in component.tasks)
