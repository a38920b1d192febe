"""SDAR from the label holder: no pair of output and slice is learned from, and what comes back beats the mean."""

from dataclasses import replace

import pytest
import torch

from attacker.interface import silent
from attacker.outputs.networks import Critic
from attacker.outputs.sdar import SDAR
from tests.seats_support import seated, seen_from
from vfl.errors import UserError
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection
from vfl.seats import Seat

KNOWN, SAMPLES = 40, 80


def run(change=lambda seen: seen, seed=5, **options):
    """Play a federation whose slices have a sign that the label does not say; return truth and recovery."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(SAMPLES) % 2
    sign = (torch.rand(SAMPLES, generator=random) < 0.2).float()
    x = (0.5 + 0.4 * (2 * sign - 1) + 0.02 * torch.randn(SAMPLES, generator=random)).reshape(-1, 1, 1, 1)
    x = x * torch.ones(1, 8, 8) + 0.05 * y.reshape(-1, 1, 1, 1)
    boxes = tuple(partition((1, 8, 8), 2))
    base = Setting(
        PluginSection(name="mlp", hidden=[8], output=3), boxes, 2, SAMPLES, 20, "epochs", 120, False, seed, "cpu",
        auxiliary=KNOWN,
    )  # fmt: skip
    setting = seated(base, (Seat("label_holder", 0),), x, y)
    attack = SDAR(**{"hidden": 16, "steps": 2, **options}).start(setting)
    for seen in seen_from(setting, x, y, TrainingConfig(optimizer="adam", lr=0.01)):
        attack.observe(change(seen))
    return boxes[1].cut(x), attack.recover(silent)


def test_mostly_what_comes_back_is_nearer_than_the_mean():
    """Critics do not always come to the right end in a hundred rounds: of three seeds the middle one counts."""
    rest, errors = slice(KNOWN, None), []
    for seed in (5, 6, 7):
        truth, found = run(seed=seed, hidden=64, steps=4)
        errors.append(float((found.slices[1][rest] - truth[rest]).square().mean()))
    assert sorted(errors)[1] < 0.5 * float((truth[rest] - truth[:KNOWN].mean(0)).square().mean())
    assert found.told == tuple(range(KNOWN))
    assert torch.equal(found.slices[1][:KNOWN], truth[:KNOWN])
    assert found.notes[0].startswith("Worker 1: auxiliary samples, from whose outputs nothing was learned")


def test_nothing_is_learned_from_the_outputs_of_auxiliary_samples():
    def spoiled(seen):
        outputs = tuple(
            torch.where((seen.indices < KNOWN).unsqueeze(1), torch.full_like(one, 9.0), one) for one in seen.outputs
        )
        return replace(seen, outputs=outputs)

    (_, plain), (_, other) = run(), run(spoiled)
    assert torch.equal(plain.slices[1][KNOWN:], other.slices[1][KNOWN:])
    assert plain.notes != other.notes


def test_a_critic_is_scored_as_a_classifier_of_the_two_kinds():
    critic = Critic(3, 4)
    first, second, known = torch.randn(5, 2), torch.randn(7, 2), torch.ones(7, 1)
    said = torch.cat([critic(first, known[:5]), critic(second, known)])
    right = torch.cat([torch.ones(5), torch.zeros(7)])
    each = -torch.log(torch.where(right == 1, said.sigmoid(), 1 - said.sigmoid()))
    found = critic.loss((first, known[:5]), (second, known))
    torch.testing.assert_close(found, each[:5].mean() + each[5:].mean())


def test_too_few_samples_of_the_same_kind_are_refused_with_a_sentence():
    boxes = tuple(partition((1, 8, 8), 2))
    model = PluginSection(name="mlp", hidden=[8])
    setting = Setting(model, boxes, 2, 20, 10, "epochs", 2, False, 5, "cpu", auxiliary=4)
    with pytest.raises(UserError, match="it needs 10 samples that it knows from elsewhere"):
        SDAR().start(setting)
