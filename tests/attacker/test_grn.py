"""The generator of columns (Luo et al. 2021): it makes what the model's answers and the columns' kinship allow."""

from dataclasses import replace

import pytest
import torch

from attacker.interface import silent
from attacker.outputs.grn import GRN
from attacker.start import start_attack
from tests.seats_support import seated, seen_from
from vfl.errors import UserError
from vfl.maths.metrics import r2
from vfl.models import build_bottom
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection
from vfl.seats import COORDINATOR, Seat

SEATS = (COORDINATOR, Seat("label_holder", 0))
SAMPLES = 80


def columns(kin):
    """Eight columns; the last four are the first four, turned and a little blurred, or have nothing to do with them."""
    draw = torch.Generator().manual_seed(4)
    own, other = torch.randn(SAMPLES, 4, generator=draw), torch.randn(SAMPLES, 4, generator=draw)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=draw)).Q
    return torch.cat([own, own @ turn + 0.3 * other if kin else other], dim=1)


def generated(kin, rounds=8, **options):
    x, y = columns(kin), torch.arange(SAMPLES) % 2
    model = PluginSection(name="mlp", hidden=[], output=2)
    whole = Setting(model, tuple(partition((8,), 2)), 2, SAMPLES, 10, "epochs", rounds, True, 5, "cpu")
    setting = seated(whole, SEATS, x, y)
    attack = GRN(**options).start(setting)
    for observation in seen_from(setting, x, y, TrainingConfig()):
        attack.observe(observation)
    return x, attack.recover(silent)


def seen_part(x):
    """What two outputs show of four columns: their part in the space of the weights' rows."""
    model = PluginSection(name="mlp", hidden=[], output=2)
    weight = build_bottom(model, (4,), 5, 1)[1].weight.detach()
    return x @ torch.linalg.pinv(weight) @ weight


def test_what_the_outputs_show_of_kin_columns_is_learned_from_all_samples_together():
    x, found = generated(True, fits="outputs", epochs=40)
    share = torch.nn.functional.mse_loss(seen_part(found.slices[1]), seen_part(x[:, 4:])) / seen_part(x[:, 4:]).var()
    assert float(share) < 0.2
    rest = r2(found.slices[1] - seen_part(found.slices[1]), x[:, 4:] - seen_part(x[:, 4:]))
    assert float(rest.mean()) < 0.5  # nothing that it was shown depends on that


def test_of_columns_without_kin_there_is_as_much_as_the_equations_say():
    x, found = generated(False, fits="outputs", epochs=30)
    shares = r2(found.slices[1], x[:, 4:])
    assert 0.1 < float(shares.mean()) < 0.8


def test_the_confidences_of_two_classes_are_one_equation_and_say_less():
    x, found = generated(False, epochs=20)
    assert float(r2(found.slices[1], x[:, 4:]).mean()) < 0.5
    assert "of the variance of the confidences unexplained" in found.notes[0]
    assert found.used == ("indices", "parameters", "outputs", "own slice", "columns at mean 0 and deviation 1")
    assert torch.equal(found.slices[0], x[:, :4])


def test_a_sample_that_was_in_no_batch_is_lost():
    _, found = generated(True, rounds=6, epochs=1)
    assert int(found.slices[1].isnan().all(1).sum()) == 20


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seats": (Seat("label_holder", 0),)}, "the coordinator's seat together with the label holder's seat"),
        ({"boxes": tuple(partition((1, 4, 4), 2))}, "it needs a table, and samples have the shape"),
    ],
)
def test_what_it_cannot_do_without_is_said_before_the_run(change, sentence):
    model = PluginSection(name="mlp")
    setting = Setting(model, tuple(partition((8,), 2)), 2, 12, 6, "epochs", 2, True, 5, "cpu", seats=SEATS)
    with pytest.raises(UserError, match=sentence):
        start_attack(PluginSection(name="grn"), replace(setting, **change))
