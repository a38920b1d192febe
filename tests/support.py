"""What several tests need: small configs, a run in real processes, the same run in one process."""

from pathlib import Path
from typing import Any

import torch

from vfl.config import RunConfig, parse_config
from vfl.datasets.slices import boxes_of, load_data
from vfl.folder.transcript import Transcript
from vfl.local.launch import run_federation
from vfl.local.one_process import observations
from vfl.observation import ModelTensors, Observation, Setting
from vfl.partition import partition


def small_config(**changes: Any) -> RunConfig:
    """A federation of four on 24 digits with a small fully connected model."""
    tree: dict[str, Any] = {
        "seed": 3,
        "data": {"name": "digits", "samples": 24, "test_samples": 30},
        "federation": {"workers": 4, "batch_size": 8, "rounds": 4, "join_timeout": 60, "round_timeout": 60},
        "model": {"name": "mlp", "hidden": [12]},
        "transcript": True,
    }
    for key, value in changes.items():
        tree[key] = {**tree[key], **value} if isinstance(tree.get(key), dict) and "name" not in value else value
    return parse_config(tree, "the test")


def setting_of(config: RunConfig) -> Setting:
    """The setting of a small config's run."""
    boxes = tuple(partition((1, 8, 8), 4))
    rounds, training = config.federation.rounds, config.training
    return Setting(config.model, boxes, 10, 24, 8, "epochs", rounds, training.frozen, config.seed)


def run_in_processes(config: RunConfig, out: Path) -> list[Observation]:
    """Run a federation in real processes; return what its coordinator saw."""
    run_federation(config, load_data(config), out)
    return list(Transcript(out / "transcript"))


def run_in_one_process(config: RunConfig) -> list[Observation]:
    """Return what autograd on the undivided data says that the coordinator must see."""
    data = load_data(config)
    setting = Setting(
        model=config.model,
        boxes=tuple(boxes_of(data, config)),
        classes=data.classes,
        samples=len(data.x),
        batch_size=config.federation.batch_size,
        schedule=config.federation.schedule,
        rounds=config.federation.planned_rounds(len(data.x)),
        frozen=config.training.frozen,
        seed=config.seed,
    )
    return list(observations(setting, data.x, data.y, config.training))


def flat(tensors: ModelTensors) -> dict[str, torch.Tensor]:
    """All tensors of all parties under one name each."""
    named = {f"top.{name}": tensor for name, tensor in tensors.top.items()}
    for worker, bottom in enumerate(tensors.bottoms):
        named |= {f"{worker}.{name}": tensor for name, tensor in bottom.items()}
    return named


def assert_close(found: ModelTensors, expected: ModelTensors, tolerance: float = 1e-5) -> None:
    """Every tensor equal to float32 accuracy, relative to its own size."""
    left, right = flat(found), flat(expected)
    assert left.keys() == right.keys()
    for name, tensor in right.items():
        error = (left[name] - tensor).norm() / tensor.norm().clamp(min=1e-12)
        assert error < tolerance, f"{name}: relative error {error:.1e}"


def assert_same(found: list[Observation], expected: list[Observation]) -> None:
    """Bit by bit the same rounds."""
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert torch.equal(left.indices, right.indices)
        for tensors in ("parameters", "gradients"):
            a, b = flat(getattr(left, tensors)), flat(getattr(right, tensors))
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a)
