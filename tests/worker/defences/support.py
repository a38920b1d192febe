"""What the tests of defences share: a round played on a small model."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from vfl.registry import PluginSection
from worker.defences import Plan, Played, Shield, defences
from worker.keys import FixedSecret

SECRET, COMMON = FixedSecret(5, "worker 1"), FixedSecret(5, "all workers")
PLAN = Plan(worker=1, samples=20, batch_size=4, rounds=10, schedule="epochs", workers=3, secret=SECRET, common=COMMON)


def started(name: str, plan: Plan = PLAN, **options: Any) -> Shield:
    return defences.build(PluginSection.model_validate({"name": name, **options})).start(plan)


def played(model: nn.Module, x: Tensor, number: int = 1, seed: int = 0) -> Played:
    return Played(number, torch.arange(len(x)), x, model, SECRET.draws("a test", seed))


def upload(shield: Shield, gradients: dict[str, Tensor], seed: int = 0, number: int = 1) -> dict[str, Tensor]:
    return dict(shield.apply(gradients, played(nn.Identity(), torch.zeros(4, 2), number, seed)))


def conv_model() -> nn.Module:
    """A small network in front of its first fully connected layer, `fc`."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(1, 4, 3), relu=nn.ReLU(), pool=nn.MaxPool2d(2), flat=nn.Flatten(), fc=nn.Linear(36, 5)
            )
        )


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
