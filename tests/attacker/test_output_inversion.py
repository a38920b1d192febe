"""Features from outputs with known parameters: exact where the equations determine them, and said so."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacker.interface import silent
from attacker.outputs.attack import OutputInversion
from attacker.outputs.solve import Seen, solve
from tests.seats_support import seated, seen_from
from vfl.errors import UserError
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection
from vfl.seats import COORDINATOR, Seat

SEATS = (COORDINATOR, Seat("label_holder", 0))
MOVING = TrainingConfig(optimizer="adam", lr=0.01)


def inverted(model, rounds, training=MOVING, **options):
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(12, 8, generator=draw), torch.arange(12) % 2
    whole = Setting(model, tuple(partition((8,), 2)), 2, 12, 6, "epochs", rounds, training.frozen, 5, "cpu")
    setting = seated(whole, SEATS, x, y)
    attack = OutputInversion(**options).start(setting)
    for observation in seen_from(setting, x, y, training):
        attack.observe(observation)
    return x, attack.recover(silent)


def test_a_linear_bottom_model_is_solved_like_any_equations_from_one_round_of_a_sample():
    x, found = inverted(PluginSection(name="mlp", hidden=[], output=5), rounds=2)
    assert torch.allclose(found.slices[1], x[:, 4:], atol=1e-4)
    assert found.used == ("indices", "parameters", "outputs", "own slice")
    assert found.notes == (
        "Worker 1: its outputs determine 12 of 12 slices of 4 features, after 1 of a sample's rounds.",
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**31))
def test_of_any_linear_model_it_finds_as_much_as_there_are_equations(features, width, rounds, samples, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, generator=draw, dtype=torch.float64)
    weights = torch.stack(
        [torch.linalg.qr(torch.randn(8, 8, generator=draw, dtype=torch.float64)).Q for _ in range(rounds)]
    )[:, :width, :features]
    biases = torch.randn(rounds, width, generator=draw, dtype=torch.float64)
    turns = torch.arange(rounds).repeat_interleave(samples)
    rows = torch.arange(samples).repeat(rounds)
    outputs = (weights[turns] @ x[rows].unsqueeze(2))[..., 0] + biases[turns]
    seen = Seen(rows, turns, outputs, {"weight": weights, "bias": biases})
    found = solve(torch.nn.Linear(features, width), seen, torch.zeros(samples, features), 60)
    needed = -(-features // width)
    assert found.rounds_needed.tolist() == [needed if needed <= rounds else 0] * samples
    least = [torch.linalg.lstsq(torch.cat(list(weights)), (outputs - biases[turns])[rows == n].reshape(-1, 1)).solution
             for n in range(samples)]  # fmt: skip
    if needed <= rounds:
        torch.testing.assert_close(found.x, torch.cat(least, dim=1).T, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.x, x, rtol=1e-4, atol=1e-6)
    assert float(found.misfit.max()) < 1e-6


def test_moving_parameters_give_the_equations_that_one_round_lacks():
    narrow = PluginSection(name="mlp", hidden=[], output=2)
    x, once = inverted(narrow, rounds=2)
    assert "do not determine any slice of 4 features; 12 are explained" in once.notes[0]
    assert (once.slices[1] - x[:, 4:]).abs().max() > 0.1
    x, twice = inverted(narrow, rounds=4)
    assert "determine 12 of 12 slices of 4 features, after 2 of a sample's rounds" in twice.notes[0]
    assert torch.allclose(twice.slices[1], x[:, 4:], atol=1e-3)


def test_frozen_parameters_say_the_same_again():
    _, found = inverted(PluginSection(name="mlp", hidden=[], output=2), rounds=8, training=TrainingConfig())
    assert "do not determine any slice" in found.notes[0]


def test_through_relu_what_is_determined_is_right():
    x, found = inverted(PluginSection(name="mlp", hidden=[16], output=6), rounds=6)
    exact = (found.slices[1] - x[:, 4:]).abs().amax(1) < 1e-3
    assert f"determine {int(exact.sum())} of 12 slices" in found.notes[0]
    assert int(exact.sum()) >= 9


def test_the_label_holders_own_slice_is_its_own():
    x, found = inverted(PluginSection(name="mlp", hidden=[], output=5), rounds=2)
    assert torch.equal(found.slices[0], x[:, :4])


def test_a_sample_that_was_in_no_batch_is_lost():
    _, found = inverted(PluginSection(name="mlp", hidden=[], output=5), rounds=1)
    assert int(found.slices[1].isnan().all(1).sum()) == 6


def test_slices_too_large_for_their_equations_are_refused():
    setting = Setting(PluginSection(name="mlp"), tuple(partition((6000,), 2)), 2, 12, 6, "epochs", 2, True, 5, "cpu")
    with pytest.raises(UserError, match="it needs slices of at most 2000 features, and worker 0 has 3000"):
        OutputInversion().start(replace(setting, seats=SEATS))
