"""What the tests of the paper's attack share: small data, what the coordinator sees of it, the attack on that."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from attacker.cafe import Cafe, CafeAttack
from attacker.interface import Recovery, silent
from vfl.local.one_process import observations
from vfl.observation import Observation, Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection

MLP = PluginSection(name="mlp", hidden=(24,))
CNN = PluginSection(name="cafe_cnn", fc1=32)
CLASSES = 5
KACZMARZ = {"optimiser_one": "scaled_sgd", "lr_one": 1.0, "optimiser_two": "scaled_sgd", "lr_two": 1.0}


def table(samples: int, columns: int = 12) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.rand(samples, columns, generator=random), torch.randint(0, CLASSES, (samples,), generator=random)


def images(samples: int, size: int = 8) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    x = nn.functional.interpolate(torch.rand(samples, 1, 3, 3, generator=random), size=(size, size), mode="bilinear")
    return x, torch.randint(0, CLASSES, (samples,), generator=random)


def setting_for(x: Tensor, batch_size: int, rounds: int, model: PluginSection = MLP, workers: int = 2, **changes):
    boxes = tuple(partition(tuple(x.shape[1:]), workers))
    return replace(Setting(model, boxes, CLASSES, len(x), batch_size, "uniform", rounds, True, 3, "cpu"), **changes)


def seen(setting: Setting, x: Tensor, y: Tensor, training: TrainingConfig | None = None) -> list[Observation]:
    return list(observations(setting, x, y, training or TrainingConfig()))


def attacked(setting: Setting, rounds: list[Observation], **options) -> tuple[CafeAttack, Recovery]:
    attack = Cafe(**options).start(setting)
    assert isinstance(attack, CafeAttack)
    for observation in rounds:
        attack.observe(observation)
    return attack, attack.recover(silent)


def error(found: Tensor, true: Tensor) -> float:
    return float((found - true).norm() / true.norm())


def whole(setting: Setting, recovery: Recovery, like: Tensor) -> Tensor:
    assert recovery.slices is not None
    x = torch.zeros_like(like)
    for box, part in zip(setting.boxes, recovery.slices, strict=True):
        box.cut(x)[...] = part
    return x
