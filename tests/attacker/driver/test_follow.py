from collections.abc import Iterator

import pytest
import torch

from attacker.driver.follow import Follower
from attacker.interface import Progress, attacks, silent
from vfl.local.one_process import observations
from vfl.observation import Observation, Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.recovery import Recovery, spans
from vfl.registry import PluginSection


def shown(rounds: int, lr: float) -> Iterator[Observation]:
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(12, 1, 8, 8, generator=random), torch.randint(3, (12,), generator=random)
    setting = Setting(
        PluginSection(name="mlp"), tuple(partition((1, 8, 8), 2)), 3, 12, 4, "epochs", rounds, lr == 0, seed=0
    )
    yield from observations(setting, x, y, TrainingConfig(lr=lr))


class Some:
    def __init__(self, recovery: Recovery) -> None:
        self.recovery = recovery

    def observe(self, observation: Observation) -> None:
        pass

    def recover(self, progress: Progress) -> Recovery:
        return self.recovery


def ledger(recovery: Recovery, lr: float) -> str:
    follower = Follower(Some(recovery))
    assert list(follower.follow(shown(6, lr))) == [1, 2, 3, 4, 5, 6]
    found = follower.recover(silent).ledger
    assert found is not None
    return found.sentence


def test_all_rounds_are_used_unless_the_attack_says_which() -> None:
    assert ledger(Recovery(), 0.1) == (
        "gradients of 6 of 6 rounds (1 to 6), their parameters (6 versions), their batch indices, no labels, "
        "no learning rate"
    )
    some = Recovery(rounds=(1, 2, 5), used=("parameters", "gradients", "labels", "learning rate", "a rumour"))
    assert ledger(some, 0.0) == (
        "gradients of 3 of 6 rounds (1 to 2, 5), their parameters (the same in all of them), no indices, the labels, "
        "the learning rate, a rumour"
    )


def test_an_attack_that_used_nothing_has_no_ledger() -> None:
    follower = Follower(attacks.build(PluginSection(name="none")).start(None))  # type: ignore[arg-type]
    assert follower.recover(silent).ledger is None


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), "none"), ((3,), "3"), ((1, 2, 3, 7, 9, 10), "1 to 3, 7, 9 to 10"), (range(1, 20, 2), "between 1 and 19")],
)
def test_spans(numbers: tuple[int, ...], text: str) -> None:
    assert spans(numbers) == text
