"""A worker that takes the coordinator's step once more comes to the same parameters, and knows how far one can go."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl.optimisers.replay import AdamReplay, replay_of
from vfl.optimisers.training import TrainingConfig


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd", "lr": 0.1},
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        {"optimizer": "adam", "lr": 1e-3},
        {"optimizer": "adam", "lr": 1e-3, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_the_replay_takes_the_steps_of_torchs_own_optimiser(options):
    training = TrainingConfig(**options)
    random = torch.Generator().manual_seed(0)
    own = {"a": torch.randn(4, 3, generator=random), "b": torch.randn(5, generator=random)}
    theirs = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in own.items()}
    optimiser, replay = training.build_optimiser().start(list(theirs.values()), training.lr), replay_of(training)
    for number in range(6):
        gradients = {name: torch.randn(tensor.shape, generator=random) for name, tensor in own.items()}
        if number == 3:
            del gradients["b"]  # a part that was withheld
        for name, parameter in theirs.items():
            parameter.grad = gradients.get(name)
        optimiser.step()
        own = replay.step(own, gradients, training.lr)
        for name, parameter in theirs.items():
            torch.testing.assert_close(own[name], parameter.detach(), rtol=1e-6, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40))
def test_adam_never_goes_farther_than_its_bound(gradients):
    replay, here = AdamReplay(), {"a": torch.zeros(1, dtype=torch.float64)}
    for count, gradient in enumerate(gradients, start=1):
        after = replay.step(here, {"a": torch.tensor([gradient], dtype=torch.float64)}, 1.0)
        assert float((after["a"] - here["a"]).abs()) <= AdamReplay.farthest(count) * (1 + 1e-9)
        here = after


def test_the_bound_of_adam_is_reached_by_the_gradients_that_cauchy_and_schwarz_name():
    count, (one, two) = 20, (0.9, 0.999)
    gradients = [(one / two) ** (count - i) for i in range(1, count + 1)]
    replay, here = AdamReplay(), {"a": torch.zeros(1, dtype=torch.float64)}
    for gradient in gradients:
        before = here
        here = replay.step(before, {"a": torch.tensor([gradient], dtype=torch.float64)}, 1.0)
    assert float((before["a"] - here["a"])[0]) == pytest.approx(AdamReplay.farthest(count), rel=1e-6)
