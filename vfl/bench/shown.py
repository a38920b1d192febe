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
        yield Seen(seen.indices, [own / own.norm(dim=1, keepdim=True).clamp_min(1e-30) for own in v], zeros)


def _parts(model: WholeModel, slices: Sequence[Tensor], y: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return every worker's h and v of a batch at its first fully connected layer."""
    h: list[Tensor] = []
    outputs: list[Tensor] = []

    def hook(_: nn.Module, given: tuple[Tensor, ...], sent: Tensor) -> None:
        h.append(given[0].detach())
        outputs.append(sent)

    for bottom, part in zip(model.bottoms, slices, strict=True):
        layer = fully_connected(bottom, tuple(part.shape[1:]))[0].name
        bottom.get_submodule(layer).register_forward_hook(hook)
    loss = cross_entropy(model(slices), y)
    return h, [own.double() for own in torch.autograd.grad(loss, outputs)]


def _count(rounds: Sequence[Seen], samples: int) -> dict[str, Any]:
    """Return what the rounds show by themselves, and what with known samples taken out until nothing new shows."""
    workers = len(rounds[0].v)
    first = known = _shown(rounds, torch.zeros(workers, samples, dtype=torch.bool))
    while int((more := _shown(rounds, known)).sum()) > int(known.sum()):
        known = more
    return {
        "share": float(first.double().mean()),
        "images": int(first.all(dim=0).sum()),
        "all_images": int(known.all(dim=0).sum()),
    }


def _shown(rounds: Sequence[Seen], known: Tensor) -> Tensor:
    """Tell which slices (workers, samples) some round shows if those that are known are taken out."""
    shown = known.clone()
    for seen in rounds:
        for worker, v in enumerate(seen.v):
            open_ = ~known[worker, seen.batch] & (v.norm(dim=1) > 0)
            if bool(open_.any()):
                left, values, _ = torch.linalg.svd(v[open_], full_matrices=False)
                space = left[:, values > RANK * values[0]]
                alone = space.square().sum(dim=1) > 1 - 1e-6  # no combination of rows with it is zero
                shown[worker, seen.batch[open_][alone]] = True
    return shown
