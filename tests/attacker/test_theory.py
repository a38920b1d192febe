"""Exclusive neurons: what they give away is exact, and how many samples have them is counted by autograd."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from attacker.interface import silent
from attacker.theory import Theory
from attacker.theory.join import candidates
from server.parameters import Parameters
from vfl.errors import UserError
from vfl.local.one_process import OneProcess, observations
from vfl.models import SplitModel, build_bottom
from vfl.models.layers import representation
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import assemble, partition
from vfl.referee import best_order
from vfl.registry import PluginSection

STATIC = TrainingConfig()
SHY = f"{__name__}:Shy"


class Shy(SplitModel):
    """A wide layer of neurons with a low bias: each fires for few samples."""

    threshold: float = 1.0
    width: int = 400

    def bottom(self, shape):
        first = nn.Linear(int(torch.tensor(shape).prod()), self.width)
        with torch.no_grad():
            first.weight.copy_(nn.functional.normalize(torch.randn(first.weight.shape), dim=1))
            first.bias.fill_(-self.threshold)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(self.width, 10))


def table(samples=24, columns=32, seed=0):
    return torch.randn(samples, columns, generator=torch.Generator().manual_seed(seed))


def setting(x, model, classes=5, workers=4, **changes):
    boxes = tuple(partition(tuple(x.shape[1:]), workers))
    return replace(Setting(model, boxes, classes, len(x), 6, "epochs", 4, True, 3, "cpu"), **changes)


def recovered(given, x, y, training=STATIC, **options):
    attack = Theory(**options).start(given)
    for observation in observations(given, x, y, training):
        attack.observe(observation)
    return attack.recover(silent)


def exclusive_at_every_worker(given, x, y, layer="1"):
    """Count by autograd the samples for which, at every worker, two neurons pass gradient for them alone in a batch."""
    alone, parameters = OneProcess(given, x, y), Parameters(given, STATIC).current
    samples = [alone(parameters, torch.tensor([n]))[0].bottoms for n in range(len(x))]
    met = 0
    for observation in list(observations(given, x, y, STATIC)):
        per_worker = []
        for m in range(given.workers):
            fires = torch.stack([samples[n][m][f"{layer}.bias"] != 0 for n in observation.indices.tolist()])
            per_worker.append((fires & (fires.sum(dim=0) == 1)).sum(dim=1) >= 2)
        met += int(torch.stack(per_worker).all(dim=0).sum())
    return met


def complete(recovery):
    """Tell which samples have all their slices and a label."""
    return torch.cat(recovery.slices, dim=1).isfinite().all(dim=1) & (recovery.labels >= 0)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("threshold", [0.8, 1.2])
def test_what_meets_the_condition_is_exact_and_counted(threshold, classes):
    x, y = table(), torch.arange(24) % classes
    given = setting(x, PluginSection(name=SHY, threshold=threshold), classes)
    recovery = recovered(given, x, y)
    expected = exclusive_at_every_worker(given, x, y)
    assert expected >= 12
    certified = recovery.certified
    assert certified.sum() >= 5  # one round must say all of them: those whose batch came back whole
    assert recovery.notes[0].endswith(f" {expected} of 24 samples at every worker.")
    found = assemble(given.boxes, recovery.slices)[certified]
    nearest = torch.cdist(found, x).min(dim=1)
    assert nearest.values.max() < 1e-5
    assert torch.equal(recovery.labels[certified], y[nearest.indices])
    for n, at in zip(certified.nonzero()[:, 0].tolist(), nearest.indices.tolist(), strict=True):
        assert any({n, at} <= set(cell) for cell in recovery.cells)


def test_a_batch_where_all_meet_the_condition_comes_back_whole():
    x, y = table(12), torch.arange(12) % 5
    given = setting(x, PluginSection(name=SHY, threshold=0.5, width=1000), batch_size=4, rounds=3)
    assert exclusive_at_every_worker(given, x, y) == 12
    recovery = recovered(given, x, y)
    found = assemble(given.boxes, recovery.slices)
    order = best_order(found, x, recovery.cell_of(12))
    assert torch.allclose(found[order], x, atol=1e-5)
    assert torch.equal(recovery.labels[order], y)


def test_without_exclusive_neurons_nothing_is_claimed():
    x, y = table(), torch.arange(24) % 5
    recovery = recovered(setting(x, PluginSection(name=SHY, threshold=-5.0)), x, y)
    assert all(part.isnan().all() for part in recovery.slices)
    assert recovery.notes[0].endswith(" 0 of 24 samples at every worker.")


def test_disaggregated_every_neuron_is_exclusive():
    x, y = table(), torch.arange(24) % 5
    given = setting(x, PluginSection(name="mlp", hidden=[40]), rounds=40)
    recovery = recovered(given, x, y, disaggregate=True)
    assert torch.allclose(assemble(given.boxes, recovery.slices), x, atol=1e-4)
    assert torch.equal(recovery.labels, y)
    assert recovery.cells == ()


def test_moving_parameters_and_a_uniform_schedule_leave_batches_of_their_own():
    x, y = table(), torch.arange(24) % 5
    given = setting(x, PluginSection(name=SHY), frozen=False, schedule="uniform", rounds=9)
    recovery = recovered(given, x, y, TrainingConfig(lr=0.5))
    certified = complete(recovery)
    assert certified.sum() >= 6
    assert torch.cdist(assemble(given.boxes, recovery.slices)[certified], x).min(dim=1).values.max() < 1e-5
    assert len(set().union(*recovery.cells)) == sum(map(len, recovery.cells))


def test_behind_convolutions_the_representation_leads_to_the_image():
    coarse = torch.rand(1, 1, 3, 3, generator=torch.Generator().manual_seed(5))
    x, y = nn.functional.interpolate(coarse, size=(8, 8), mode="bilinear"), torch.tensor([3])
    given = setting(x, PluginSection(name="strided_cnn"), workers=1, batch_size=1, rounds=1)
    recovery = recovered(given, x, y)
    for worker, box in enumerate(given.boxes):
        model = build_bottom(given.model, box.shape, given.seed, worker)
        truth = representation(model, recovery.layers[worker], box.cut(x).contiguous())
        assert (recovery.representations[worker] - truth).norm() < 1e-4 * truth.norm()
    assert (assemble(given.boxes, recovery.slices) - x).square().mean() < 1e-3
    assert recovery.labels.tolist() == [3]
    assert recovery.used[-1] == "pixels between 0 and 1 on 256 levels"
    assert recovered(given, x, y, step_three=False).slices is None


def test_identical_slices_do_not_fool_it():
    x, y = table(), torch.arange(24) % 5
    x[:, :8] = x[0, :8]  # worker 0 holds the same of everybody
    recovery = recovered(setting(x, PluginSection(name=SHY)), x, y)
    certified = recovery.certified
    found = torch.cat(recovery.slices, dim=1)[certified]
    assert torch.cdist(found, x).min(dim=1).values.lt(1e-5).all()


def test_neurons_that_agree_are_averaged_and_noise_is_no_candidate():
    random = torch.Generator().manual_seed(0)
    h, v = torch.randn(30, generator=random), torch.zeros(20)
    v[[3, 7, 11]] = torch.tensor([0.5, -2.0, 1e-3])
    found = candidates(torch.outer(v, h), v, batch=5)
    assert len(found.h) == 1
    assert torch.allclose(found.h[0].float(), h, atol=1e-6)
    assert (found.v[0] != 0).nonzero()[:, 0].tolist() == [3, 7, 11]
    assert len(candidates(torch.randn(20, 30, generator=random), torch.randn(20, generator=random), 5).h) == 0
    assert len(candidates(torch.randn(20, 30, generator=random), torch.randn(20, generator=random), 1).h) == 0
    assert len(candidates(torch.zeros(20, 30), torch.zeros(20), 1).h) == 0


class Convolutions(SplitModel):
    """No fully connected layer."""

    def bottom(self, shape):
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten())


def test_a_model_without_fully_connected_layer_is_refused():
    x = torch.rand(4, 1, 8, 8)
    with pytest.raises(UserError, match="that of worker 0 begins with no fully connected layer"):
        Theory().start(setting(x, PluginSection(name=f"{__name__}:Convolutions")))
