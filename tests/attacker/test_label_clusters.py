"""Labels from the directions of answers: against known top models, and through a whole federation."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot, softmax

from attacker.interface import silent
from attacker.labels.clusters import LabelClusters, memberships, named, negative_entries
from tests.support import setting_of, small_config
from vfl.config import parse_config
from vfl.datasets.slices import load_data
from vfl.local.simulation import simulate
from vfl.maths.naming import renamed
from vfl.observation import Setting, WorkerObservation
from vfl.seats import Seat


def answers_of(labels, classes, width, seed):
    """What a linear top model that has learned nothing answers: W^T (p - y) / K."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, width, generator=draw)
    guess = softmax(0.05 * torch.randn(len(labels), classes, generator=draw), dim=1)
    return (guess - one_hot(labels, classes)) @ weight / len(labels)


def setting(samples, classes) -> Setting:
    known = setting_of(small_config())
    return type(known)(**{**vars(known), "samples": samples, "classes": classes, "seats": (Seat("worker", 2),)})


def rounds(labels, answers, batch):
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))
    for number, rows in enumerate(order.split(batch), start=1):
        yield WorkerObservation(number, rows, number, {}, torch.zeros_like(answers[rows]), answers[rows])


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 8), st.integers(2, 12), st.integers(0, 1000))
def test_classes_are_parted_for_any_linear_top_model_that_is_wide_enough(classes, width, seed):
    width = max(width, classes)
    labels = torch.arange(12 * classes) % classes
    attack = LabelClusters().start(setting(len(labels), classes))
    for observation in rounds(labels, answers_of(labels, classes, width, seed), 7):
        attack.observe(observation)
    recovery = attack.recover(silent)
    assert recovery.labels_named is False
    assert torch.equal(renamed(recovery.labels, labels, classes), labels)


def test_with_one_sample_of_each_class_known_the_labels_have_their_names():
    labels = torch.arange(60) % 5
    known = {n: int(labels[n]) for n in (10, 6, 22, 33, 49)}
    attack = LabelClusters(known=known).start(setting(60, 5))
    for observation in rounds(labels, answers_of(labels, 5, 10, 3), 12):
        attack.observe(observation)
    recovery = attack.recover(silent)
    assert recovery.labels_named is True
    assert torch.equal(recovery.labels, labels)
    assert recovery.used == ("indices", "answers", "the classes of 5 samples")


def test_with_a_class_of_which_no_sample_is_known_they_have_not():
    found = named(torch.tensor([0, 1, 2, 2]), {0: 2, 1: 0}, 3)
    assert found["labels_named"] is False
    assert found["labels"].tolist()[:2] == [2, 0]


def test_answers_of_no_top_model_give_the_labels_by_name():
    labels = torch.arange(30) % 3
    rows = softmax(torch.randn(30, 3, generator=torch.Generator().manual_seed(1)), dim=1) - one_hot(labels, 3)
    assert torch.equal(negative_entries([rows.double()], 3), labels)
    assert negative_entries([(rows @ torch.randn(3, 3)).double()], 3) is None
    assert negative_entries([rows[:, :2].double()], 3) is None


def test_a_worker_of_a_federation_without_a_top_model_has_the_labels_by_name(tmp_path):
    tree = {
        "data": {"name": "digits", "samples": 60, "test_samples": 0},
        "federation": {"workers": 3, "batch_size": 20, "epochs": 1},
        "model": {"name": "mlp", "hidden": [16], "top": {"name": "tests.vfl.models.tops:Sums"}},
        "training": {"optimizer": "adam", "lr": 0.001},
        "adversary": {"worker": 2},
        "attack": {"name": "label_clusters"},
    }
    config = parse_config(tree, "the test")
    data = load_data(config)
    found = simulate(config, data, tmp_path).recovery
    assert found.labels_named is True
    assert torch.equal(found.labels, data.y)


def test_samples_without_an_answer_stay_unknown():
    labels = torch.arange(20) % 2
    attack = LabelClusters().start(setting(20, 2))
    for observation in list(rounds(labels, answers_of(labels, 2, 4, 2), 5))[:2]:
        attack.observe(observation)
    found = attack.recover(silent).labels
    assert int((found == -1).sum()) == 10


def test_rounds_before_the_first_that_counts_are_not_used():
    labels = torch.arange(20) % 2
    attack = LabelClusters(first_round=3).start(setting(20, 2))
    for observation in rounds(labels, answers_of(labels, 2, 4, 2), 5):
        attack.observe(observation)
    found = attack.recover(silent)
    assert found.rounds == (3, 4)
    assert int((found.labels == -1).sum()) == 10


def test_a_second_pass_that_is_blurred_does_not_spoil_the_first():
    labels = torch.arange(40) % 4
    clear = answers_of(labels, 4, 8, 7)
    blurred = clear + 0.5 * clear.norm(dim=1).mean() * torch.randn(
        clear.shape, generator=torch.Generator().manual_seed(2)
    )
    attack = LabelClusters().start(setting(40, 4))
    for pass_number, answers in enumerate((clear, blurred)):
        for observation in rounds(labels, answers, 10):
            attack.observe(type(observation)(**{**vars(observation), "round": 4 * pass_number + observation.round}))
    assert torch.equal(renamed(attack.recover(silent).labels, labels, 4), labels)


def test_rows_that_are_all_alike_make_one_group():
    assert memberships(torch.ones(5, 3, dtype=torch.float64), 4, 0).argmax(1).tolist() == [0] * 5
