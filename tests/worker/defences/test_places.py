"""Defences of outputs and answers: against what each promises, and through a whole federation."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import small_config
from tests.worker.defences.support import PLAN, SECRET, numbers
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.local.simulation import simulate
from vfl.maths.metrics import auc
from vfl.observation import WorkerObservation
from vfl.registry import PluginSection
from worker.defences import Swapped, defences
from worker.defences.answers.marvell import best_noise, divergences, leak_bound
from worker.defences.places import SwapChain

LABELS = torch.arange(400) % 2


def exchanged(name, tensor, labels=LABELS, number=1, **options):
    chain = SwapChain([PluginSection.model_validate({"name": name, **options})], PLAN, "answers")
    return chain.apply(tensor, number, rows=torch.arange(len(tensor)), to="to worker 2", labels=labels[: len(tensor)])


def two_classes(samples=400, width=6, seed=0):
    """Answers that point to either side by class, rather tightly."""
    side = 2.0 * LABELS[:samples, None] - 1
    return side * numbers(1, width, seed=seed) + 0.05 * numbers(samples, width, seed=seed + 1)


def able(place):
    return [name for name in defences.names() if place in defences.find(name).places]


SENT = [(place, name) for place in ("outputs", "answers") for name in able(place)]


@pytest.mark.parametrize(("place", "name"), SENT)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-38, 12), min_size=1, max_size=9), st.integers(1, 12), st.sampled_from([0.0, 0.5, 1.0]))
def test_shape_and_dtype_stay_and_all_is_finite_whatever_is_sent(place, name, sizes, width, zeros):
    rows = len(sizes)  # each of a size of its own, as answers of a trained model are
    kept = torch.rand(rows, width, generator=torch.Generator().manual_seed(width)) >= zeros
    tensor = numbers(rows, width) * kept * torch.tensor([10.0**size for size in sizes])[:, None]
    before = tensor.clone()
    chain = SwapChain([PluginSection(name=name)], PLAN, place)
    labels = LABELS[:rows] if place == "answers" else None
    sent = chain.apply(tensor, 1, rows=torch.arange(rows), to="to worker 2", labels=labels)
    assert (sent.shape, sent.dtype) == (tensor.shape, tensor.dtype)
    assert bool(sent.isfinite().all())
    assert torch.equal(tensor, before), "a defence must not write into the true tensor"


def test_max_norm_makes_all_as_long_as_the_longest_and_keeps_each_on_its_line():
    answers = numbers(2000, 5) * torch.rand(2000, 1, generator=torch.Generator().manual_seed(3))
    sent = exchanged("max_norm", answers, torch.zeros(2000, dtype=torch.int64))
    longest = answers.norm(dim=1).max()
    some = answers.norm(dim=1) > 0.2 * longest
    assert sent[some].square().sum(1).mean() == pytest.approx(float(longest**2), rel=0.15)
    cosines = (sent * answers).sum(1).abs() / (sent.norm(dim=1) * answers.norm(dim=1))
    assert cosines.min() > 0.999


def test_answers_that_are_all_zero_stay_so():
    for name in ("max_norm", "discretise", "marvell", "clip", "quantize"):
        assert torch.equal(exchanged(name, torch.zeros(8, 3)), torch.zeros(8, 3)), name


def test_discretised_answers_have_as_many_values_as_was_said():
    sent = exchanged("discretise", numbers(100, 7), values=5)
    assert len(sent.unique()) == 5
    assert sent.max() <= numbers(100, 7).mean() + 2.001 * numbers(100, 7).std()


def test_clipping_shortens_each_sample_by_itself():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    assert torch.allclose(exchanged("clip", rows, norm=1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_labels_are_kept_as_often_as_epsilon_allows(epsilon):
    labels = torch.arange(30000) % 3
    chain = SwapChain([PluginSection(name="random_labels", epsilon=epsilon)], PLAN, "answers")
    drawn = chain.labels(labels, 3)
    kept = math.exp(epsilon) / (math.exp(epsilon) + 2)
    assert float((drawn == labels).double().mean()) == pytest.approx(kept, abs=0.01)
    others = [float((drawn == (labels + shift) % 3).double().mean()) for shift in (1, 2)]
    assert others == pytest.approx([(1 - kept) / 2] * 2, abs=0.01)
    assert torch.equal(chain.labels(labels, 3), drawn)


@pytest.mark.parametrize("spreads", [(0.01, 0.02), (0.5, 0.1), (3.0, 3.0)])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_marvells_noise_is_the_best_of_its_strength(spreads, share):
    across, strength = 5, 4.0
    noise = best_noise(np.array(spreads), share, across, strength)
    weights = np.array([[1 - share, (1 - share) * across], [share, share * across]])
    assert (weights * noise).sum() <= strength * 1.001
    best = divergences(noise, np.array(spreads), across)
    draw = np.random.default_rng(1)
    for _ in range(2000):
        other = draw.dirichlet(np.ones(4) * 0.5).reshape(2, 2) * strength / weights
        assert divergences(other, np.array(spreads), across) > best * 0.995


def test_marvell_hides_the_class_of_one_rounds_answers_and_is_right_in_the_mean():
    answers = two_classes()
    sent = exchanged("marvell", answers, strength=16)
    axis = answers[LABELS == 1].mean(0) - answers[LABELS == 0].mean(0)
    assert auc(answers @ axis, LABELS == 1) == 1.0
    value = auc(sent @ axis, LABELS == 1)
    assert max(value, 1 - value) < 0.68
    mean = torch.stack([exchanged("marvell", answers, number=n, strength=16) for n in range(300)]).mean(0)
    # the noise is four times as long as the difference of the means, which is twice as long as an answer
    assert (mean - answers).norm() / answers.norm() == pytest.approx(2 * 4 / math.sqrt(300), rel=0.1)


def test_marvells_bound_holds_for_the_best_scoring_there_is():
    spreads, across = np.array([0.02, 0.02]), 5
    noise = best_noise(spreads, 0.5, across, 16.0)
    deviation = math.sqrt(noise[0, 0] + spreads[0])
    theory = 0.5 * (1 + math.erf(1 / deviation / 2))
    assert theory <= leak_bound(noise, spreads, across)


def test_a_batch_of_one_class_and_more_classes_than_two():
    assert torch.equal(exchanged("marvell", numbers(6, 3), torch.zeros(6, dtype=torch.int64)), numbers(6, 3))
    with pytest.raises(UserError, match="marvell is for two classes, and here are 10"):
        SwapChain([PluginSection(name="marvell")], PLAN, "answers").check(10)


@pytest.mark.parametrize(("place", "name"), [("outputs", "marvell"), ("answers", "prune"), ("uploads", "max_norm")])
def test_a_defence_at_a_place_where_it_cannot_act_is_refused(place, name, tmp_path):
    config = small_config(defence={place: {"name": name}})
    with pytest.raises(UserError, match=f"defence.{place}: {name} acts on"):
        simulate(config, load_data(config), tmp_path)


@pytest.mark.parametrize(
    ("defence", "sentence"),
    [
        ({"outputs": {"workers": {9: {"name": "noise"}}}}, "defence.outputs.workers names worker 9"),
        ({"uploads": {"name": "noise"}, "anwsers": {"name": "noise"}}, "defence.anwsers: there is no such key"),
    ],
)
def test_places_are_checked_key_by_key(defence, sentence):
    with pytest.raises(UserError, match=sentence):
        small_config(defence=defence)


def test_outputs_and_answers_are_defended_on_their_way_and_at_no_other_place(tmp_path):
    """What leaves a worker is defended, what it keeps is not; the label holder's own answer is true."""
    about = {"federation": {"fixed_secrets": True, "rounds": 1}, "adversary": ("label_holder", {"worker": 2})}
    seen = {}
    for name, defence in {
        "none": {"name": "none"},
        "outputs": {"outputs": {"workers": {2: {"name": "quantize", "bits": 2}}}},
        "answers": {"answers": [{"name": "clip", "norm": 1e-3}]},
    }.items():
        config = small_config(defence=defence, attack={"name": "none"}, **about)
        rounds = []
        simulate(config, load_data(config), tmp_path / name, rounds.append)
        seen[name] = rounds[0].parts
    (holder, worker), (noisy, _), (true, short) = seen["none"], seen["outputs"], seen["answers"]
    assert isinstance(worker, WorkerObservation)
    assert torch.equal(noisy.outputs[1], holder.outputs[1])
    assert len(noisy.outputs[2].unique()) <= 3 < len(holder.outputs[2].unique())
    assert torch.equal(true.answers[2], holder.answers[2])  # the label holder knows what it computed
    assert torch.allclose(short.answer.norm(dim=1), torch.full((8,), 1e-3), rtol=1e-4)
    assert torch.equal(worker.answer, holder.answers[2])


