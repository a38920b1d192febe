"""Every sample's h and v from one gradient, against the truth of small random networks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attacker.exact.rays import Known, samples_of
from tests.attacker.exact.rays.networks import case, right, wrong_yet_certain


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    samples=st.integers(1, 24),
    inputs=st.integers(250, 400),
    dead=st.integers(0, 20),
    known=st.booleans(),
    spans=st.booleans(),
)
def test_every_sample_of_a_batch(seed: int, samples: int, inputs: int, dead: int, known: bool, spans: bool) -> None:
    given_ = case(samples, seed=seed, inputs=inputs, dead=dead)
    found = samples_of(
        given_.weight,
        given_.bias,
        cut_off=given_.cut_off,
        span=given_.span if spans else None,
        batch=samples if known else None,
        seed=seed,
    )
    assert found.rank == samples
    assert right(found, given_.h).all()
    assert found.certain.all()
    assert wrong_yet_certain(found, given_.h) == 0
    torch.testing.assert_close(found.v.T @ found.h, given_.weight.double(), rtol=1e-3, atol=1e-5)


def test_samples_with_one_v_are_found_as_their_mixture_and_the_others_as_they_are() -> None:
    whole = case(10, seed=3)
    v = whole.v.clone()
    v[1] = 0.5 * v[0]
    # the mixture's own units are cut off where its v is zero: the network is one where they are
    off = v[0] == 0

    def cut_off(h: Tensor) -> Tensor:
        own = whole.cut_off(h)
        mixed = (h @ whole.h[0]) / h.norm(dim=1) / whole.h[0].norm() > 0.8
        return torch.where(mixed[:, None], off, own)

    found = samples_of((v.T @ whole.h).float(), v.sum(dim=0).float(), cut_off=cut_off, batch=10, seed=0)
    mixture = (whole.h[0] + 0.5 * whole.h[1]) / 1.5
    assert found.rank == 9
    assert right(found, torch.cat([mixture[None], whole.h[2:]])).all()


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6), shared=st.integers(2, 4))
def test_what_is_hidden_behind_known_samples_is_found(seed: int, shared: int) -> None:
    whole = case(12, seed=seed)
    v = whole.v.clone()
    v[:shared] = v[:1] * torch.linspace(0.5, 1.5, shared)[:, None]  # one direction of v: their mixture alone shows
    weight, bias = (v.T @ whole.h).float(), v.sum(dim=0).float()
    blind = samples_of(weight, bias, cut_off=None, batch=12, seed=0)
    assert blind.rank == 13 - shared
    assert not right(blind, whole.h[:shared]).any()
    given_ = Known(whole.h[: shared - 1].float(), torch.ones(shared - 1, dtype=torch.bool))
    found = samples_of(weight, bias, cut_off=None, batch=12, seed=0, known=given_)
    assert found.rank == 12
    assert right(found, whole.h[shared - 1 :]).all()
    assert sorted(found.known[found.known >= 0].tolist()) == list(range(shared - 1))


def test_known_samples_that_the_gradient_shows_anyway_are_recognised_and_blur_nothing() -> None:
    whole = case(12, seed=12)
    h = whole.h[:3] * (1 + 1e-4 * torch.randn(3, 300, generator=torch.Generator().manual_seed(0)))
    found = samples_of(
        whole.weight,
        whole.bias,
        cut_off=whole.cut_off,
        batch=12,
        seed=0,
        known=Known(h, torch.zeros(3, dtype=torch.bool)),
    )
    assert right(found, whole.h, 1e-5).all()
    assert sorted(found.known.tolist()) == [*[-1] * 9, 0, 1, 2]


def test_samples_that_are_alike_are_one_with_the_sum_of_their_v() -> None:
    whole = case(10, seed=4)
    h = whole.h.clone()
    h[1] = h[0]
    off = whole.cut_off(h)
    v = torch.where(off, 0.0, whole.v)
    found = samples_of((v.T @ h).float(), v.sum(dim=0).float(), cut_off=whole.cut_off, batch=10, seed=0)
    assert found.rank == 9
    assert right(found, h).all()
    at = int(torch.cdist(h[:1], found.h).argmin())
    torch.testing.assert_close(found.v[at], v[0] + v[1], rtol=1e-3, atol=1e-5)


def test_a_sample_less_some_of_one_that_is_zero_wherever_it_is_does_not_pass_for_a_sample() -> None:
    whole = case(12, seed=5)
    h = whole.h.clone()
    h[1] = torch.where(h[0] > 0, h[1], 0.0)
    v = torch.where(whole.cut_off(h), 0.0, whole.v)
    weight, bias = (v.T @ h).float(), v.sum(dim=0).float()
    found = samples_of(weight, bias, cut_off=whole.cut_off, batch=12, seed=0)
    assert right(found, h)[1:].all()
    assert wrong_yet_certain(found, h) == 0


def test_without_the_network_h_is_found_and_nothing_is_certain() -> None:
    whole = case(12, seed=6)
    found = samples_of(whole.weight, whole.bias, cut_off=None, batch=12, seed=0)
    assert right(found, whole.h).all()
    assert not found.certain.any()
    assert found.v.isnan().all()


def test_without_the_bias_directions_and_their_v_are_found() -> None:
    whole = case(12, seed=7)
    found = samples_of(whole.weight, None, cut_off=whole.cut_off, batch=12, seed=0)
    assert right(found, whole.h / whole.h.norm(dim=1, keepdim=True)).all()
    torch.testing.assert_close(found.v.T @ found.h, whole.weight.double(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("noise", "within"), [(1e-5, 1e-3), (1e-3, 3e-2), (1e-2, 1e-1)])
@pytest.mark.parametrize("batch", [10, None])
def test_white_noise_is_seen_and_costs_accuracy_first(noise: float, within: float, batch: int | None) -> None:
    whole = case(10, seed=8)
    draw = torch.Generator().manual_seed(0)
    weight, bias = (  # of each tensor's own size, as the defence `noise` adds it
        part.double() + noise * part.square().mean().sqrt() * torch.randn(part.shape, generator=draw).double()
        for part in (whole.weight, whole.bias)
    )
    found = samples_of(weight, bias, cut_off=whole.cut_off, span=whole.span, batch=batch, seed=0)
    assert found.rank == 10
    assert right(found, whole.h, within).all()
    assert wrong_yet_certain(found, whole.h, within) == 0


@pytest.mark.parametrize("size", [1.0, 1e3])
@pytest.mark.parametrize("white", [False, True])
def test_noise_that_drowns_the_samples_shows_none_for_certain(size: float, white: bool) -> None:
    whole = case(10, seed=8)
    draw = torch.Generator().manual_seed(0)
    weight, bias = (
        part + size * torch.randn(part.shape, generator=draw) * part.square().mean().sqrt()
        for part in (whole.weight, whole.bias)
    )
    found = samples_of(weight, bias, cut_off=whole.cut_off, span=whole.span, batch=10, seed=0, white=white)
    assert not found.certain.any()


def test_more_samples_than_units_show_nothing_for_certain() -> None:
    whole = case(30, seed=9, outputs=24)
    found = samples_of(whole.weight, whole.bias, cut_off=whole.cut_off, span=whole.span, batch=30, seed=0, seconds=5)
    assert wrong_yet_certain(found, whole.h) == 0


def test_a_gradient_of_zeros_shows_nothing() -> None:
    found = samples_of(torch.zeros(8, 20), torch.zeros(8), cut_off=None, batch=4, seed=0)
    assert (found.rank, found.h.shape, found.v.shape) == (0, (0, 20), (0, 8))


def test_a_seed_gives_the_same_samples_and_progress_is_told() -> None:
    whole = case(12, seed=10)
    steps: list[tuple[int, int]] = []
    first, second = (
        samples_of(
            whole.weight, whole.bias, cut_off=whole.cut_off, batch=12, seed=1, progress=lambda *at: steps.append(at)
        )
        for _ in range(2)
    )
    assert torch.equal(first.h, second.h)
    assert (steps[0], steps[-1]) == ((0, 12), (12, 12))


def test_a_span_tells_the_samples_of_a_batch_that_cut_off_units_are_too_few_for() -> None:
    whole = case(60, seed=11, inputs=600, outputs=80)
    assert int(whole.cut_off(whole.h).sum(dim=1).max()) < 60  # no partner can be told by these alone
    found = samples_of(whole.weight, whole.bias, cut_off=None, span=whole.span, batch=60, seed=0)
    assert right(found, whole.h).all()
    assert found.certain.all()
