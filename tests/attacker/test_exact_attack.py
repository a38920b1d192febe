"""The plug-in on small federations: what it recovers is compared with autograd's own h and the true labels."""

from dataclasses import replace

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from attacker.exact import Exact
from attacker.interface import Recovery, silent
from vfl.errors import UserError
from vfl.local.one_process import OneProcess, observations
from vfl.models import SplitModel, build_bottom
from vfl.models.layers import representation
from vfl.observation import ModelTensors, Observation, Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection

CNN = PluginSection(name="cafe_cnn", fc1=96)
CLASSES = 5


def images(samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(samples, 3, 4, 4, generator=random)
    x = nn.functional.interpolate(coarse, size=(16, 16), mode="bilinear")
    return x, torch.randint(0, CLASSES, (samples,), generator=random)


def setting_for(x: Tensor, batch_size: int, rounds: int, model: PluginSection = CNN, **changes) -> Setting:
    boxes = tuple(partition(tuple(x.shape[1:]), changes.pop("workers", 4)))
    base = Setting(model, boxes, CLASSES, len(x), batch_size, "epochs", rounds, True, 3, "cpu")
    return replace(base, **changes)


def attacked(setting: Setting, x: Tensor, y: Tensor, change=lambda o: o, **options) -> Recovery:
    attack = Exact(step_three=False, **options).start(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        attack.observe(change(observation))
    return attack.recover(silent)


def truth(setting: Setting, x: Tensor, worker: int, layer: str) -> Tensor:
    box = setting.boxes[worker]
    with torch.no_grad():
        return representation(
            build_bottom(setting.model, box.shape, setting.seed, worker), layer, box.cut(x).contiguous()
        )


def scores(setting: Setting, recovery: Recovery, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """Return the relative errors of h (samples, workers) and the share of right labels, cells in their best order."""
    assert recovery.representations is not None
    assert recovery.layers is not None
    assert recovery.labels is not None
    true = [truth(setting, x, m, name) for m, name in enumerate(recovery.layers)]
    in_cells = {n for cell in recovery.cells for n in cell}
    groups = [*recovery.cells, *((n,) for n in range(len(x)) if n not in in_cells)]
    error, right = torch.zeros(len(x), setting.workers), 0
    for group in map(list, groups):
        pairs = torch.stack(
            [
                torch.cdist(found[group], h[group], compute_mode="donot_use_mm_for_euclid_dist") / h[group].norm(dim=1)
                for found, h in zip(recovery.representations, true, strict=True)
            ]
        ).nan_to_num(1e6)
        for i, j in zip(*linear_sum_assignment((pairs > 1e-4).sum(dim=0).numpy()), strict=True):
            error[group[i]] = pairs[:, i, j]
            right += int(recovery.labels[group[i]] == y[group[j]])
    return error, right / len(x)


@pytest.mark.parametrize("epochs", [2, 3, 4])
@pytest.mark.parametrize("samples", [48, 45])
def test_representations_and_labels_of_a_whole_federation(epochs, samples):
    x, y = images(samples)
    setting = setting_for(x, 8, epochs * 6)
    recovery = attacked(setting, x, y)
    error, labels = scores(setting, recovery, x, y)
    assert float((error < 1e-4).float().mean()) >= 0.99
    assert labels >= 0.99
    assert recovery.certificates is None  # without step III there are no data to hold against the gradients
    assert not any("altered" in note for note in recovery.notes)


def test_a_worker_with_gradients_a_million_times_smaller_is_read_as_well():
    x, y = images(48)
    setting = setting_for(x, 8, 18)
    compute = OneProcess(setting, x, y)

    def shrink(observation: Observation) -> Observation:
        top = {name: tensor.clone() for name, tensor in observation.parameters.top.items()}
        top["fc.weight"][:, :10] *= 1e-6  # the top model hardly listens to worker 0
        parameters = ModelTensors(observation.parameters.bottoms, top)
        return replace(observation, parameters=parameters, gradients=compute(parameters, observation.indices)[0])

    error, labels = scores(setting, attacked(setting, x, y, shrink), x, y)
    assert float((error < 1e-4).float().mean()) >= 0.99
    assert labels >= 0.99


def test_one_epoch_gives_small_batches_without_their_order():
    x, y = images(24)
    setting = setting_for(x, 4, 6)
    recovery = attacked(setting, x, y, method="one_gradient")
    error, labels = scores(setting, recovery, x, y)
    assert {len(cell) for cell in recovery.cells} == {4}
    assert float((error < 1e-4).float().mean()) >= 0.95
    assert labels >= 0.95


@pytest.mark.parametrize(
    ("options", "model", "assumed"),
    [
        ({}, CNN, ("pixels between 0 and 1 on 256 levels",)),
        ({"levels": 0}, CNN, ("pixels between 0 and 1",)),
        (None, CNN, ()),
        ({}, PluginSection(name="mlp"), ()),  # its first layer sees the pixels
    ],
)
def test_the_ledger_has_what_step_three_takes_for_granted(options, model, assumed):
    x, y = images(4)
    setting = setting_for(x, 2, 4, model, workers=1)
    quick = {} if options is None else {"inversion": {"attempts": 1, "search_steps": 1, "polish_steps": 0, **options}}
    attack = Exact(step_three=options is not None, **quick).start(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        attack.observe(observation)
    assert attack.recover(silent).used == ("indices", "parameters", "gradients", *assumed)


def test_rows_of_a_table_by_least_squares():
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 16, generator=random), torch.randint(0, CLASSES, (60,), generator=random)
    setting = setting_for(x, 7, 9 * 9, PluginSection(name="mlp", hidden=(24,)))
    recovery = attacked(setting, x, y)
    assert recovery.slices is not None
    assert recovery.labels is not None
    for box, found in zip(setting.boxes, recovery.slices, strict=True):
        torch.testing.assert_close(found, box.cut(x), rtol=0, atol=1e-3)
    assert torch.equal(recovery.labels, y)
    assert "The attack split each batch's gradients into those of its samples, by least squares." in recovery.notes


def test_least_squares_and_subspaces_agree():
    x, y = images(24)
    setting = setting_for(x, 4, 6 * 6)
    by_subspaces = attacked(setting, x, y, method="subspaces").representations
    by_squares = attacked(setting, x, y, method="least_squares").representations
    assert by_subspaces is not None
    assert by_squares is not None
    for a, b in zip(by_subspaces, by_squares, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)


def test_a_later_layer_serves_where_the_first_has_no_room():
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(40, 4, generator=random), torch.randint(0, CLASSES, (40,), generator=random)
    model = PluginSection(name="mlp", hidden=(64, 48))
    setting = setting_for(x, 5, 8 * 3, model, workers=1)
    recovery = attacked(setting, x, y, method="subspaces")
    assert recovery.layers == ("3",)
    error, _ = scores(setting, recovery, x, y)
    assert float((error < 1e-3).float().mean()) > 0.9


def test_noise_on_the_gradients_is_noticed():
    x, y = images(48)
    setting = setting_for(x, 8, 18)

    def disturb(observation: Observation) -> Observation:
        random = torch.Generator().manual_seed(observation.round)
        bottoms = tuple(
            {name: g + 0.01 * g.std() * torch.randn(g.shape, generator=random) for name, g in bottom.items()}
            for bottom in observation.gradients.bottoms
        )
        return replace(observation, gradients=ModelTensors(bottoms, observation.gradients.top))

    assert any("look altered" in note for note in attacked(setting, x, y, disturb).notes)


def test_memory_stops_growing_once_all_samples_are_told_apart():
    x, y = images(24)
    attack = Exact(step_three=False).start(setting_for(x, 4, 6 * 30))
    for observation in observations(setting_for(x, 4, 6 * 30), x, y, TrainingConfig()):
        attack.observe(observation)
    assert len(attack._subspaces._rounds.batches) < 6 * 10
    assert len(attack._squares._rounds.batches) == 2 * 24  # kept too, should subspaces leave samples open


class WithoutBias(SplitModel):
    """A fully connected layer without a bias."""

    def bottom(self, shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 20, bias=False))


class Convolutions(SplitModel):
    """No fully connected layer."""

    def bottom(self, shape):
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())


class BatchNorm(SplitModel):
    """Batch norm in training mode."""

    def bottom(self, shape):
        return nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 8 * 8, 20))


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({"rounds": 6}, {"method": "subspaces"}, "needs 2 epochs"),
        ({"batch_size": 48, "rounds": 4}, {"method": "subspaces"}, "every batch holds all 48 samples"),
        ({"rounds": 20}, {"method": "least_squares"}, r"by least squares it needs \d+ epochs"),
        ({"model": PluginSection(name=f"{__name__}:WithoutBias"), "frozen": False}, {}, "layer with a bias"),
        ({"model": PluginSection(name=f"{__name__}:Convolutions")}, {}, "worker 0's model has none"),
        ({"model": PluginSection(name=f"{__name__}:BatchNorm")}, {}, "batch norm"),
    ],
)
def test_what_cannot_work_is_refused_before_the_start(changes, options, sentence):
    x, _ = images(48)
    with pytest.raises(UserError, match=sentence):
        Exact(**options).start(replace(setting_for(x, 8, 18), **changes))


