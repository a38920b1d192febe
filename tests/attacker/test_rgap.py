"""R-GAP on single samples, and its refusals; the linear systems of a layer are compared with autograd."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, interpolate

from attacker.interface import silent
from attacker.rgap import RGap
from attacker.rgap.chain import chain, inverse_leaky_relu, inverse_relu, inverse_tanh
from attacker.rgap.recursion import LacksRankError, convolution_input, solve
from vfl.errors import UserError
from vfl.local.one_process import observations
from vfl.maths.metrics import psnr
from vfl.models import SplitModel
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import assemble, partition
from vfl.registry import PluginSection


class Small(SplitModel):
    """Two convolutions, the second strided, and an activation to choose; no bias behind the first of them."""

    activation: str = "LeakyReLU"
    first: int = 5

    def bottom(self, shape):
        act = getattr(nn, self.activation)
        places = -(-shape[1] // 2) * -(-shape[2] // 2)
        return nn.Sequential(
            nn.Conv2d(shape[0], self.first, 3, padding=1, bias=False), act(),
            nn.Conv2d(self.first, 8, 3, stride=2, padding=1), act(),
            nn.Flatten(), nn.Linear(8 * places, 12, bias=False), act(), nn.Linear(12, 6),
        )  # fmt: skip

    def top(self, widths, classes):
        return nn.Sequential(nn.Linear(sum(widths), 16), nn.LeakyReLU(), nn.Linear(16, classes))


class Branching(SplitModel):
    """A residual connection."""

    def bottom(self, shape):
        return Residual()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x):
        return (x + self.conv(x)).flatten(1)


class TopWithoutBias(SplitModel):
    """Nothing says what p - y is."""

    def bottom(self, shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 5))

    def top(self, widths, classes):
        return nn.Linear(sum(widths), classes, bias=False)


def own(name, **options):
    return PluginSection(name=f"{__name__}:{name}", **options)


def pictures(samples, channels=1, seed=2):
    coarse = torch.rand(samples, channels, 4, 4, generator=torch.Generator().manual_seed(seed))
    return interpolate(coarse, size=(8, 8), mode="bilinear")


def setting(x, model, workers=4, **changes):
    boxes = tuple(partition(tuple(x.shape[1:]), workers))
    return replace(Setting(model, boxes, 5, len(x), 1, "epochs", len(x), True, 7, "cpu"), **changes)


def recovered(given, x, y, training=None, **options):
    attack = RGap(**options).start(given)
    for observation in observations(given, x, y, training or TrainingConfig()):
        attack.observe(observation)
    return attack.recover(silent)


@pytest.mark.parametrize(
    "model",
    [
        *(own("Small", activation=name) for name in ("LeakyReLU", "Sigmoid", "Tanh")),
        PluginSection(name="strided_cnn"),
        PluginSection(name="strided_cnn", slope=0.0),
        PluginSection(name="mlp"),
    ],
    ids=["LeakyReLU", "Sigmoid", "Tanh", "strided_cnn", "strided_cnn with ReLU", "mlp"],
)
@pytest.mark.parametrize("workers", [1, 4])
def test_one_sample_comes_back(model, workers):
    x, y = pictures(1), torch.tensor([3])
    given = setting(x, model, workers)
    recovery = recovered(given, x, y)
    assert float(psnr(assemble(given.boxes, recovery.slices), x)) >= 60
    assert recovery.labels.tolist() == [3]
    assert recovery.notes == ()


def test_colours_and_moving_parameters():
    x, y = pictures(3, channels=3), torch.tensor([0, 4, 2])
    given = setting(x, PluginSection(name="strided_cnn"), frozen=False)
    recovery = recovered(given, x, y, TrainingConfig(lr=0.1))
    assert psnr(assemble(given.boxes, recovery.slices), x).min() >= 60
    assert torch.equal(recovery.labels, y)


def test_disaggregated_the_batch_size_does_not_matter():
    x, y = pictures(9), torch.arange(9) % 5
    given = setting(x, PluginSection(name="strided_cnn", channels=(6, 12, 12)), batch_size=4, rounds=24)
    recovery = recovered(given, x, y, disaggregate=True)
    assert psnr(assemble(given.boxes, recovery.slices), x).min() >= 30
    assert torch.equal(recovery.labels, y)
    few = recovered(given, x, y, disaggregate=True, samples=2)
    assert few.slices[0].flatten(1).isfinite().all(dim=1).tolist() == [True] * 2 + [False] * 7


def test_of_a_batch_it_returns_a_combination_and_says_so():
    x, y = pictures(3), torch.tensor([0, 1, 2])
    given = setting(x, PluginSection(name="mlp"), batch_size=3, rounds=1)
    recovery = recovered(given, x, y)
    assert "combination" in recovery.notes[0]
    assert recovery.labels.tolist() == [-1, -1, -1]
    for box, found in zip(given.boxes, recovery.slices, strict=True):
        true = box.cut(x).flatten(1).double()
        weights = torch.linalg.lstsq(true.T, found[0].flatten().double()).solution
        assert torch.allclose(true.T @ weights, found[0].flatten().double(), atol=1e-5)
        assert weights.sum().item() == pytest.approx(1, abs=1e-4)
        assert torch.equal(found[0], found[2])


def test_where_a_relu_lets_nothing_back_that_slice_is_lost_and_the_others_are_not():
    x, y = pictures(1), torch.tensor([3])
    given = setting(x, PluginSection(name="strided_cnn"))
    attack = RGap().start(given)
    for observation in observations(given, x, y, TrainingConfig()):
        bottoms = list(observation.gradients.bottoms)
        bottoms[2] = {name: torch.zeros_like(tensor) for name, tensor in bottoms[2].items()}
        attack.observe(replace(observation, gradients=replace(observation.gradients, bottoms=tuple(bottoms))))
    recovery = attack.recover(silent)
    assert [bool(part.isfinite().all()) for part in recovery.slices] == [True, True, False, True]
    assert recovery.slices[2].isnan().all()
    assert "1 slices leaked nothing: their gradients are zero." in recovery.notes[0]
    assert torch.allclose(recovery.slices[3], given.boxes[3].cut(x), atol=1e-3)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (PluginSection(name="cafe_cnn"), r"cannot invert the layer pool \(MaxPool2d\) of the model of worker 0"),
        (own("Branching"), "model of worker 0 branches at input_1"),
        (own("TopWithoutBias"), "top model that ends with a fully connected layer with a bias"),
        (PluginSection(name="strided_cnn", channels=(1, 9, 9)), "layer 0 of worker 0 has 16 outputs"),
        (own("Small", activation="GELU"), r"cannot invert the layer 1 \(GELU\)"),
    ],
)
def test_what_cannot_be_inverted_is_refused_before_the_first_round(model, sentence):
    with pytest.raises(UserError, match=sentence):
        RGap().start(setting(pictures(1), model, 1 if "strided" in model.name else 4))


def test_a_layer_that_lacks_rank_for_these_data_is_named():
    # Enough equations by count, but ReLU leaves out those of inactive outputs
    x = pictures(1)
    with pytest.raises(UserError, match=r"worker 0's layer 2 lacks rank: .* equations of rank .* for 320 inputs"):
        recovered(setting(x, own("Small", activation="ReLU"), 1), x, torch.tensor([1]))


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2), ((2, 1), (0, 1), 1)])
def test_a_convolutions_input_follows_from_its_outputs_and_its_gradient(stride, padding, dilation):
    random = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(2, 16, 3, stride=stride, padding=padding, dilation=dilation, bias=False).double()
    x = torch.randn(1, 2, 7, 6, generator=random, dtype=torch.float64)
    z = conv2d(x, layer.weight, None, stride, padding, dilation)
    k = torch.randn(z.shape, generator=random, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(z, layer.weight, k)
    z, weight = z.detach()[0], layer.weight.detach()
    all_known = torch.ones_like(z)
    found = convolution_input(layer, weight, gradient, (2, 7, 6), z=z, slope=all_known, k=k[0])
    assert torch.allclose(found, x[0], atol=1e-8)
    unknown = (torch.rand(z.shape, generator=random) < 0.3).double()
    found = convolution_input(
        layer, weight, gradient, (2, 7, 6), z=torch.where(unknown > 0, z, 99.0), slope=unknown, k=k[0]
    )
    assert torch.allclose(found, x[0], atol=1e-6)


def test_the_rank_is_that_of_the_equations():
    a = torch.randn(9, 5, dtype=torch.float64)
    a[:, 4] = a[:, 1] - a[:, 0]
    with pytest.raises(LacksRankError, match="9 equations of rank 4 for 5 inputs"):
        solve(a, torch.ones(9, dtype=torch.float64))


def test_functions_methods_and_modules_are_all_layers_of_a_chain():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.act, self.fc = nn.Conv2d(1, 2, 3), nn.LeakyReLU(0.3), nn.Linear(8, 3)

        def forward(self, x):
            h = torch.relu(self.act(self.conv(x)))
            h = nn.functional.leaky_relu(h, 0.1).view(x.shape[0], -1)
            return self.fc(h).tanh()

    assert [step.parameter("bias") for step in chain(nn.Linear(3, 2), (3,), "the test")] == ["bias"]
    steps = chain(Mixed(), (1, 4, 4), "the test")
    conv, act, relu, leaky, shaped, fc, tanh = (step.layer for step in steps)
    assert (type(conv), shaped, type(fc)) == (nn.Conv2d, None, nn.Linear)
    assert (act.func, act.args, leaky.func, leaky.args) == (inverse_leaky_relu, (0.3,), inverse_leaky_relu, (0.1,))
    assert (relu, tanh) == (inverse_relu, inverse_tanh)
    assert steps[4].inputs == (2, 2, 2)
    assert steps[0].parameter("weight") == "conv.weight"


def test_a_model_that_takes_no_single_sample_is_refused_without_a_traceback(capsys):
    with pytest.raises(UserError, match="cannot be followed"):
        chain(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), (4,), "the test")
    assert capsys.readouterr().err == ""
