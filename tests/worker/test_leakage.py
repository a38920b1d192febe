"""A worker's estimate of its own leakage, against uploads whose leak is known."""

import torch

from worker.defences import Plan
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
