"""A worker that comes back in the middle of a run: rounds done again, and counts that went with the process."""

import pytest
import torch

from tests.worker.defences.support import PLAN, conv_model, numbers, played, started
from vfl.registry import PluginSection
from worker.defences import Chain, WithheldError


def applied(chain: Chain) -> object:
    model, x = conv_model(), numbers(4, 1, 8, 8)
    gradients = {f"bottom.{name}": torch.ones_like(tensor) for name, tensor in model.named_parameters()}
    return chain.apply(gradients, 1, torch.arange(4), x, model)


@pytest.mark.parametrize("counting", [{"name": "breaker"}, {"name": "dp", "noise_multiplier": 1.0, "batches": "known"}])
def test_a_restarted_worker_whose_defence_keeps_count_uploads_no_more(counting: dict[str, object]) -> None:
    chain = Chain([PluginSection(name="clip"), PluginSection.model_validate(counting)], PLAN)
    applied(chain)
    chain.forget()
    with pytest.raises(WithheldError, match=f"it was restarted, and with it went what its {counting['name']} had"):
        applied(chain)
    assert chain.report()["withheld_from"]["round"] == 0


def test_other_defences_go_on_after_a_restart() -> None:
    chain = Chain([PluginSection(name="noise")], PLAN)
    chain.forget()
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
