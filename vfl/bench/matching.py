"""`cafe bench matching`: one iteration of gradient matching by the engine, by an oracle and by a plain loop.

All three compute the same: the gradient, with respect to all slices and labels, of the squared distance between
guessed and uploaded parameter gradients. The oracle does it worker by worker as the federation does: the gradients at
the outputs, then each worker's own, then autograd through all that with torch's own rules. The plain loop asks autograd
for one tensor at a time, the parameters' gradients as well as the slices'.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from attacker.matching.components import depths
from attacker.matching.engine import Engine
from attacker.matching.objectives import Targets, squared
from vfl.bench.rigs import save, show_table
from vfl.device import keep_freed_memory
from vfl.local.one_process import observations
from vfl.models import build_bottom, build_top, output_width
from vfl.observation import ModelTensors, Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection

SHAPE, CLASSES = (3, 32, 32), 10
COLUMNS = {
    "one iteration, CIFAR-10 shapes, cafe_cnn": "{case}",
    "engine": "{engine:.0f} ms",
    "oracle": "{oracle:.0f} ms ({oracle_over_engine:.1f} x)",
    "plain loop": "{plain:.0f} ms ({plain_over_engine:.1f} x)",
    "engine and oracle differ by": "{relative_difference:.0e}",
}


@dataclass(frozen=True)
class MatchingCase:
    """One comparison."""

    workers: int
    batch_size: int
    singles: int = 0
    """So many samples that uploaded a gradient each, instead of a batch."""
    model: str = "cafe_cnn"

    @property
    def name(self) -> str:
        """Return the case in words."""
        what = f"{self.singles} single samples" if self.singles else f"batch of {self.batch_size}"
        return f"{self.workers} workers, {what}"


def bench_matching(out: Path | None, short: bool) -> None:
    """Measure and print; the sides take turns, so that other load on the machine hits all of them."""
    keep_freed_memory()  # as the coordinator does
    repeats = 1 if short else 3
    few = [MatchingCase(4, 8), MatchingCase(4, 1, singles=4)]
    cases = few if short else [MatchingCase(4, 40), MatchingCase(16, 40), MatchingCase(4, 1, singles=8)]
    results = [_measure(case, repeats) for case in cases]
    rows = [one | {side: 1e3 * spent for side, spent in one["seconds"].items()} for one in results]
    save(out, {"cases": results}, "matching", show_table(rows, COLUMNS))


def sides(case: MatchingCase) -> dict[str, Callable[[], list[Tensor]]]:
    """Set up the three ways to compute one iteration on the same random data, guess and gradients.

    Each returns the gradients of the slices, then of the labels.
    """
    count = case.singles or case.batch_size
    boxes = tuple(partition(SHAPE, case.workers))
    model, rounds = PluginSection(name=case.model), count // case.batch_size
    setting = Setting(model, boxes, CLASSES, count, case.batch_size, "epochs", rounds, frozen=True, seed=0)
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(count, *SHAPE, generator=random), torch.randint(CLASSES, (count,), generator=random)
    seen = list(observations(setting, x, y, TrainingConfig()))
    uploaded = [observation.gradients for observation in seen]
    guess = [torch.rand(count, *box.shape, generator=random) for box in boxes]
    logits = torch.randn(count, CLASSES, generator=random)
    engine = Engine(setting)
    device = engine.device
    guess, logits = [one.to(device) for one in guess], logits.to(device)
    return {
        "engine": _engine_side(engine, uploaded, seen[0].parameters, [*guess, logits]),
        "oracle": _loop_side(Oracle(setting, seen[0].parameters, device), uploaded, guess, logits),
        "plain": _loop_side(Plain(setting, seen[0].parameters, device), uploaded, guess, logits),
    }


def _engine_side(
    engine: Engine, gradients: Sequence[ModelTensors], parameters: ModelTensors, guess: Sequence[Tensor]
) -> Callable[[], list[Tensor]]:
    """Guess slices and, last, logits; gradients of more than one round are of a sample each."""
    flat, rows = engine.flat(parameters), len(gradients)
    stacked = zip(*(engine.flat(one) for one in gradients), strict=True)
    targets = Targets.of([torch.stack(rows).flatten(1) for rows in stacked], depths(engine))
    run = engine.guess_each if rows > 1 else engine.guess

    def step() -> list[Tensor]:
        leaves = [one.detach().requires_grad_() for one in guess]
        found = run(flat, leaves[:-1], leaves[-1].softmax(1))
        value = squared([gradient.reshape(rows, -1) for gradient in found.gradients], targets)
        return list(torch.autograd.grad(value.sum(), leaves))

    return step


class Oracle:
    """Autograd through autograd, party by party."""

    def __init__(self, setting: Setting, parameters: ModelTensors, device: torch.device) -> None:
        self._bottoms = [build_bottom(setting.model, box.shape, setting.seed, m) for m, box in enumerate(setting.boxes)]
        widths = [output_width(bottom, box.shape) for bottom, box in zip(self._bottoms, setting.boxes, strict=True)]
        self._top = build_top(setting.model, widths, setting.classes, setting.seed)
        for module in [*self._bottoms, self._top]:
            module.to(device)
        self._device = device
        self.parameters = [self._leaves(part) for part in (*parameters.bottoms, parameters.top)]

    def _leaves(self, part: Any) -> dict[str, Tensor]:
        return {name: tensor.to(self._device).clone().requires_grad_() for name, tensor in part.items()}

    def __call__(self, slices: Sequence[Tensor], logits: Tensor, uploaded: ModelTensors) -> list[Tensor]:
        """Return the gradients of the relative squared distance with respect to the slices and the logits."""
        x = [one.detach().requires_grad_() for one in slices]
        y = logits.detach().requires_grad_()
        given = [*uploaded.bottoms, uploaded.top]
        unit = sum(float(tensor.square().sum()) for part in given for tensor in part.values())
        distance = self._distance(x, y, given) / unit
        return self._all(distance, [*x, y])

    def _all(self, distance: Tensor, leaves: list[Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(distance, leaves))

    def _distance(self, x: Sequence[Tensor], y: Tensor, given: Sequence[Any]) -> Tensor:
        z = [functional_call(b, own, (s,)) for b, own, s in zip(self._bottoms, self.parameters, x, strict=False)]
        loss = cross_entropy(functional_call(self._top, self.parameters[-1], (torch.cat(z, 1),)), y.softmax(1))
        at_outputs = torch.autograd.grad(loss, z, create_graph=True)
        distance = y.new_zeros(())
        for output, own, at_output, sent in zip(z, self.parameters, at_outputs, given, strict=False):
            distance = distance + _apart(self._gradients(output, own, at_output), sent, self._device)
        return distance + _apart(self._gradients(loss, self.parameters[-1], None), given[-1], self._device)

    def _gradients(self, output: Tensor, own: dict[str, Tensor], at_output: Tensor | None) -> dict[str, Tensor]:
        found = torch.autograd.grad(output, list(own.values()), at_output, create_graph=True)
        return dict(zip(own, found, strict=True))


class Plain(Oracle):
    """The same with a call of autograd for each tensor."""

    def _all(self, distance: Tensor, leaves: list[Tensor]) -> list[Tensor]:
        return [torch.autograd.grad(distance, leaf, retain_graph=True)[0] for leaf in leaves]

    def _gradients(self, output: Tensor, own: dict[str, Tensor], at_output: Tensor | None) -> dict[str, Tensor]:
        return {
            name: torch.autograd.grad(output, tensor, at_output, create_graph=True)[0] for name, tensor in own.items()
        }


def _apart(found: dict[str, Tensor], sent: Any, device: torch.device) -> Tensor:
    total = torch.zeros((), device=device)
    for name, gradient in found.items():
        total = total + (gradient - sent[name].to(device)).square().sum()
    return total


def _loop_side(
    oracle: Oracle, gradients: Sequence[ModelTensors], guess: Sequence[Tensor], logits: Tensor
) -> Callable[[], list[Tensor]]:
    """Problem after problem; a problem's samples are those of its round."""
    size = len(logits) // len(gradients)

    def step() -> list[Tensor]:
        parts = [
            oracle([one[at * size : (at + 1) * size] for one in guess], logits[at * size : (at + 1) * size], uploaded)
            for at, uploaded in enumerate(gradients)
        ]
        return [torch.cat(rows) for rows in zip(*parts, strict=True)]

    return step


def _measure(case: MatchingCase, repeats: int) -> dict[str, Any]:
    Console(stderr=True, highlight=False).print(f"{case.name} …")
    three = sides(case)
    seconds: dict[str, list[float]] = {name: [] for name in three}
    found: dict[str, list[Tensor]] = {}
    for turn in range(repeats + 1):
        for name, compute in three.items():
            began = time.monotonic()
            found[name] = compute()
            if turn:  # the first turn warms up
                seconds[name].append(time.monotonic() - began)
    return {
        "case": case.name,
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "all_seconds": seconds,
        "oracle_over_engine": _ratio(seconds["oracle"], seconds["engine"]),
        "plain_over_engine": _ratio(seconds["plain"], seconds["engine"]),
        "relative_difference": max(
            float((a - b).norm() / b.norm().clamp(min=1e-30))
            for a, b in zip(found["engine"], found["oracle"], strict=True)
        ),
    }


def _ratio(slow: list[float], fast: list[float]) -> float:
    """Return the median of the ratios within each turn."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))
