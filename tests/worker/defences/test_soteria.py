"""Soteria against Jacobians and per-sample gradients from autograd."""

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev

from tests.worker.defences.support import conv_model, numbers, played, started
from vfl.errors import RunFailedError

BATCH, SHARE = 6, 0.25


def gradients_of(model: nn.Module, x: Tensor, at_output: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(model(x), parameters, at_output)
    return {f"bottom.{name}": tensor for name, tensor in zip(names, found, strict=True)} | {"top.w": numbers(3)}


def scores_by_hand(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    front = nn.Sequential(*list(model.children())[:-1])
    r = front(x).detach()
    rows = [jacrev(front)(one.unsqueeze(0)).reshape(r.shape[1], -1).norm(dim=1).detach() for one in x]
    return r, torch.where(r == 0, 0.0, r.abs() / torch.stack(rows))


def test_each_sample_loses_its_own_entries() -> None:
    model, x, at_output = conv_model(), numbers(BATCH, 1, 8, 8), numbers(BATCH, 5, seed=1)
    gradients = gradients_of(model, x, at_output)
    r, score = scores_by_hand(model, x)
    kept = r.clone()
    for row, own in zip(kept, score, strict=True):
        row[own.argsort(descending=True)[: round(SHARE * 36)]] = 0.0
    found = started("soteria", share=SHARE, probes=0).apply(gradients, played(model, x))
    torch.testing.assert_close(found["bottom.fc.weight"], at_output.T @ kept, atol=1e-5, rtol=1e-4)
    assert all(found[name] is tensor for name, tensor in gradients.items() if name != "bottom.fc.weight")


def test_one_mask_for_the_batch_zeroes_columns() -> None:
    model, x = conv_model(), numbers(BATCH, 1, 8, 8)
    gradients = gradients_of(model, x, numbers(BATCH, 5, seed=1))
    columns = scores_by_hand(model, x)[1].mean(dim=0).argsort(descending=True)[: round(SHARE * 36)]
    expected = gradients["bottom.fc.weight"].clone()
    expected[:, columns] = 0.0
    found = started("soteria", share=SHARE, mask="batch", probes=0).apply(gradients, played(model, x))
    torch.testing.assert_close(found["bottom.fc.weight"], expected)


def test_many_probes_prune_what_exact_derivatives_do() -> None:
    model, x = conv_model(), numbers(BATCH, 1, 8, 8)
    gradients = gradients_of(model, x, numbers(BATCH, 5, seed=1))
    exact, probed = (
        started("soteria", share=SHARE, mask="batch", probes=probes).apply(gradients, played(model, x))
        for probes in (0, 400)
    )
    same = (exact["bottom.fc.weight"] == 0).all(0) == (probed["bottom.fc.weight"] == 0).all(0)
    assert int((~same).sum()) <= 2


def test_identical_samples_do_no_harm() -> None:
    model = conv_model()
    x = numbers(2, 1, 8, 8).repeat(3, 1, 1, 1)
    at_output = numbers(BATCH, 5, seed=1)
    r, score = scores_by_hand(model, x)
    kept = r.clone()
    for row, own in zip(kept, score, strict=True):
        row[own.argsort(descending=True)[: round(SHARE * 36)]] = 0.0
    found = started("soteria", share=SHARE, probes=0).apply(gradients_of(model, x, at_output), played(model, x))
    torch.testing.assert_close(found["bottom.fc.weight"], at_output.T @ kept, atol=1e-5, rtol=1e-4)


def test_where_the_layer_sees_the_data_the_largest_features_go() -> None:
    model, x = nn.Sequential(OrderedDict(fc=nn.Linear(8, 4))), numbers(3, 8)
    at_output = numbers(3, 4, seed=1)
    kept = x.clone()
    for row in kept:
        row[row.abs().argsort(descending=True)[:4]] = 0.0
    found = started("soteria", share=0.5).apply(gradients_of(model, x, at_output), played(model, x))
    torch.testing.assert_close(found["bottom.fc.weight"], at_output.T @ kept, atol=1e-5, rtol=1e-4)


def test_a_model_without_such_a_layer_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    with pytest.raises(RunFailedError, match="no fully connected layer"):
        started("soteria").apply({"bottom.0.weight": numbers(2, 1, 3, 3)}, played(model, numbers(2, 1, 5, 5)))
