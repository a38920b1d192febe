import pytest
import torch

from attacker.interface import attacks, silent
from vfl.errors import UserError
from vfl.local.one_process import observations
from vfl.maths.least_squares import pseudo_inverse
from vfl.models import build_bottom
from vfl.models.layers import representation
from vfl.observation import Setting
from vfl.observation.schedule import batches
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection


def setting(**changes):
    values = {
        "model": PluginSection(name="mlp", hidden=[40]),
        "boxes": tuple(partition((11,), 3)),
        "classes": 3,
        "samples": 23,
        "batch_size": 5,
        "schedule": "epochs",
        "rounds": 40,
        "frozen": True,
        "seed": 0,
    }
    return Setting(**{**values, **changes})


def attack(given, x, y):
    running = attacks.build(PluginSection(name="least_squares")).start(given)
    for observation in observations(given, x, y, TrainingConfig()):
        running.observe(observation)
    return running.recover(silent)


def test_rows_of_a_table_come_back_exactly_short_batches_included():
    x, y = torch.randn(23, 11), torch.arange(23) % 3
    given = setting()
    recovery = attack(given, x, y)
    for box, part in zip(given.boxes, recovery.slices, strict=True):
        assert torch.allclose(part, box.cut(x), atol=1e-4)


def test_behind_convolutions_the_representation_is_the_recovery():
    x, y = torch.rand(10, 1, 16, 16), torch.arange(10) % 3
    given = setting(model=PluginSection(name="cafe_cnn"), boxes=tuple(partition((1, 16, 16), 4)), samples=10, rounds=24)
    recovery = attack(given, x, y)
    assert recovery.slices is None
    for worker, box in enumerate(given.boxes):
        truth = representation(build_bottom(given.model, box.shape, 0, worker), "fc1", box.cut(x))
        found = recovery.representations[worker]
        assert (found - truth).norm(dim=1).max() / truth.norm(dim=1).min() < 1e-3


def test_uniform_batches_will_do_too():
    x, y = torch.randn(23, 11), torch.arange(23) % 3
    given = setting(schedule="uniform", rounds=60)
    assert torch.allclose(attack(given, x, y).slices[0], given.boxes[0].cut(x), atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"frozen": False}, "needs frozen parameters"),
        ({"rounds": 20}, r"needs 6 epochs \(30 rounds\) for 23 samples in batches of 5, .* the run has 4"),
        ({"batch_size": 23}, "every batch holds all 23 samples"),
        ({"schedule": "uniform", "rounds": 22}, "at least 23 rounds"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_round(changes, words):
    with pytest.raises(UserError, match=words):
        attacks.build(PluginSection(name="least_squares")).start(setting(**changes))


@pytest.mark.parametrize(("samples", "size", "epochs"), [(23, 5, 6), (20, 4, 5), (12, 1, 1), (30, 10, 15)])
def test_the_epochs_asked_for_are_the_fewest_that_do(samples, size, epochs):
    rounds = -(-samples // size)

    def rank(count):
        return pseudo_inverse(list(batches("epochs", samples, size, count * rounds, seed=0)), samples)[1]

    assert rank(epochs) == samples
    given = setting(samples=samples, batch_size=size, rounds=epochs * rounds)
    attacks.build(PluginSection(name="least_squares")).start(given)
    if epochs > 1:
        assert rank(epochs - 1) < samples
        with pytest.raises(UserError):
            attacks.build(PluginSection(name="least_squares")).start(
                setting(samples=samples, batch_size=size, rounds=(epochs - 1) * rounds)
            )


def test_samples_whose_gradient_is_zero_are_declared_lost_and_spoil_nobody():
    x, y = torch.randn(23, 11), torch.arange(23) % 3
    given = setting(model=PluginSection(name="mlp", hidden=[3]))
    recovery = attack(given, x, y)
    dead_somewhere = 0
    for worker, box in enumerate(given.boxes):
        first = build_bottom(given.model, box.shape, 0, worker)[1]
        dead = (first(box.cut(x)) <= 0).all(1)
        found = recovery.slices[worker]
        assert torch.equal(found.isnan().all(1), dead)
        assert torch.allclose(found[~dead], box.cut(x)[~dead], atol=1e-3)
        dead_somewhere += int(dead.sum())
    assert dead_somewhere > 0


def test_the_orthogonal_schedule_determines_the_samples_too():
    x, y = torch.randn(25, 11), torch.arange(25) % 3
    given = setting(samples=25, schedule="orthogonal", rounds=40)
    assert torch.allclose(attack(given, x, y).slices[0], given.boxes[0].cut(x), atol=1e-3)
