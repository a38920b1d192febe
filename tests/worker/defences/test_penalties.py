"""Defences of outputs that take part in training: what they add to the loss, and what comes of it."""

import pytest
import torch
from torch import nn

from tests.support import small_config
from tests.worker.defences.support import PLAN
from vfl.datasets.slices import load_data
from vfl.folder.summary import load_summary
from vfl.local.simulation import simulate
from vfl.models import build_bottom, build_top
from vfl.registry import PluginSection
from worker.defences.outputs.no_peek import distance_correlation
from worker.defences.places import SwapChain
from worker.party import Bottom


def by_definition(x, z):
    """Distance correlation in loops, as the paper writes it."""
    count = len(x)
    found = []
    for rows in (x, z):
        far = [[float((rows[i] - rows[j]).norm()) for j in range(count)] for i in range(count)]
        row = [sum(one) / count for one in far]
        whole = sum(row) / count
        found.append([[far[i][j] - row[i] - row[j] + whole for j in range(count)] for i in range(count)])
    a, b = found

    def mean(one, other):
        return sum(one[i][j] * other[i][j] for i in range(count) for j in range(count)) / count**2

    return (mean(a, b) / (mean(a, a) * mean(b, b)) ** 0.5) ** 0.5


@pytest.mark.parametrize("seed", range(3))
def test_distance_correlation_is_what_its_definition_says(seed):
    draw = torch.Generator().manual_seed(seed)
    x, z = torch.randn(9, 4, generator=draw), torch.randn(9, 2, generator=draw)
    z = z + seed * x[:, :2]
    assert float(distance_correlation(x, z)) == pytest.approx(by_definition(x, z), abs=1e-4)


def test_what_is_turned_and_stretched_alone_correlates_fully():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(2))).Q
    assert float(distance_correlation(x, 5 * x @ turn + 1)) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("output", [torch.zeros(6, 2), torch.ones(6, 2)])
def test_outputs_that_are_all_alike_have_a_finite_slope(output):
    z = output.requires_grad_()
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    (slope,) = torch.autograd.grad(distance_correlation(x, z), z)
    assert bool(slope.isfinite().all())


@pytest.mark.parametrize("options", [{"name": "no_peek", "weight": 0.7}, {"name": "bottleneck", "weight": 0.3}])
def test_the_uploaded_gradient_is_that_of_the_loss_with_what_is_added(options):
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    gradient = torch.randn(8, 3, generator=torch.Generator().manual_seed(2))
    model = nn.Linear(5, 3)
    chain = SwapChain([PluginSection.model_validate(options)], PLAN, "outputs")
    bottom = Bottom(model, x, None, "cpu")
    bottom.forward(torch.arange(8))
    found = bottom.backward(gradient, chain.penalty)
    z = model(x)
    more = 0.7 * distance_correlation(x, z) if options["name"] == "no_peek" else 0.3 * z.square().sum(1).mean() / 2
    expected = torch.autograd.grad((z * gradient).sum() + more, list(model.parameters()))
    for here, there in zip(found.values(), expected, strict=True):
        assert torch.allclose(here, there, atol=1e-5)


def test_without_such_a_defence_the_gradient_is_the_same_bit_by_bit():
    x, gradient = torch.rand(8, 5), torch.rand(8, 3)
    model = nn.Linear(5, 3)
    found = []
    for penalty in (lambda *_: None, SwapChain([PluginSection(name="noise")], PLAN, "outputs").penalty):
        bottom = Bottom(model, x, None, "cpu")
        bottom.forward(torch.arange(8))
        found.append(bottom.backward(gradient, penalty))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_training_under_it_makes_outputs_that_depend_less_on_slices(tmp_path):
    def last(weight):
        config = small_config(
            federation={"rounds": 40},
            training={"optimizer": "adam", "lr": 0.01},
            defence={"outputs": {"name": "no_peek", "weight": weight}},
        )
        simulate(config, load_data(config), out := tmp_path / str(weight))
        chain = load_summary(out).defence[1].model_dump()["chain"]
        return next(one for one in chain if one["name"] == "no_peek on outputs")["distance correlation, last round"]

    assert last(5.0) < last(0.0) - 0.1


def test_a_cut_further_forward_moves_layers_from_the_bottom_to_the_top():
    section = PluginSection(name="mlp", hidden=[], output=12, top_hidden=[16, 8])
    bottom, top = build_bottom(section, (6,), 0, 1), build_top(section, [12, 12], 3, 0)
    assert [one.out_features for one in bottom if isinstance(one, nn.Linear)] == [12]
    assert [one.out_features for one in top if isinstance(one, nn.Linear)] == [16, 8, 3]
    assert top(torch.zeros(2, 24)).shape == (2, 3)