def test_a_sample_never_drawn_is_named():
    x, y = images(48)
    setting = setting_for(x, 8, 18)
    attack = Exact(step_three=False).start(setting)
    compute = OneProcess(setting, x, y)
    first = next(iter(observations(setting, x, y, TrainingConfig())))
    for number in range(6):
        indices = torch.arange(8)
        gradients, _ = compute(first.parameters, indices)
        attack.observe(replace(first, round=number + 1, indices=indices, gradients=gradients))
    with pytest.raises(UserError, match="40 of 48 samples were never drawn"):
        attack.recover(silent)


def test_identical_samples_that_no_batch_parts_are_pointed_out():
    x, y = images(6)
    x[1], x[2] = x[0], x[0]
    setting = setting_for(x, 3, 4)
    parameters = next(iter(observations(setting, x, y, TrainingConfig()))).parameters
    compute = OneProcess(setting, x, y)

    def notes(batches: list[list[int]]) -> str:
        attack = Exact(step_three=False).start(setting)
        for number, batch in enumerate(batches, start=1):
            indices = torch.tensor(batch)
            attack.observe(Observation(number, indices, 1, parameters, compute(parameters, indices)[0]))
        return " ".join(attack.recover(silent).notes)

    assert "8 slices look like another sample's" in notes([[0, 1, 3], [2, 4, 5], [0, 1, 4], [2, 3, 5]])
    assert "look like" not in notes([[0, 3, 4], [1, 2, 5], [0, 1, 3], [2, 4, 5], [0, 2, 5], [1, 3, 4]])
