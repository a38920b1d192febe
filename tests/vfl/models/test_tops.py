"""Top models that people bring: checked before the run, with or without parameters, and what attacks refuse of them."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from attacker.interface import attacks, silent
from vfl.config import ModelSection
from vfl.errors import UserError
from vfl.local.one_process import observations
from vfl.models import build_top
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection
from worker.party import Top

CLASSES = 4


def topped(name, bottom="mlp", **options):
    output = {"output": CLASSES} if bottom == "mlp" else {}
    return ModelSection(name=bottom, top={"name": f"tests.vfl.models.tops:{name}", **options}, **output)


def setting(model, **changes):
    values = {"schedule": "epochs", "rounds": 24, "frozen": True, "seed": 0, "device": "cpu", **changes}
    return Setting(model, tuple(partition((16,), 2)), CLASSES, 12, 3, **values)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "narrow",
            r"model\.top\.name: the top model of tests.vfl.models.tops:narrow must .*\(batch, 4\).*made \(2, 3\)",
        ),
        (
            "misfit",
            "model tests.vfl.models.tops:misfit cannot run on the workers' vectors, 8 numbers side by side: Runtime",
        ),
        ("Pair", "it made tuple of two samples"),
    ],
)
def test_a_top_model_that_does_not_fit_is_said_before_the_run(name, sentence):
    with pytest.raises(UserError, match=sentence):
        build_top(topped(name), [4, 4], CLASSES, 0)


def test_a_top_model_without_parameters_gives_the_workers_their_gradients():
    top = Top(build_top(topped("Sums"), [4, 4], CLASSES, 0), torch.tensor([1, 3]), None, "cpu")
    z = torch.randn(2, 8, requires_grad=True)
    learned = top.learn(list(z.detach().split(4, 1)), torch.arange(2))
    (expected,) = torch.autograd.grad(cross_entropy(z[:, :4] + z[:, 4:], torch.tensor([1, 3])), z)
    assert learned.top_gradients == {}
    torch.testing.assert_close(torch.cat(learned.output_gradients, 1), expected)


@pytest.mark.parametrize("name", ["exact", "least_squares"])
def test_data_leak_under_a_top_model_without_parameters_too(name):
    given = setting(topped("Sums"))
    x, y = torch.randn(12, 16, generator=torch.Generator().manual_seed(1)), torch.arange(12) % CLASSES
    attack = attacks.build(PluginSection(name=name)).start(given)
    for observation in observations(given, x, y, TrainingConfig()):
        assert observation.complete
        attack.observe(observation)
    recovery = attack.recover(silent)
    torch.testing.assert_close(torch.cat(recovery.slices, 1), x, rtol=0, atol=1e-3)
    assert name != "exact" or torch.equal(recovery.labels, y)


def test_attacks_that_read_the_top_models_gradient_refuse_one_without():
    for name in ("idlg", "rgap"):
        with pytest.raises(UserError, match="top model"):
            attacks.build(PluginSection(name=name)).start(setting(topped("Sums")))
    attacks.build(PluginSection(name="dlg", labels="optimised")).start(setting(topped("Sums")))


@pytest.mark.parametrize("attack", ["exact", "least_squares", "cafe", "averaging"])
@pytest.mark.parametrize("layer", ["batch norm", "dropout", "spectral norm"])
def test_gradients_that_depend_on_more_than_the_sample_are_refused_at_the_top_too(attack, layer):
    plugin = attacks.build(PluginSection(name=attack))
    if (attack, layer) == ("exact", "dropout"):  # what flows into its layers is the same each time
        plugin.start(setting(topped("with_layer", layer=layer)))
        return
    found = f"(the top model has {layer}|there is some in the top model)"
    with pytest.raises(UserError, match=f"attack {attack} cannot run here: .*, and {found}"):
        plugin.start(setting(topped("with_layer", layer=layer)))
    plugin.start(setting(topped("with_layer", layer="frozen batch norm")))


@pytest.mark.parametrize("attack", ["least_squares", "cafe"])
def test_and_at_the_bottom_by_other_attacks_than_exact(attack):
    model = ModelSection(name="tests.vfl.models.test_tops:dropped")
    with pytest.raises(UserError, match=f"attack {attack} cannot run here: .*, and the model has dropout"):
        attacks.build(PluginSection(name=attack)).start(setting(model))


def dropped(shape):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], 16), torch.nn.Dropout(0.5))
