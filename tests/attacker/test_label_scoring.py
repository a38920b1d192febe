"""Two classes from how long answers are and where they point: against scikit-learn, and a top model that is known."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch.nn.functional import one_hot

from attacker.interface import silent
from attacker.labels.scoring import LabelDirection, LabelNorm, threshold
from tests.attacker.test_label_clusters import rounds, setting
from vfl.errors import UserError
from vfl.maths.metrics import auc


def rare_positives(samples=200, share=0.1, seed=0):
    """Labels of which few are 1, and the answers of a model that expects that: p is the classes' share."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.rand(samples, generator=draw) < share).long()
    second = (share + 0.02 * torch.randn(samples, generator=draw)).clamp(0.01, 0.99)
    guess = torch.stack([1 - second, second], dim=1)
    return labels, (guess - one_hot(labels, 2)) @ torch.randn(2, 6, generator=draw) / 20


def attacked(plugin, labels, answers):
    attack = plugin.start(setting(len(labels), 2))
    for observation in rounds(labels, answers, 20):
        attack.observe(observation)
    return attack.recover(silent)


def test_the_rarer_class_has_the_longer_answers():
    labels, answers = rare_positives()
    found = attacked(LabelNorm(), labels, answers)
    assert auc(found.label_scores, labels == 1) > 0.99
    assert found.labels_named is False


def test_the_axis_of_the_directions_parts_the_classes_without_any_label():
    labels, answers = rare_positives(share=0.4)
    found = attacked(LabelDirection(), labels, answers)
    value = auc(found.label_scores, labels == 1)
    assert max(value, 1 - value) == 1.0
    assert found.used == ("indices", "answers")


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**31))
def test_of_any_linear_top_model_and_batch_the_axis_parts_the_classes(width, batch, seed):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(40) % 2
    second = 0.05 + 0.9 * torch.rand(40, generator=draw)
    weight = torch.randn(2, width, generator=draw)
    answers = (torch.stack([1 - second, second], dim=1) - one_hot(labels, 2)) @ weight / batch
    attack = LabelDirection().start(setting(40, 2))
    for observation in rounds(labels, answers, batch):
        attack.observe(observation)
    value = auc(attack.recover(silent).label_scores, labels == 1)
    assert max(value, 1 - value) == 1.0


def test_one_known_sample_says_which_side_is_which():
    labels, answers = rare_positives(share=0.4)
    found = attacked(LabelDirection(known=int(labels.argmax())), labels, answers)
    assert auc(found.label_scores, labels == 1) == 1.0
    assert torch.equal(found.labels, labels)
    assert found.labels_named is True


def test_a_batch_without_the_known_sample_is_scored_by_the_axis():
    labels, answers = rare_positives(share=0.4)
    attack = LabelDirection(known=int(labels.argmax())).start(setting(len(labels), 2))
    for observation in rounds(labels, answers, 20):
        if int(labels.argmax()) not in observation.indices:
            attack.observe(observation)
    assert attack.recover(silent).label_scores.isfinite().sum() == 180


def test_told_of_noise_it_averages_a_samples_answers_over_the_rounds():
    labels, answers = rare_positives(share=0.4)
    apart = answers[labels == 1].mean(0) - answers[labels == 0].mean(0)
    draw = torch.Generator().manual_seed(1)
    attacks = [LabelDirection(told=told).start(setting(len(labels), 2)) for told in (False, True)]
    for _ in range(200):  # passes, with fresh noise of eight times the difference along it: Marvell of strength 64
        noisy = answers + 8 * apart * torch.randn(len(labels), 1, generator=draw)
        for observation in rounds(labels, noisy, 20):
            for attack in attacks:
                attack.observe(observation)
    untold, told = (attack.recover(silent) for attack in attacks)
    values = [auc(one.label_scores, labels == 1) for one in (untold, told)]
    assert max(values[0], 1 - values[0]) < 0.7
    assert max(values[1], 1 - values[1]) > 0.85
    assert untold.used == ("indices", "answers")
    assert told.used == ("indices", "answers", "the defence's kind")


def test_told_of_noise_a_known_sample_still_says_which_side_is_which():
    labels, answers = rare_positives(share=0.4)
    found = attacked(LabelDirection(known=int(labels.argmax()), told=True), labels, answers)
    assert auc(found.label_scores, labels == 1) == 1.0
    assert (found.labels_named, found.told) == (True, (int(labels.argmax()),))


@pytest.mark.parametrize("seed", range(5))
def test_the_area_under_the_curve_is_scikit_learns_ties_included(seed):
    draw = torch.Generator().manual_seed(seed)
    scores, positive = torch.randint(0, 6, (50,), generator=draw).double(), torch.rand(50, generator=draw) < 0.3
    assert auc(scores, positive) == pytest.approx(roc_auc_score(positive.numpy(), scores.numpy()))


def test_there_is_no_curve_of_one_class():
    assert auc(torch.rand(4), torch.ones(4, dtype=torch.bool)) is None


def test_the_cut_is_where_the_groups_differ_most():
    low, high = torch.rand(30).double(), 5 + torch.rand(10).double()
    assert 1 < threshold(torch.cat([low, high])) < 5
    assert threshold(torch.ones(3).double()) == 1.0


def test_more_classes_are_refused():
    with pytest.raises(UserError, match="label_norm cannot run here: it needs two classes, and here are 3"):
        LabelNorm().start(setting(10, 3))
