"""Batch gradients taken apart are compared with autograd's gradient of each sample alone."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from attacker import disaggregate
from attacker.disaggregate import Collector
from server.parameters import Parameters
from tests.support import assert_close, flat
from vfl.errors import UserError
from vfl.local.one_process import OneProcess, observations
from vfl.models import SplitModel
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection

SAMPLES, CLASSES = 13, 3
X, Y = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1)), torch.arange(SAMPLES) % CLASSES


def setting(**changes):
    base = Setting(
        model=PluginSection(name="mlp", hidden=[9]),
        boxes=tuple(partition((8,), 4)),
        classes=CLASSES,
        samples=SAMPLES,
        batch_size=4,
        schedule="epochs",
        rounds=24,
        frozen=True,
        seed=0,
    )
    return replace(base, **changes)


def collected(given, training=None, **options):
    collector = Collector(given, attack="test", **options)
    for observation in observations(given, X, Y, training or TrainingConfig()):
        collector.observe(observation)
    return collector


def test_every_samples_own_gradient_in_all_layers_short_batches_included():
    given = setting()
    problems = collected(given, disaggregate=True).problems()
    alone, parameters = OneProcess(given, X, Y), Parameters(given, TrainingConfig()).current
    assert len(problems) == SAMPLES
    for number, problem in enumerate(problems):
        assert problem.indices.tolist() == [number]
        assert_close(problem.gradients, alone(parameters, problem.indices)[0], 1e-5)
        assert_close(problem.parameters, parameters, 1e-12)


def test_columns_at_a_time_give_the_same(monkeypatch):
    whole = collected(setting(), disaggregate=True).problems()[3]
    monkeypatch.setattr(disaggregate, "COLUMNS_BYTES", 1000)
    seen = []
    pieces = collected(setting(), disaggregate=True).problems(lambda *at: seen.append(at))[3]
    assert len(seen) > 10
    assert seen[-1][1] == seen[-1][2]
    assert_close(pieces.gradients, whole.gradients, 1e-6)


def test_only_some_samples_when_asked():
    few, all_of_them = (collected(setting(), disaggregate=True, samples=n).problems() for n in (2, None))
    assert [problem.indices.tolist() for problem in few] == [[0], [1]]
    assert_close(few[1].gradients, all_of_them[1].gradients, 1e-6)


def test_batches_of_one_epoch_are_kept_with_the_parameters_of_their_round():
    given, training = setting(frozen=False), TrainingConfig(lr=0.1)
    seen = list(observations(given, X, Y, training))
    problems = collected(given, training).problems()
    assert len(problems) == 4
    assert sorted(n for problem in problems for n in problem.indices.tolist()) == list(range(SAMPLES))
    for problem, observation in zip(problems, seen, strict=False):
        assert torch.equal(problem.indices, observation.indices)
        assert_close(problem.gradients, observation.gradients, 1e-12)
        assert_close(problem.parameters, observation.parameters, 1e-12)
    assert len(collected(given, training, rounds=2).problems()) == 2


def test_kept_rounds_are_copies():
    collector = Collector(setting(), attack="test")
    first = next(iter(observations(setting(), X, Y, TrainingConfig())))
    collector.observe(first)
    before = {name: tensor.clone() for name, tensor in flat(first.gradients).items()}
    for tensor in [*flat(first.gradients).values(), first.indices]:
        tensor.zero_()
    problem = collector.problems()[0]
    assert problem.indices.sum() > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in flat(problem.gradients).items())


def test_uniform_rounds_that_show_nobody_new_are_not_kept():
    problems = collected(setting(schedule="uniform", rounds=60)).problems()
    seen = set()
    for problem in problems:
        assert not set(problem.indices.tolist()) <= seen
        seen |= set(problem.indices.tolist())
    assert len(seen) == SAMPLES


def test_more_rounds_after_a_first_look():
    given, collector = setting(), Collector(setting(), True, attack="test")
    for number, observation in enumerate(observations(given, X, Y, TrainingConfig())):
        if number == 8:
            with pytest.raises(UserError, match="8 rounds determine 7 of 13 samples"):
                collector.problems()
        collector.observe(observation)
    assert_close(collector.problems()[5].gradients, collected(given, disaggregate=True).problems()[5].gradients, 1e-7)


class Norm(SplitModel):
    """Batch norm in training mode."""

    def bottom(self, shape):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"frozen": False}, "attack test with disaggregate cannot run here: it needs frozen parameters"),
        ({"rounds": 8}, r"needs 4 epochs \(16 rounds\) for 13 samples in batches of 4"),
        ({"batch_size": 13}, "nothing tells them apart"),
    ],
)
def test_a_setting_that_cannot_be_taken_apart_is_refused_at_the_start(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        Collector(setting(**changes), True, attack="test")


def test_batch_norm_is_refused():
    with pytest.raises(UserError, match=r"test with disaggregate cannot run here: .*, and the model has batch norm"):
        Collector(setting(model=PluginSection(name=f"{__name__}:Norm")), True, attack="test")


def test_parameters_that_change_after_all_are_noticed():
    with pytest.raises(UserError, match="needs frozen parameters, and they changed before round 2"):
        collected(setting(), TrainingConfig(lr=0.1), disaggregate=True)


def test_nothing_observed_is_said():
    with pytest.raises(UserError, match="attack test: no round was observed"):
        Collector(setting(), attack="test").problems()


def test_a_full_disk_is_said(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disaggregate.os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"No space left on device.*TMPDIR"):
        collected(setting(), disaggregate=True).problems()
