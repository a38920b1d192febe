"""Bottom models as people write them: each works, or is refused in one sentence with its name."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from attacker.interface import attacks, silent
from vfl.config import ModelSection
from vfl.errors import RunFailedError, UserError
from vfl.local.one_process import observations
from vfl.models import build_bottom
from vfl.models.layers import fully_connected
from vfl.models.whole import whole_model
from vfl.observation import ModelTensors, Observation, Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection
from worker.party import Bottom


class Spare(nn.Module):
    """Has a parameter that forward does not use, and gives its layer's input by name."""

    def __init__(self, shape):
        super().__init__()
        self.first, self.spare = nn.Linear(shape[0], 16), nn.Linear(3, 3)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        return self.out(input=torch.tanh(self.first(input=x)))


def half_frozen(shape):
    model = nn.Sequential(nn.Linear(shape[0], 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    model[0].requires_grad_(False)
    return model


def normed(shape, old: bool = False):
    norm = weight_norm if old else parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(shape[0], 16)), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def tied(shape):
    model = nn.Sequential(nn.Linear(shape[0], 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4))
    model[2].weight = model[1].weight
    return model


def lazy(shape):
    return nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(4))


class Unused(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.out, self.never = nn.Linear(shape[0], 4), nn.LazyLinear(3)

    def forward(self, x):
        return self.out(x)


def empty(shape):
    return nn.Flatten()


class First(nn.Module):
    """A network for tables with something before its first layer."""

    def __init__(self, shape, way: str):
        super().__init__()
        self.norm = nn.BatchNorm1d(shape[0]).eval()
        self.way, self.layer, self.out = way, nn.Linear(shape[0], 16), nn.Linear(16, 4)

    def forward(self, x):
        before = {"norm": self.norm, "scale": lambda x: 0.5 * x + 0.1, "minus": torch.neg, "tanh": lambda x: x.tanh()}
        return self.out(torch.tanh(self.layer(before[self.way](x))))


class Doubles(nn.Module):
    """Computes in float64."""

    def __init__(self, shape):
        super().__init__()
        self.layer, self.out = nn.Linear(shape[0], 16).double(), nn.Linear(16, 4).double()

    def forward(self, x):
        return self.out(torch.tanh(self.layer(x.double()))).float()


class Unsteady(nn.Module):
    """Does without the modules of that name what makes a sample's gradient depend on more than the sample."""

    def __init__(self, shape, way: str):
        super().__init__()
        self.layer, self.out = nn.Linear(shape[0], 16), nn.Linear(16, 4)
        self.way, self.runs = way, 0

    def forward(self, x):
        self.runs += 1
        x = x + 0.1 * torch.randn_like(x) if self.way == "noise before" else x
        x = self.layer(x)
        if self.way == "batch":
            x = nn.functional.batch_norm(x, None, None, training=True)
        if self.way == "company":
            x = x - x.mean(0)
        x = torch.tanh(x)
        if self.way == "dropout after":
            x = nn.functional.dropout(x, 0.3, self.training)
        return self.out(x) * (1 + 0.1 * self.runs if self.way == "counts" else 1)


class Failing(nn.Module):
    """Fails on blank slices, or on others."""

    def __init__(self, shape, blank: bool = True):
        super().__init__()
        self.out, self.blank = nn.Linear(shape[0], 4), blank

    def forward(self, x):
        if self.blank is not bool(x.any()):
            raise KeyError("weights")
        return self.out(x)


def own(name, **options):
    return ModelSection(name=f"{__name__}:{name}", **options)


def played(model, epochs=6, **options):
    """Return what `exact` makes of 12 rows of 16 columns at two workers, in batches of 3."""
    setting = Setting(model, tuple(partition((16,), 2)), 4, 12, 3, "epochs", 4 * epochs, True, 0, "cpu")
    x, y = torch.randn(12, 16, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 4
    attack = attacks.build(PluginSection(name="exact", **({"step_three": False} | options))).start(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        attack.observe(observation)
    return x, attack.recover(silent)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (own("Spare"), "first"),
        (own("half_frozen"), "2"),
        (own("normed"), "2"),
        (own("normed", old=True), "2"),
        (own("tied"), "0"),
        (own("lazy"), "0"),
    ],
)
def test_ordinary_models_are_trained_and_attacked(model, layer):
    x, recovery = played(model)
    assert recovery.layers == (layer, layer)
    assert recovery.certified is None or recovery.certified.all()  # None where it takes step III, which is off
    bottom = build_bottom(model, (8,), 0, 0)
    party = Bottom(bottom, x[:, :8], None, "cpu")
    output = party.forward(torch.arange(3))
    gradients = party.backward(torch.ones_like(output))
    assert gradients.keys() == dict(bottom.named_parameters()).keys()
    bottom(x[:3, :8]).sum().backward()
    for name, parameter in bottom.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(gradients[name], expected)


@pytest.mark.parametrize("way", ["norm", "scale", "minus", "tanh"])
def test_tables_come_back_through_what_is_before_the_layer(way):
    """Columns are scaled to a mean of 0 and a deviation of 1: none of what holds for pixels holds for them."""
    x, recovery = played(own("First", way=way), step_three=True)
    torch.testing.assert_close(torch.cat(recovery.slices, dim=1), x, rtol=0, atol=1e-2)
    assert not any("Step III found no data" in note for note in recovery.notes)


def test_a_model_in_float64_is_attacked():
    x, recovery = played(own("Doubles"))
    torch.testing.assert_close(torch.cat(recovery.slices, dim=1), x, rtol=0, atol=1e-3)


@pytest.mark.parametrize("way", ["dropout after", "counts"])
def test_what_differs_each_time_after_the_layer_keeps_nothing_from_the_attack(way):
    x, recovery = played(own("Unsteady", way=way), epochs=12)
    found = torch.cat(recovery.slices, dim=1)
    right = (found - x).abs().amax(dim=1) < 1e-2
    assert int(right.sum()) >= 9
    assert any("What comes after the attacked layer differs each time" in note for note in recovery.notes)


@pytest.mark.parametrize("method", ["least_squares", "rank_one"])
def test_a_method_that_needs_the_same_gradient_each_time_is_not_swapped_for_another(method):
    with pytest.raises(UserError, match=r"exact cannot run .* what the model makes of a sample differs each time"):
        played(own("Unsteady", way="dropout after"), epochs=12, method=method)


@pytest.mark.parametrize(
    ("way", "attack", "sentence"),
    [
        ("noise before", "exact", r"exact cannot run .* sample differs each time \(dropout, noise"),
        ("batch", "exact", "exact cannot run .* what the model makes of a sample depends on its batch"),
        ("company", "exact", "exact cannot run .* what the model makes of a sample depends on its batch"),
        ("dropout after", "least_squares", "least_squares cannot run .* sample differs each time"),
        ("counts", "cafe", "cafe cannot run .* what the model makes of a sample differs each time"),
    ],
)
def test_models_that_depend_on_more_than_the_sample_are_refused_however_they_are_written(way, attack, sentence):
    setting = Setting(own("Unsteady", way=way), tuple(partition((16,), 2)), 4, 12, 3, "epochs", 48, True, 0, "cpu")
    with pytest.raises(UserError, match=sentence):
        attacks.build(PluginSection(name=attack)).start(setting)


def test_what_is_not_trained_is_a_constant_that_nobody_sends():
    model = build_bottom(own("half_frozen"), (8,), 0, 0)
    assert not any(name.startswith("0.") for name, _ in model.named_parameters())
    assert torch.equal(model[0].weight, build_bottom(own("half_frozen"), (8,), 0, 0)[0].weight)


def test_layers_that_share_a_weight_are_not_attacked():
    assert [layer.name for layer in fully_connected(tied((8,)), (8,))] == ["0", "3"]


def test_lazy_layers_are_the_same_for_every_party():
    one, other = build_bottom(own("lazy"), (8,), 0, 1), build_bottom(own("lazy"), (8,), 0, 1)
    assert torch.equal(one[0].weight, other[0].weight)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (own("Failing"), r"model tests.vfl.models.test_ordinary_models:Failing cannot run .* KeyError: 'weights'$"),
        (own("Unused"), "Unused: the lazy layer of never.weight is not used by forward"),
        (
            own("empty", top={"name": "tests.vfl.models.tops:Sums"}),
            "empty: no part of it has parameters that are trained",
        ),
    ],
)
def test_what_cannot_be_trained_is_said_before_the_run_with_the_models_name(model, sentence):
    with pytest.raises(UserError, match=sentence):
        whole_model(model, [(4,), (4,)], 4, 0)


def test_a_model_without_parameters_has_no_layer_to_attack():
    with pytest.raises(UserError, match="worker 0's model has none"):
        played(own("empty"))


def test_a_model_that_fails_in_a_round_is_named():
    model = build_bottom(own("Failing", blank=False), (4,), 0, 0)
    party = Bottom(model, torch.ones(3, 4), torch.ones(3, 4), "cpu")
    own_name = "tests.vfl.models.test_ordinary_models:Failing"
    told = rf"the model plug-in {own_name} failed in forward: KeyError: 'weights' \(test_or"
    with pytest.raises(RunFailedError, match=told):
        party.forward(torch.arange(2))
    with pytest.raises(RunFailedError, match=told):
        party.evaluate(torch.arange(2))


def test_a_round_is_complete_without_gradients_of_models_that_have_no_parameters():
    some, none = {"weight": torch.ones(1)}, {}
    parameters = ModelTensors((some, none), none)
    assert Observation(1, torch.arange(2), 1, parameters, ModelTensors((some, none), none)).complete
    assert not Observation(1, torch.arange(2), 1, parameters, ModelTensors((none, none), none)).shown
