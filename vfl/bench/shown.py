"""`cafe bench shown`: what gradients of a layer can show at all, by every sample's true part in them.

G = sum of v_n h_n^T has h_n in the space of its rows if and only if v_n is not in the span of the other v. An attack
that knows other samples of the batch can take theirs away first. This limits every attack on one layer's gradients. The
bench knows all v, which no attack does.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vfl.bench.rigs import save, show_table
from vfl.config import RunConfig
from vfl.datasets.slices import boxes_of, load_data
from vfl.local.one_process import observations
from vfl.models.layers import fully_connected
from vfl.models.whole import WholeModel, known_model
from vfl.observation import Setting

TRAINING: Mapping[str, Mapping[str, Any]] = {
    "frozen": {},
    "SGD 0.1, momentum 0.9": {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    "Adam 1e-4": {"optimizer": "adam", "lr": 1e-4},
    "Adam 1e-3": {"optimizer": "adam", "lr": 1e-3},
    "Adam 1e-2": {"optimizer": "adam", "lr": 1e-2},
}
COLUMNS = {
    "data": "{data}",
    "training": "{training}",
    "epochs": "{epochs}",
    "slices shown": "{share:.1%}",
    "images shown": "{images} of {samples}",
    "with known samples taken out": "{all_images} of {samples}",
    "slices without a gradient": "{nothing}",
    "shown by later layers alone": "{later}",
    "mixed, equations enough": "{mixed_determined} of {mixed}",
    "zeros of h": "{zeros:.0%}",
}
EPOCHS = 5
RANK = 1e-7
"""Singular values of unit vectors v below this are zero in float32."""


@dataclass(frozen=True)
class Seen:
    """One round: its batch, every worker's v (batch, outputs) of unit length, and the share of h that is zero."""

    batch: Tensor
    v: list[Tensor]
    """At the first fully connected layer."""
    later: list[list[Tensor]]
    """At the others, by worker."""
    room: list[float]
    """How many slices' values one dimension of each worker's gradient may tell."""
    zeros: float


def bench_shown(out: Path | None, short: bool) -> None:
    """Train on each data set with each optimiser, and count."""
    results: list[dict[str, Any]] = []
    samples, batch = (24, 8) if short else (400, 40)
    for data in _data(short):
        for training, options in list(TRAINING.items())[:: 3 if short else 1]:
            rounds = list(_rounds(data, options, samples=samples, batch=batch))
            per_epoch = len(rounds) // EPOCHS
            for epochs in (1, EPOCHS):
                seen = rounds[: epochs * per_epoch]
                row: dict[str, Any] = {"data": str(data["name"] if "path" not in data else Path(data["path"]).stem)}
                row |= {"training": training, "epochs": epochs, "samples": samples}
                row |= _count(seen, samples) | {"zeros": sum(one.zeros for one in seen) / len(seen)}
                results.append(row)
                Console(stderr=True, highlight=False).print(", ".join(f"{value}" for value in row.values()))
    note = (
        f"cafe_cnn, 4 workers, batches of {batch}, seed 0. Shown: h is in the space of a gradient of the first fully "
        f"connected layer. Taken out: with every sample that some round shows known in its other rounds."
    )
    save(out, {"rows": results}, "shown", show_table(results, COLUMNS, note))


def _data(short: bool) -> Iterator[dict[str, Any]]:
    if short or "CAFE_DATA" not in os.environ:
        yield {"name": "digits"}
        return
    for name in ("cifar10.npz", "mnist.npz"):
        if (Path(os.environ["CAFE_DATA"]) / name).exists():
            yield {"name": "npz", "path": name, "test_samples": 0}


