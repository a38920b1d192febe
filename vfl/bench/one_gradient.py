"""`cafe bench one_gradient`: of how many samples a single gradient tells, as it is and behind each defence."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacker.adaptive.one_round import restored
from attacker.adaptive.told import KINDS
from attacker.exact.choice import Choice, choose
from attacker.exact.rays import Found, samples_of
from attacker.exact.workers.labels import Network
from attacker.exact.workers.tails import cut_off, possible_v
from vfl.bench.attack import NEAR, console_line, load, nearest, setting_for
from vfl.bench.rigs import save, show_table
from vfl.device import one_thread
from vfl.local.one_process import observations
from vfl.models.layers import representation
from vfl.models.whole import known_model
from vfl.observation import BOTTOM, Observation, Setting, with_prefix
from vfl.optimisers.training import TrainingConfig
from vfl.registry import PluginSection
from worker.defences import Chain, Plan, WithheldError
from worker.keys import FixedSecret

BATCHES = (10, 20, 40)
NOISES: tuple[dict[str, Any], ...] = tuple({"name": "noise", "scale": 10.0**power} for power in (-6, -5, -4, -3, -2))
OTHERS: tuple[dict[str, Any], ...] = (
    {"name": "dp", "epsilon": 10.0},
    {"name": "prune", "keep": 0.5},
    {"name": "prune", "keep": 0.1},
    {"name": "quantize", "bits": 16},
    {"name": "quantize", "bits": 8},
    {"name": "soteria"},
    {"name": "clip", "norm": 0.01},
    {"name": "fake_gradients"},
    {"name": "breaker"},
)
"""Tried at the smallest batch, where the attack has the best chance."""
TOLD = ("prune", "quantize", "soteria", "fake_gradients")
"""Of these an attack that knows the defence's kind is tried too: what it makes of many rounds, it can make of one."""
WORKERS = (0, 3)
"""Of four: those of the upper left and the lower right quarter."""
SECONDS = 6.0
"""For each gradient, of computing."""


def bench_one_gradient(source: Path | None, out: Path | None, short: bool) -> None:
    """Search the gradient of a federation's first round, each worker's by itself, with and without defences."""
    name = "photos" if source is None else source.name
    sizes = BATCHES[:1] if short else BATCHES
    cases = [{"name": "none"}, NOISES[3], {"name": "breaker"}] if short else [{"name": "none"}, *NOISES, *OTHERS]
    with one_thread():
        rounds = {size: _Round.of(source, size) for size in sizes}
        results = [row for case in cases for row in _rows(case, rounds)]
    columns = {f"{name}, one gradient": "{defence}"} | {f"K = {size}": f"{{of_{size}}}" for size in sizes}
    note = f"Samples whose h is found to within {NEAR:.0%}, at {len(WORKERS)} of 4 workers; + those wrong yet certain."
    rows = [{"defence": one["defence"], **one["found"]} for one in results]
    table = show_table(rows, columns, note)
    save(out, {"results": results}, f"one_gradient --data {name}" if source else "one_gradient", table)


def _rows(case: dict[str, Any], rounds: "dict[int, _Round]") -> Iterator[dict[str, Any]]:
    options = ", ".join(f"{key} {value:g}" for key, value in case.items() if key != "name")
    name = f"{case['name']}, {options}" if options else case["name"]
    for told in (False, True) if case["name"] in TOLD else (False,):
        found = {}
        for size, one in rounds.items():
            console_line(f"K = {size}, {name}{', told' * told}")
            tried = case not in OTHERS or size == BATCHES[0]
            found[f"of_{size}"] = one.found(case, told=told) if tried else ""
        yield {"defence": name + ", told" * told, "found": found}


@dataclass(frozen=True)
class _Round:
    """The first round of a federation at frozen parameters, and the truth of its batch."""

    setting: Setting
    choice: Choice
    seen: Observation
    x: Tensor
    network: Network
    truths: list[Tensor]

    @classmethod
    def of(cls, source: Path | None, size: int) -> "_Round":
        """Play a round of so many samples."""
        data = load(source, size)
        setting = setting_for(data, size, "epochs", 1)
        choice = choose(setting, "one_gradient")
        (seen,) = observations(setting, data.x, data.y, TrainingConfig())
        model = known_model(setting, seen.parameters).eval()
        parts = zip(model.bottoms, choice.layers, setting.boxes, strict=True)
        truths = [representation(bottom, own.name, box.cut(data.x)).detach().double() for bottom, own, box in parts]
        return cls(setting, choice, seen, data.x, Network.of(setting, choice.layers, model), truths)

    def found(self, case: dict[str, Any], *, told: bool) -> str:
        """Say how many samples an attack finds in what workers with this defence upload."""
        right = wrong = 0
        try:
            for worker, weight, bias in self._uploads(case):
                shown = self._told(case["name"], weight, bias, worker) if told else self._search(weight, bias, worker)
                truth = self.truths[worker]
                if told and case["name"] == "fake_gradients":  # the order says nothing of the bias's size: directions
                    truth = truth / truth.norm(dim=1, keepdim=True)
                left = told and case["name"] == "soteria"
                right += int((_left(truth, shown.h) if left else nearest(truth, shown.h)).lt(NEAR).sum())
                wrong += 0 if left else int((nearest(shown.h[shown.certain], truth) > 10 * NEAR).sum())
        except WithheldError:
            return "withheld"
        return f"{right} of {len(self.x) * len(WORKERS)}" + (f" + {wrong}" if wrong else "")

    def _search(self, weight: Tensor, bias: Tensor | None, worker: int, *, white: bool = False) -> Found:
        tail = (self.network.bottoms[worker], self.choice.layers[worker].name, self.network.shapes[worker])
        return samples_of(
            weight, bias, cut_off=partial(cut_off, *tail), span=partial(possible_v, *tail),
            batch=len(self.x), seed=0, seconds=SECONDS, white=white,
        )  # fmt: skip

    def _told(self, name: str, weight: Tensor, bias: Tensor, worker: int) -> Found:
        """Search what an upload can have been; behind soteria what is left of each h, at which no network can check."""
        if name == "soteria":
            return samples_of(weight, bias, cut_off=None, batch=len(self.x), seed=0, seconds=SECONDS)
        kind = KINDS[name]
        true = restored(weight, bias, kind, batch=len(self.x))
        return self._search(true[:, :-1], true[:, -1] if kind.keeps_scale else None, worker, white=True)

    def _uploads(self, case: dict[str, Any]) -> Iterator[tuple[int, Tensor, Tensor]]:
        for worker in WORKERS:
            bottom = known_model(self.setting, self.seen.parameters).bottoms[worker]
            plan = Plan(worker, 800, len(self.x), 20, "epochs", secret=FixedSecret(worker, "the bench"))
            chain = Chain([PluginSection.model_validate(case)], plan)
            own = with_prefix(BOTTOM, self.seen.gradients.bottoms[worker])
            x = self.setting.boxes[worker].cut(self.x)[self.seen.indices]
            upload = chain.apply(own, 1, rows=self.seen.indices, x=x, model=bottom)
            layer = BOTTOM + self.choice.layers[worker].name
            yield worker, upload[f"{layer}.weight"], upload[f"{layer}.bias"]


def _left(truths: Tensor, shown: Tensor) -> Tensor:
    """Return how far the nearest of what was found is from each h, where it is not zero."""
    away = [((h - shown) * (shown > 0)).norm(dim=1) / shown.norm(dim=1) for h in truths]
    return torch.stack(away).min(dim=1).values if len(shown) else torch.full((len(truths),), torch.inf)
