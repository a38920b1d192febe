"""`cafe bench cafe`: an iteration of each step of CAFE at the paper's size, beside its floor in the same run.

The floor of step III are its convolutions alone, in plain PyTorch on the same threads: every pass that the objective
and its gradient need (forward, backward, and with alpha the double backward), each one call of torch, on the same
shapes. Steps I and II have no convolution; theirs are their equations and a step of torch's, written down plainly.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import conv2d

from attacker.cafe import Cafe, CafeAttack
from vfl.bench.rigs import save, show_table
from vfl.device import keep_freed_memory
from vfl.local.one_process import observations
from vfl.models.whole import first_model
from vfl.observation import Observation, Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection

MOST = 1.5
"""How many times its floor an iteration may take."""
COLUMNS = {
    "one iteration of CAFE": "{path}",
    "threads": "{threads}",
    "ours": "{ours:.1f} ms",
    "floor": "{floor:.1f} ms",
    "ratio": "{ratio:.2f}",
    "the floor is": "{against}",
}


@dataclass(frozen=True)
class Problem:
    """The shapes of one data set."""

    name: str
    shape: tuple[int, int, int]
    samples: int = 800
    batch_size: int = 40
    workers: int = 4


CIFAR, MNIST = Problem("CIFAR-10", (3, 32, 32)), Problem("MNIST", (1, 28, 28))
SMALL = Problem("CIFAR-10, small", (3, 32, 32), samples=24, batch_size=6)


def bench_cafe(out: Path | None, short: bool) -> None:
    """Measure and print; ours and the floor take turns, so that other load on the machine hits both."""
    keep_freed_memory()  # as the attack's process does
    before, rows = torch.get_num_threads(), []
    try:
        for threads in (1,) if short else sorted({1, before}):
            torch.set_num_threads(threads)
            for case in (SMALL,) if short else (CIFAR, MNIST):
                Console(stderr=True, highlight=False).print(f"{case.name} on {threads} threads …")
                rows += [_measure(path, threads, 2 if short else 9) for path in paths(case)]
    finally:
        torch.set_num_threads(before)
    note = f"At most {MOST} times the floor is wanted. One thread: CPU time; several: the clock, on an idle machine."
    save(out, {"paths": rows}, "cafe", show_table(rows, COLUMNS, note))


@dataclass(frozen=True)
class Iteration:
    """An iteration of a step, and its floor."""

    name: str
    against: str
    ours: Callable[[], object]
    floor: Callable[[], object]


def paths(case: Problem) -> list[Iteration]:
    """Return the three steps, the third with and without second derivatives."""
    boxes = tuple(partition(case.shape, case.workers))
    model = PluginSection(name="cafe_cnn")
    setting = Setting(model, boxes, 10, case.samples, case.batch_size, "uniform", 8000, frozen=True, seed=0)
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(case.samples, *case.shape, generator=random), torch.randint(10, (case.samples,), generator=random)
    seen = list(islice(observations(setting, x, y, TrainingConfig()), 4))
    whole, first = _attack(setting, seen, 1e-2), _attack(setting, seen, 0.0)
    convolutions = [Convolutions(bottom, box.shape, case.batch_size) for bottom, box in _bottoms(setting)]
    like = [nn.Parameter(h[: case.batch_size].clone()) for h in whole.attack.variables.h]
    adams, name = [torch.optim.Adam([one], 1e-9) for one in like], case.name

    def sums() -> None:
        _sums(whole.attack, seen[0])

    def products() -> None:
        _products(whole.attack, seen[0], adams)

    def once() -> None:
        for one in convolutions:
            one.once()

    def twice() -> None:
        for one in convolutions:
            one.twice()

    def plainly() -> None:
        sums()
        products()
        twice()

    return [
        Iteration(f"{name}, step I", "equation (7) and SGD, plainly", whole.one, sums),
        Iteration(f"{name}, step II", "equation (8) and Adam, plainly", whole.two, products),
        Iteration(f"{name}, step III", "convolutions: forward, backward, double backward", whole.three, twice),
        Iteration(f"{name}, step III, alpha 0", "convolutions: forward, backward", first.three, once),
        Iteration(f"{name}, all steps", "all of this but alpha 0", whole.all, plainly),
    ]


@dataclass
class _Steps:
    """An attack at work, round after round of those that it was shown."""

    attack: CafeAttack
    seen: Sequence[Observation]

    def __post_init__(self) -> None:
        self._rounds = cycle(self.seen)
        self._batches = cycle([self.attack.batch(one) for one in self.seen])

    def one(self) -> object:
        return self.attack.step_one(next(self._batches))

    def two(self) -> object:
        return self.attack.step_two(next(self._batches), 0.5)

    def three(self) -> object:
        return self.attack.step_three(next(self._batches), 0.5)

    def all(self) -> None:
        self.attack.observe(next(self._rounds))


def _attack(setting: Setting, seen: Sequence[Observation], alpha: float) -> _Steps:
    attack = Cafe(
        alpha=alpha, switch_one=None, switch_two=None, lr_one=5e-3, lr_two=8e-3, lr_three=2e-2, xi=90.0
    ).start(setting)
    assert isinstance(attack, CafeAttack)
    attack.observe(seen[0])
    return _Steps(attack, seen)


def _bottoms(setting: Setting) -> list[tuple[nn.Module, Any]]:
    model = first_model(setting).to(torch.device("cpu"))
    return list(zip(model.bottoms, setting.boxes, strict=True))


def _sums(attack: CafeAttack, seen: Observation) -> None:
    """Equation (7), its gradient and a step of SGD, written down plainly."""
    for worker, v in enumerate(attack.variables.v):
        residual = v[seen.indices].sum(0) - seen.gradients.bottoms[worker]["fc1.bias"]
        residual.square().sum()
        v.index_add_(0, seen.indices, (2 * residual).expand(len(seen.indices), -1), alpha=-1e-9)


def _products(attack: CafeAttack, seen: Observation, adams: Sequence[torch.optim.Adam]) -> None:
    """Equation (8), its gradient and a step of torch's Adam, written down plainly."""
    for worker, (v, h, adam) in enumerate(zip(attack.variables.v, attack.variables.h, adams, strict=True)):
        of_v, (moved,) = v[seen.indices], adam.param_groups[0]["params"]
        residual = of_v.T @ h[seen.indices] - seen.gradients.bottoms[worker]["fc1.weight"]
        residual.square().sum()
        moved.grad = 2 * of_v @ residual
        adam.step()