def _rounds(data: Mapping[str, Any], training: Mapping[str, Any], *, samples: int, batch: int) -> Iterator[Seen]:
    """Train, and yield each round."""
    config = RunConfig.model_validate(
        {
            "data": {**data, "samples": samples},
            "federation": {"workers": 4, "batch_size": batch, "epochs": EPOCHS},
            "model": {"name": "cafe_cnn"},
            "training": dict(training),
            "attack": {"name": "none"},
        }
    )
    loaded = load_data(config)
    setting = Setting.of(config, boxes_of(loaded, config), loaded.classes, samples)
    slices = [box.cut(loaded.x) for box in setting.boxes]
    for seen in observations(setting, loaded.x, loaded.y, config.training):
        model = known_model(setting, seen.parameters)
        h, v = _parts(model, [part[seen.indices] for part in slices], loaded.y[seen.indices])
        zeros = float(torch.cat([(own == 0).flatten() for own in h]).double().mean())
        room = [own.shape[1] / part[0].numel() for own, part in zip(h, slices, strict=True)]
        yield Seen(seen.indices, [own[0] for own in v], [own[1:] for own in v], room, zeros)


def _parts(model: WholeModel, slices: Sequence[Tensor], y: Tensor) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Return every worker's h of a batch at its first fully connected layer, and its v, of unit length, at each."""
    h: list[Tensor] = []
    outputs: list[Tensor] = []
    counts: list[int] = []

    def hook(_: nn.Module, given: tuple[Tensor, ...], sent: Tensor) -> None:
        h.append(given[0].detach())
        outputs.append(sent)

    for bottom, part in zip(model.bottoms, slices, strict=True):
        layers = fully_connected(bottom, tuple(part.shape[1:]))
        counts.append(len(layers))
        for layer in layers:
            bottom.get_submodule(layer.name).register_forward_hook(hook)
    loss = cross_entropy(model(slices), y)
    v = [own.double() for own in torch.autograd.grad(loss, outputs)]
    unit = iter([own / own.norm(dim=1, keepdim=True).clamp_min(1e-30) for own in v])
    firsts = [sum(counts[:worker]) for worker in range(len(counts))]
    return [h[at] for at in firsts], [[next(unit) for _ in range(count)] for count in counts]


def _count(rounds: Sequence[Seen], samples: int) -> dict[str, Any]:
    """Return what the rounds show by themselves, what with known samples taken out, and what the others lack."""
    workers = len(rounds[0].v)
    nobody = torch.zeros(workers, samples, dtype=torch.bool)
    first = known = _shown(rounds, nobody)
    while int((more := _shown(rounds, known)).sum()) > int(known.sum()):
        known = more
    sends, later, determined = nobody.clone(), nobody.clone(), nobody.clone()
    for seen in rounds:
        for worker, v in enumerate(seen.v):
            sends[worker, seen.batch] |= v.norm(dim=1) > 0
            for other in seen.later[worker]:
                later[worker, seen.batch[_alone(other)]] = True
            mixed = ~known[worker, seen.batch]
            rank = _rank(v) - _rank(v[~mixed])  # of what known samples leave
            if rank * seen.room[worker] >= int(mixed.sum()):
                determined[worker, seen.batch[mixed]] = True
    return {
        "share": float(first.double().mean()),
        "images": int(first.all(dim=0).sum()),
        "all_images": int(known.all(dim=0).sum()),
        "nothing": int((~sends).sum()),
        "later": int((later & ~first).sum()),
        "mixed": int((sends & ~known).sum()),
        "mixed_determined": int((sends & ~known & determined).sum()),
    }


def _shown(rounds: Sequence[Seen], known: Tensor) -> Tensor:
    """Tell which slices (workers, samples) some round shows if those that are known are taken out."""
    shown = known.clone()
    for seen in rounds:
        for worker, v in enumerate(seen.v):
            open_ = ~known[worker, seen.batch]
            shown[worker, seen.batch[open_][_alone(v[open_])]] = True
    return shown


def _alone(v: Tensor) -> Tensor:
    """Tell which rows (batch, outputs) are no combination of the others, and not zero."""
    left, values, _ = torch.linalg.svd(v, full_matrices=False)
    space = left[:, values > RANK * values.amax(dim=0)] if len(v) else left
    alone: Tensor = (space.square().sum(dim=1) > 1 - 1e-6) & (v.norm(dim=1) > 0)  # no combination with it is zero
    return alone


def _rank(v: Tensor) -> int:
    """Return how many dimensions rows have."""
    values = torch.linalg.svdvals(v) if len(v) else v.new_zeros(0)
    return int((values > RANK * values.amax()).sum()) if len(values) else 0
