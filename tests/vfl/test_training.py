"""The learning rate of each round against torch's own schedulers."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR

from vfl.optimisers.training import RateSchedule, TrainingConfig

LR, ROUNDS, EPOCH = 0.3, 40, 4


def rates(**schedule) -> list[float]:
    training = TrainingConfig(lr=LR, schedule=RateSchedule(**schedule))
    return [training.learning_rate(number, ROUNDS, EPOCH) for number in range(1, ROUNDS + 1)]


def of_torch(make, rounds: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    scheduler, found = make(optimizer), []
    for _ in range(rounds):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_without_a_schedule_the_rate_is_lr():
    assert rates() == [LR] * ROUNDS


@pytest.mark.parametrize("floor", [0.0, 0.25])
def test_cosine_is_torchs_over_the_rounds_that_are_left(floor):
    expected = of_torch(lambda o: CosineAnnealingLR(o, ROUNDS - 12, eta_min=floor * LR), ROUNDS - 12)
    found = rates(kind="cosine", floor=floor, frozen_epochs=1, warmup_epochs=2)
    assert found[12:] == pytest.approx(expected, rel=1e-9)
    assert min(found[12:]) > floor * LR  # the last round still trains


def test_steps_are_torchs():
    expected = of_torch(lambda o: StepLR(o, 3 * EPOCH, gamma=0.5), ROUNDS)
    assert rates(kind="step", every_epochs=3, factor=0.5) == pytest.approx(expected, rel=1e-9)
    late = rates(kind="step", every_epochs=3, factor=0.5, frozen_epochs=1, warmup_epochs=1)
    assert late[2 * EPOCH :] == pytest.approx(expected[: -2 * EPOCH], rel=1e-9)


def test_warm_up_rises_in_equal_steps_and_ends_at_lr():
    found = rates(warmup_epochs=2)
    assert found[:8] == pytest.approx(of_torch(lambda o: LambdaLR(o, lambda done: (done + 1) / 8), 8))
    assert found[7:] == [LR] * 33


def test_frozen_epochs_have_no_rate_and_shift_the_rest():
    assert rates(frozen_epochs=3) == [0.0] * 12 + [LR] * 28
    assert rates(frozen_epochs=1, warmup_epochs=1)[:9] == pytest.approx(
        [0, 0, 0, 0, LR / 4, LR / 2, 3 * LR / 4, LR, LR]
    )
    assert rates(frozen_epochs=10) == [0.0] * ROUNDS
    assert rates(kind="cosine", warmup_epochs=20)[-1] == LR / 2  # a plan that ends in its warm-up


def test_lr_0_is_0_throughout():
    training = TrainingConfig(schedule=RateSchedule(kind="cosine", warmup_epochs=1))
    assert {training.learning_rate(number, ROUNDS, EPOCH) for number in range(1, ROUNDS + 1)} == {0.0}
