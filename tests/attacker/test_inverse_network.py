"""The way back from outputs, learned from known samples: against a bottom model whose inverse is known."""

from dataclasses import replace

import pytest
import torch

from attacker.interface import silent
from attacker.outputs.inverse import InverseNetwork
from attacker.outputs.regression import fit
from attacker.start import start_attack
from tests.seats_support import seated, seen_from
from vfl.errors import UserError
from vfl.maths.metrics import r2
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection
from vfl.seats import COORDINATOR, Seat

HOLDER = Seat("label_holder", 0)
FROZEN = TrainingConfig()


def known_by_holder(model, *, known=30, training=FROZEN, samples=120, rounds=12):
    """The setting of a label holder that knows the first samples, and what it sees."""
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(samples, 8, generator=draw), torch.arange(samples) % 2
    boxes = tuple(partition((8,), 2))
    whole = Setting(model, boxes, 2, samples, 10, "epochs", rounds, training.frozen, 5, "cpu", auxiliary=known)
    setting = seated(whole, (HOLDER,), x, y)
    return x, setting, list(seen_from(setting, x, y, training))


def inverted(model, **how):
    x, setting, rounds = known_by_holder(model, **how)
    attack = InverseNetwork(steps=100).start(setting)
    for observation in rounds:
        attack.observe(observation)
    return x, attack.recover(silent)


def test_a_linear_bottom_model_is_undone_by_its_inverse_which_known_samples_determine():
    x, found = inverted(PluginSection(name="mlp", hidden=[], output=6))
    assert float(r2(found.slices[1][30:], x[30:, 4:]).min()) > 0.999
    assert "ridge regression" in found.notes[0]


def test_through_relu_and_while_parameters_move_more_is_known_than_the_mean():
    model = PluginSection(name="mlp", hidden=[16], output=6)
    x, found = inverted(model, known=60, training=TrainingConfig(optimizer="adam", lr=0.001))
    assert float(r2(found.slices[1][60:], x[60:, 4:]).mean()) > 0.5


def test_outputs_that_have_nothing_to_do_with_the_slice_give_no_more_than_the_mean():
    draw = torch.Generator().manual_seed(1)
    rows, targets = torch.randn(60, 5, generator=draw).double(), torch.randn(60, 4, generator=draw).double()
    found = fit(rows, targets, sizes=(16, 60), seed=0, classes=torch.arange(60) % 2)
    others = torch.randn(500, 5, generator=draw).double()
    assert found.predict(others).var(0).mean() < 0.2
    assert found.error > 0.8 * found.mean_error


def test_known_samples_are_as_they_are_known_and_the_ledger_says_so():
    x, found = inverted(PluginSection(name="mlp", hidden=[], output=6))
    assert found.told == tuple(range(30))
    assert torch.equal(found.slices[1][:30], x[:30, 4:])
    assert torch.equal(found.slices[0], x[:, :4])
    assert found.used == ("indices", "outputs", "30 samples known whole", "own slice")


def test_a_sample_that_was_in_no_batch_is_lost():
    x, found = inverted(PluginSection(name="mlp", hidden=[], output=6), rounds=10)
    lost = found.slices[1].isnan().all(1)
    assert int(lost.sum()) > 0
    assert not bool(lost[:30].any())
    assert bool(((found.slices[1] - x[:, 4:]).abs().amax(1) < 0.1)[~lost].all())


def test_the_same_rounds_give_the_same_slices():
    model = PluginSection(name="mlp", hidden=[16], output=6)
    assert torch.equal(inverted(model)[1].slices[1], inverted(model)[1].slices[1])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"auxiliary": 0}, "it needs 10 samples that it knows from elsewhere, at the least, and auxiliary.* is 0"),
        ({"seats": (COORDINATOR,)}, "it needs the label holder's seat, and the adversary is the coordinator"),
        ({"seats": (Seat("worker", 1),)}, "it needs the label holder's seat, and the adversary is worker 1"),
    ],
)
def test_what_it_cannot_do_without_is_said_before_the_run(change, sentence):
    _, setting, _ = known_by_holder(PluginSection(name="mlp"))
    with pytest.raises(UserError, match=sentence):
        start_attack(PluginSection(name="inverse_network"), replace(setting, **change))
