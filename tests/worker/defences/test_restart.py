"""A worker that comes back in the middle of a run: rounds done again, and counts that went with the process."""

from dataclasses import replace

import pytest
import torch

from tests.worker.defences.support import PLAN, conv_model, numbers, played, started, upload
from vfl.registry import PluginSection
from worker.defences import Chain, WithheldError


def applied(chain: Chain) -> object:
    model, x = conv_model(), numbers(4, 1, 8, 8)
    gradients = {f"bottom.{name}": torch.ones_like(tensor) for name, tensor in model.named_parameters()}
    return chain.apply(gradients, 1, rows=torch.arange(4), x=x, model=model)


@pytest.mark.parametrize("counting", [{"name": "breaker"}, {"name": "dp", "noise_multiplier": 1.0, "batches": "known"}])
def test_a_restarted_worker_whose_defence_keeps_count_uploads_no_more(counting: dict[str, object]) -> None:
    chain = Chain([PluginSection(name="clip"), PluginSection.model_validate(counting)], PLAN)
    applied(chain)
    chain.start_late()
    with pytest.raises(WithheldError, match=f"it was restarted, and with it went what its {counting['name']} had"):
        applied(chain)
    assert chain.report()["withheld_from"]["round"] == 0


def test_other_defences_go_on_after_a_restart() -> None:
    chain = Chain([PluginSection(name="noise")], PLAN)
    chain.start_late()
    assert applied(chain)


def test_a_round_that_is_done_again_counts_once_for_the_breaker() -> None:
    model, x = conv_model(), numbers(4, 1, 8, 8)
    gradients = {f"bottom.{name}": numbers(*tensor.shape) for name, tensor in model.named_parameters()}
    reports = []
    for times in (1, 3):
        breaker = started("breaker", limit=0.99)
        for number in (1, 2):
            for _ in range(times):
                assert breaker.apply(gradients, played(model, x, number)) is gradients
        reports.append(breaker.report())
    assert reports[0] == reports[1]


def test_a_round_ordered_again_with_other_samples_is_withheld_where_looks_are_counted() -> None:
    model, x = conv_model(), numbers(4, 1, 8, 8)
    gradients = {f"bottom.{name}": numbers(*tensor.shape) for name, tensor in model.named_parameters()}
    chain = Chain([PluginSection.model_validate({"name": "dp", "noise_multiplier": 1.0, "batches": "known"})], PLAN)
    first = chain.apply(gradients, 1, rows=torch.arange(4), x=x, model=model)
    again = chain.apply(gradients, 1, rows=torch.arange(4), x=x, model=model)
    assert all(torch.equal(first[name], again[name]) for name in first)
    with pytest.raises(WithheldError, match="round 1 was ordered again with other samples or parameters"):
        chain.apply(gradients, 1, rows=torch.arange(4) + 1, x=x, model=model)


def test_a_round_withheld_ahead_leaves_the_one_before_it_as_it_was() -> None:
    model, x = conv_model(), numbers(4, 1, 8, 8)
    gradients = {f"bottom.{name}": numbers(*tensor.shape) for name, tensor in model.named_parameters()}
    dp = {"name": "dp", "noise_multiplier": 1.0, "batches": "known"}
    chain = Chain([PluginSection.model_validate(dp)], replace(PLAN, rounds=1, samples=4))
    chain.apply(gradients, 1, rows=torch.arange(4), x=x, model=model)
    for _ in range(2):
        with pytest.raises(WithheldError, match="this is one more"):
            chain.apply(gradients, 2, rows=torch.arange(4), x=x, model=model)
    assert chain.apply(gradients, 1, rows=torch.arange(4), x=x, model=model)


def test_fake_gradients_that_are_redrawn_are_the_same_when_a_round_is_done_again() -> None:
    rounds = [{"top.w": numbers(40, seed=seed)} for seed in range(1, 6)]
    shield = started("fake_gradients", nu=1, tau=2.0)
    first = [upload(shield, gradients, number=at) for at, gradients in enumerate(rounds, start=1)]
    assert shield.report()["redraws"] > 0
    again = [upload(shield, gradients, number=at) for at, gradients in enumerate(rounds, start=1)]
    assert all(torch.equal(a["top.w"], b["top.w"]) for a, b in zip(first, again, strict=True))


def test_fake_gradients_of_a_restarted_worker_are_those_of_one_that_was_not() -> None:
    rounds = [{"top.w": numbers(40, seed=seed)} for seed in range(1, 6)]
    shield = started("fake_gradients", nu=1, tau=2.0)
    undisturbed = [upload(shield, gradients, number=at, seed=at) for at, gradients in enumerate(rounds, start=1)]
    assert shield.report()["redraws"] > 0
    restarted = upload(started("fake_gradients", nu=1, tau=2.0), rounds[-1], number=5, seed=5)
    assert torch.equal(restarted["top.w"], undisturbed[-1]["top.w"])