def test_what_is_sent_is_drawn_anew_for_each_receiver_and_round():
    chain = SwapChain([PluginSection(name="noise")], PLAN, "answers")
    rows = torch.arange(3)
    sent = [
        chain.apply(torch.ones(3, 2), number, rows=rows, to=to)
        for number, to in ((1, "to worker 1"), (1, "to worker 2"), (2, "to worker 1"), (1, "to worker 1"))
    ]
    assert not torch.equal(sent[0], sent[1])
    assert not torch.equal(sent[0], sent[2])
    assert torch.equal(sent[0], sent[3])


def test_a_worker_says_at_the_end_what_was_done_where(tmp_path):
    config = small_config(defence={"outputs": {"name": "noise"}, "answers": {"name": "random_labels"}})
    simulate(config, load_data(config), tmp_path)
    reports = json.loads((tmp_path / "summary.json").read_text())["defence"]
    assert [[one["name"] for one in report["chain"]] for report in reports[:2]] == [
        ["none", "noise on outputs", "random_labels on answers"],
        ["none", "noise on outputs"],
    ]
    assert reports[0]["chain"][2]["epsilon of a label"] == 1.0


def test_a_defence_without_a_way_to_exchange_is_no_defence_of_answers():
    with pytest.raises(NotImplementedError):
        defences.find("prune")().exchange(torch.ones(1, 1), Swapped(1, torch.arange(1), SECRET.draws("a test")))