class Convolutions:
    """A worker's two convolutions, each pass one call of torch."""

    def __init__(self, bottom: nn.Module, shape: Sequence[int], batch_size: int) -> None:
        random = torch.Generator().manual_seed(0)
        self._layers: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        height, width = shape[1:]
        for name in ("conv1", "conv2"):
            weight = dict(bottom.named_parameters())[f"{name}.weight"].detach()
            x = torch.rand(batch_size, weight.shape[1], height, width, generator=random)
            at_output = torch.rand(batch_size, weight.shape[0], height, width, generator=random)
            self._layers.append((x, weight, at_output, torch.rand(weight.shape, generator=random)))
            height, width = -(-height // 2), -(-width // 2)

    def once(self) -> None:
        """Forward, and back to the data."""
        for x, weight, at_output, _ in self._layers:
            conv2d(x, weight, padding=2)
            _backward(at_output, x, weight, [True, False, False])

    def twice(self) -> None:
        """Forward, back to the weights (and the second's input), and back through both to the data."""
        self.once()
        for number, (x, weight, at_output, direction) in enumerate(self._layers):
            _backward(at_output, x, weight, [bool(number), True, False])
            conv2d(x, direction, padding=2)
            _backward(at_output, x, direction, [True, False, False])
            if number:
                conv2d(x, weight, padding=2)


def _backward(gradient: Tensor, x: Tensor, weight: Tensor, mask: list[bool]) -> None:
    torch.ops.aten.convolution_backward(gradient, x, weight, None, [1, 1], [2, 2], [1, 1], False, [0, 0], 1, mask)


def _measure(path: Iteration, threads: int, turns: int) -> dict[str, Any]:
    """Let a path and its floor take turns; the first warms up, and the ratio is the median of the others'."""
    clock = time.process_time if threads == 1 else time.perf_counter
    spent: dict[str, list[float]] = {"ours": [], "floor": []}
    for _ in range(turns + 1):
        for name, work in (("ours", path.ours), ("floor", path.floor)):
            began = clock()
            work()
            spent[name].append(1e3 * (clock() - began))
    ratios = [ours / max(floor, 1e-9) for ours, floor in zip(spent["ours"][1:], spent["floor"][1:], strict=True)]
    medians = {name: statistics.median(values[1:]) for name, values in spent.items()}
    return {
        "path": path.name,
        "threads": threads,
        "against": path.against,
        **medians,
        "ratio": statistics.median(ratios),
    }
