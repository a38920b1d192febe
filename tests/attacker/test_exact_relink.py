"""Indices that the workers permuted in secret: which batches share samples is read off the gradients."""

from dataclasses import replace

import pytest
import torch

from attacker.exact import Exact
from tests.attacker.test_exact_attack import attacked, images, scores, setting_for
from vfl.errors import UserError


def renamed(samples, per_epoch):
    """Return a change of observations: other names for the samples in each epoch, as `defence: indices` makes them."""

    def change(observation):
        epoch = (observation.round - 1) // per_epoch
        names = torch.randperm(samples, generator=torch.Generator().manual_seed(100 + epoch))
        return replace(observation, indices=names[observation.indices])

    return change


@pytest.mark.parametrize("samples", [48, 45])
def test_every_sample_is_found_without_its_name(samples):
    x, y = images(samples)
    setting = setting_for(x, 8, 2 * 6)
    recovery = attacked(setting, x, y, renamed(samples, 6), relink=True)
    errors, labels = scores(setting, recovery, x, y)
    assert (errors < 1e-4).double().mean() > 0.97
    assert labels > 0.95
    assert recovery.cells == (tuple(range(samples)),)
    assert "indices" not in recovery.used


def test_believing_the_names_finds_next_to_nothing():
    x, y = images(48)
    setting = setting_for(x, 8, 2 * 6)
    recovery = attacked(setting, x, y, renamed(48, 6))
    # scored without the names, as generously as above
    errors, _ = scores(setting, replace(recovery, cells=(tuple(range(48)),)), x, y)
    assert (errors < 1e-4).all(1).double().mean() < 0.3


def test_altered_gradients_are_refused_with_a_sentence():
    x, y = images(48)
    setting = setting_for(x, 8, 2 * 6)

    def noisy(observation):
        bottoms = tuple(
            {name: t + 0.3 * t.std() * torch.randn(t.shape, generator=torch.Generator().manual_seed(observation.round))
             for name, t in bottom.items()}
            for bottom in observation.gradients.bottoms
        )  # fmt: skip
        return replace(observation, gradients=replace(observation.gradients, bottoms=bottoms))

    with pytest.raises(UserError, match="at no worker do the gradients say which batches share samples"):
        attacked(setting, x, y, noisy, relink=True)


@pytest.mark.parametrize("lacking", [{"schedule": "uniform"}, {"frozen": False}])
def test_what_it_needs_is_said_before_the_first_round(lacking):
    x, _ = images(48)
    with pytest.raises(UserError, match="needs the subspaces of two epochs"):
        Exact(relink=True).start(setting_for(x, 8, 60, **lacking))
