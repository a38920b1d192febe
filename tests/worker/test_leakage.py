"""A worker's estimate of its own leakage, against uploads whose leak is known."""

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn

from attacker.exact.rays import samples_of
from tests.attacker.exact.rays.networks import case, right
from tests.worker.defences.support import played, started
from vfl.maths.cone import given_away
from worker.defences import Plan, WithheldError
from worker.defences.breaker import Watch

SAMPLES, BATCH, INPUTS, OUTPUTS = 24, 6, 96, 48


def watched(epochs, noise=0.0, cell=8, seed=0, batch=BATCH):
    """Return the estimate after each epoch of uploads sum of v_n h_n^T / K, with noise on every entry."""
    random = torch.Generator().manual_seed(seed)
    h = torch.randn(SAMPLES, INPUTS, generator=random).clamp_min(0)
    v = torch.randn(SAMPLES, OUTPUTS, generator=random)
    plan = Plan(worker=0, samples=SAMPLES, batch_size=batch, rounds=100, schedule="epochs")
    watch = Watch(plan, INPUTS, OUTPUTS, error=0.1, cell=cell)
    shares = []
    for _ in range(epochs):
        for rows in torch.randperm(SAMPLES, generator=random).split(batch):
            weight, bias = v[rows].T @ h[rows] / len(rows), v[rows].mean(0)
            weight = weight + noise * torch.randn(weight.shape, generator=random)
            bias = bias + noise * torch.randn(bias.shape, generator=random)
            watch.add(rows, h[rows], weight, bias)
        shares.append(watch.leaked())
    return shares


def test_true_gradients_leak_nothing_in_the_first_epoch_and_everything_in_the_second():
    assert watched(2, cell=3) == [0.0, 1.0]


def test_a_batch_so_small_that_it_comes_apart_by_itself_leaks_at_once():
    assert watched(1, cell=BATCH) == [1.0]


def test_noise_hides_samples_from_subspaces_until_many_rounds_are_averaged():
    loud = watched(90, noise=0.35, cell=3)
    assert loud[2] == 0.0
    assert loud[-1] > 0.1
    assert watched(12, noise=30.0, cell=3)[-1] == 0.0


def test_an_empty_batch_says_nothing():
    plan = Plan(worker=0, samples=SAMPLES, batch_size=BATCH, rounds=1, schedule="poisson")
    watch = Watch(plan, INPUTS, OUTPUTS, error=0.1, cell=8)
    watch.add(
        torch.zeros(0, dtype=torch.int64), torch.zeros(0, INPUTS), torch.zeros(OUTPUTS, INPUTS), torch.zeros(OUTPUTS)
    )
    assert watch.leaked() == 0.0


@pytest.mark.parametrize("samples", [4, 12, 24])
def test_what_one_gradient_gives_away_is_what_the_attack_finds_in_it(samples):
    whole = case(samples, seed=samples)
    found = samples_of(whole.weight, whole.bias, cut_off=whole.cut_off, span=whole.span, batch=samples, seed=0)
    expected = given_away(whole.weight, whole.h, 0.1)
    assert expected.all()
    assert torch.equal(expected, right(found, whole.h))


def test_one_gradient_hides_samples_whose_v_others_have_too():
    whole = case(8, seed=1)
    v = whole.v.clone()
    v[1] = -0.5 * v[0]
    v[7] = 0.0
    seen = given_away(v.T @ whole.h, whole.h, 0.1)
    assert seen.tolist() == [False, False, True, True, True, True, True, False]


def test_one_gradient_hides_batches_beyond_the_units_and_inputs_without_zeros():
    whole = case(30, seed=2, outputs=24)
    assert not given_away(whole.weight, whole.h, 0.1).any()
    whole = case(8, seed=3)
    dense = whole.h + 0.01
    assert not given_away(whole.v.T @ dense, dense, 0.1).any()
    signed = whole.h.clone()
    signed[:, 0] = -0.01
    assert not given_away(whole.v.T @ signed, signed, 0.1).any()


def test_noise_hides_a_sample_from_one_gradient_once_it_hides_its_direction():
    whole = case(8, seed=4)
    size = float(whole.weight.square().mean().sqrt())
    noise = torch.randn(whole.weight.shape, generator=torch.Generator().manual_seed(0))
    assert given_away(whole.weight + 1e-3 * size * noise, whole.h, 0.1).all()
    assert not given_away(whole.weight + 10 * size * noise, whole.h, 0.1).any()


def relu_model():
    torch.manual_seed(0)
    parts = {"wide": nn.Linear(6, 120), "relu": nn.ReLU(), "fc": nn.Linear(120, 40), "cut": nn.ReLU()}
    return nn.Sequential(OrderedDict(**parts, out=nn.Linear(40, 5)))


def gradients_of(model, x):
    loss = model(x).square().sum(dim=1).mean()
    names, parameters = zip(*model.named_parameters(), strict=True)
    return {f"bottom.{name}": one for name, one in zip(names, torch.autograd.grad(loss, parameters), strict=True)}


def test_a_breaker_withholds_the_first_upload_that_gives_a_sample_away():
    model, x = relu_model(), torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    with pytest.raises(
        WithheldError, match=r"20.0% of its samples to leak with it \(4 of 4 from this gradient alone\)"
    ):
        started("breaker", cell=3).apply(gradients_of(model, x), played(model, x))


def test_a_breaker_counts_what_each_gradient_gives_away_towards_its_limit():
    model, breaker = relu_model(), started("breaker", cell=3, limit=0.5)
    for number in (1, 2):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
        rows = torch.arange(4) + 4 * number
        breaker.apply(gradients_of(model, x), replace(played(model, x, number), rows=rows))
    assert breaker.report() == {"leaked": 0.4, "leaked_by_one_gradient": 0.4, "limit": 0.5}
    with pytest.raises(WithheldError, match=r"60\.0% of its samples"):
        breaker.apply(gradients_of(model, x), replace(played(model, x, 3), rows=torch.arange(4)))


def test_an_activation_without_zeros_lets_a_single_upload_pass():
    model, x = relu_model(), torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    model.relu, model.cut = nn.Tanh(), nn.Tanh()
    breaker = started("breaker", cell=3)
    breaker.apply(gradients_of(model, x), played(model, x))
    assert breaker.report()["leaked"] == 0.0
