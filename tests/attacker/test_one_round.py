"""One altered gradient and an attacker told of the defence: held against the gradient that was altered."""

import torch
from torch import Tensor

from attacker.adaptive.one_round import restored
from attacker.adaptive.told import KINDS
from worker.defences.prune import pruned
from worker.defences.quantize import quantized

BATCH, INPUTS, OUTPUTS = 4, 600, 60


def gradient() -> tuple[Tensor, Tensor]:
    """Return a batch's true gradient of a layer behind a ReLU: entries are zero where the layer's own cuts off."""
    draws = torch.Generator().manual_seed(3)
    h = torch.randn(BATCH, INPUTS, generator=draws).relu()
    v = torch.randn(BATCH, OUTPUTS, generator=draws) * (torch.rand(BATCH, OUTPUTS, generator=draws) < 0.5) / BATCH
    return v.T @ h, v.sum(dim=0)


def away(found: Tensor, true: tuple[Tensor, Tensor]) -> float:
    """Return how far the weight's gradient is from the true one up to its size, relative."""
    weight, right = found[:, :-1], true[0].double()
    weight = weight * (weight * right).sum() / weight.square().sum()
    return float((weight - right).norm() / right.norm())


def test_most_of_what_pruning_to_half_took_is_filled_in() -> None:
    true = gradient()
    sent = [pruned(part, 0.5) for part in true]
    before = away(torch.cat([sent[0], sent[1][:, None]], dim=1).double(), true)
    assert away(restored(*sent, KINDS["prune"], batch=BATCH), true) < before / 5


def test_the_order_of_a_gradients_entries_tells_the_gradient() -> None:
    true = gradient()
    draws = torch.Generator().manual_seed(4)

    def faked(part: Tensor) -> Tensor:
        shuffled = torch.randperm(part.numel(), generator=draws)  # equal entries come in any order
        places = shuffled[part.flatten()[shuffled].argsort()]
        values = torch.randn(part.numel(), generator=draws).sort().values
        return torch.zeros(part.numel()).scatter(0, places, values).view_as(part)

    sent = [faked(part) for part in true]
    assert away(torch.cat([sent[0], sent[1][:, None]], dim=1).double(), true) > 0.3
    assert away(restored(*sent, KINDS["fake_gradients"], batch=BATCH), true) < 1e-2


def test_a_coarse_grid_is_seen_through_as_far_as_a_batch_has_few_dimensions() -> None:
    true = gradient()
    sent = [quantized(part, 6, None) for part in true]
    before = away(torch.cat([sent[0], sent[1][:, None]], dim=1).double(), true)
    assert away(restored(*sent, KINDS["quantize"], batch=BATCH), true) < before / 2
