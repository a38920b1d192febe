"""A malicious coordinator takes batches of a table apart; workers that check its orders refuse."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacker.active.batch import Batch
from attacker.active.line import SHARE, Line
from attacker.active.network import GAIN, Counting, Dense, Head, Network
from attacker.start import start_attack
from tests.support import run_in_processes
from vfl.config import parse_config
from vfl.datasets.slices import boxes_of, load_data
from vfl.errors import RunFailedError, UserError
from vfl.folder.summary import load_summary
from vfl.folder.transcript import Transcript
from vfl.folder.verdict import verdict
from vfl.local.launch import run_federation
from vfl.local.one_process import OneProcess
from vfl.local.simulation import simulate
from vfl.observation import Observation, Setting


def config_of(**changes):
    """The bundled table, whose two parties follow whatever they are ordered."""
    tree = {
        "seed": 1,
        "data": {"name": "breast_cancer", "samples": 120},
        "federation": {"workers": 2, "batch_size": 60, "rounds": 24, "checks": False},
        "model": {"name": "mlp", "hidden": [80]},
        "training": {"optimizer": "adam", "lr": 0.001},
        "adversary": {"coordinator": "malicious"},
        "attack": {"name": "isolate"},
        "transcript": True,
    }
    for key, value in changes.items():
        tree[key] = {**tree[key], **value} if key == "federation" else value
    return parse_config(tree, "the test")


def setting_of(config, data):
    return Setting.of(config, boxes_of(data, config), data.classes, len(data.x))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=200), st.floats(-1e-4, 1e-4))
def test_a_sum_says_how_many_rows_it_is_of_and_of_which_class(classes, rounding):
    line = Line(torch.ones(1), 1024)
    total = sum(SHARE - one for one in classes) + rounding
    sums = torch.tensor([[0.0, total], [0.0, 0.0]], dtype=torch.float64)
    line.add(torch.tensor([0.0, 1e-9]), sums)
    counted = line.groups()
    assert (counted.counts.tolist(), counted.ones.tolist()) == ([len(classes)], [sum(classes)])


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 2**31), st.sampled_from([[40], [40, 5], [40, 3, 4]]))
def test_chosen_parameters_make_autograds_gradients_the_sums_that_are_counted(rows, features, seed, hidden):
    random = torch.Generator().manual_seed(seed)
    x, y = torch.randn(rows, features, generator=random), torch.randint(3, (rows,), generator=random)
    layers = [torch.nn.Flatten()]
    for before, after in zip([features, *hidden], [*hidden, 4], strict=True):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    bottom = torch.nn.Sequential(*layers[:-1])
    dense = Dense.of(bottom)
    direction, thresholds = torch.randn(features, generator=random), torch.linspace(-2, 2, 40)
    bottom.load_state_dict(dense.parameters(Counting(direction, thresholds)))
    head = Head.one_against_all(3, float(torch.logit(torch.tensor(SHARE))))
    top = torch.nn.Linear(4, 3)
    made = Network((dense,), "", (4,), 3).parameters([dense.parameters(None)], head).top
    top.load_state_dict(made)
    torch.nn.functional.cross_entropy(top(bottom(x)), y).backward()
    named = {name: parameter.grad for name, parameter in bottom.named_parameters()}
    seen = dense.gradients(named) * rows / GAIN
    flows = SHARE - (y == 0).double()
    beyond = (x @ direction).unsqueeze(1) > thresholds
    torch.testing.assert_close(seen[:, -1], beyond.double().t() @ flows, rtol=1e-5, atol=1e-4)
    wanted = (beyond.double() * flows.unsqueeze(1)).t() @ x.double()
    torch.testing.assert_close(seen[:, :-1], wanted, rtol=1e-4, atol=1e-4)


def _recovered(out):
    arrays = np.load(out / "recovered.npz")
    span = np.ptp(arrays["x_true"], axis=0)
    right = (np.abs(arrays["x"] - arrays["x_true"]) <= 1e-3 * span).all(axis=1)
    return right, arrays["certified"]


@pytest.mark.parametrize(
    "changes", [{}, {"model": {"name": "mlp", "hidden": [40, 6]}}, {"federation": {"workers": 3, "batch_size": 120}}]
)
def test_every_row_comes_back_certified_and_no_certificate_is_wrong(changes, tmp_path):
    config = config_of(**changes)
    simulate(config, load_data(config), tmp_path)
    right, certified = _recovered(tmp_path)
    assert right.mean() >= 0.99
    assert certified.mean() >= 0.97
    assert not (certified & ~right).any()
    summary = load_summary(tmp_path)
    assert summary.attack.label_accuracy >= 0.99
    found = verdict(summary)
    assert found.sentence.startswith("The malicious coordinator rebuilt")
    assert "THE COORDINATOR WAS MALICIOUS" in found.basis
    assert summary.model_dump(mode="json")["attack"]["adversary"] == {"coordinator": "malicious"}


@pytest.mark.slow
def test_a_thousand_rows_among_four_of_which_many_are_equal_come_back(tmp_path):
    random = np.random.default_rng(0)
    x = np.exp(random.normal(size=(1024, 20)))  # as amounts of money are
    y = (random.random(1024) < 0.2).astype(int)
    for first in range(0, 20, 5):  # at each worker's: of the 89 equal rows the gradients nearly cancel, 89 SHARE - 55
        same = [*random.permutation(np.flatnonzero(y == 0))[:55], *random.permutation(np.flatnonzero(y == 1))[:34]]
        x[same, first : first + 5] = np.exp(random.normal(size=5))
    np.savez(tmp_path / "table.npz", x=x, y=y)
    config = config_of(
        data={"name": "npz", "path": str(tmp_path / "table.npz"), "samples": 1024},
        federation={"workers": 4, "batch_size": 1024, "rounds": 60},
        model={"name": "mlp", "hidden": [1024]},
    )
    simulate(config, load_data(config), tmp_path / "run")
    right, certified = _recovered(tmp_path / "run")
    assert right.mean() >= 0.99
    assert certified.mean() >= 0.95
    assert not (certified & ~right).any()


def test_in_processes_it_is_the_same_and_a_recorded_run_gives_the_same_rows(tmp_path):
    config = config_of()
    rounds = run_in_processes(config, tmp_path / "wire")
    data = load_data(config)
    simulated = simulate(config, data, tmp_path / "one")
    recorded = Transcript(tmp_path / "wire" / "transcript").setting  # it sees what an honest coordinator does
    assert (recorded.held.slices, recorded.held.auxiliary, recorded.labels) == ({}, None, None)
    autograd = OneProcess(setting_of(config, data), data.x, data.y)
    for one in (rounds[0], rounds[len(rounds) // 2]):
        expected, _ = autograd(one.parameters, one.indices)
        for found, right in zip(one.gradients.bottoms, expected.bottoms, strict=True):
            assert all(torch.allclose(found[name], right[name], rtol=1e-3, atol=1e-20) for name in right)
    versions = {one.version for one in rounds}
    assert len(versions) > 10
    summary = load_summary(tmp_path / "wire")
    assert summary.attack.certified == load_summary(tmp_path / "one").attack.certified
    replayed = start_attack(config.attack, Transcript(tmp_path / "wire" / "transcript").setting)
    for one in rounds:
        replayed.observe(one)
    again = replayed.recover(lambda *_: None)
    assert all(
        torch.equal(a, b) or torch.equal(a.isnan(), b.isnan())
        for a, b in zip(again.slices, simulated.recovery.slices, strict=True)
    )


def test_rounds_after_the_attack_train_the_model_as_if_nothing_had_been(tmp_path):
    config = config_of(federation={"batch_size": 120, "rounds": 30})
    seen = []
    simulate(config, load_data(config), tmp_path, on_round=seen.append)
    honest = [one for one in seen if float(one.parameters.top["fc.weight"].abs().min()) > 0]
    assert len(honest) > 3
    data = load_data(config)
    first = OneProcess(setting_of(config, data), data.x, data.y)
    drawn, _ = first(honest[0].parameters, honest[0].indices)
    torch.testing.assert_close(honest[0].gradients.top["fc.bias"], drawn.top["fc.bias"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("checks", "words"),
    [
        (True, r"first bottom\.1\.weight is not what the config's seed makes here"),
        ({"first_parameters": False, "steps": False}, "round 1 names other samples than the agreed schedule"),
        ({"schedule": False, "first_parameters": False}, "off what adam makes of this worker's own gradient"),
        ({"schedule": False, "steps": False}, r"first bottom\.1\.weight is not what the config's seed makes here"),
    ],
    ids=str,
)
def test_workers_that_check_refuse_with_a_sentence(checks, words, tmp_path):
    config = config_of(federation={"checks": checks, "rounds": 3})
    with pytest.raises(RunFailedError, match=words):
        simulate(config, load_data(config), tmp_path)


def test_over_the_wire_the_refusal_ends_the_run_and_the_summary_says_so(tmp_path):
    config = config_of(federation={"checks": True, "rounds": 3})
    with pytest.raises(RunFailedError, match=r"first bottom\.1\.weight is not what the config's seed"):
        run_federation(config, load_data(config), tmp_path)
    found = verdict(load_summary(tmp_path))
    assert found.label == "not finished"
    assert "That says nothing about safety" in found.sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"adversary": "coordinator"}, "a coordinator that orders what it proposes"),
        ({"attack": {"name": "exact"}}, "no more than to look on"),
        ({"training": {"lr": 0.0}}, "parameters that may change"),
        ({"model": {"name": "mlp", "hidden": [8]}}, "first layers of 32 units or more"),
        ({"model": {"name": "mlp", "hidden": []}}, "two at the least"),
    ],
    ids=str,
)
def test_where_it_cannot_be_played_the_run_ends_before_it_starts(changes, words):
    config = config_of(**changes)
    with pytest.raises(UserError, match=words):
        start_attack(config.attack, setting_of(config, load_data(config)))


def test_gradients_that_a_defence_alters_are_noticed_and_nothing_is_certified(tmp_path):
    config = config_of(defence={"name": "noise", "scale": 0.01})
    simulate(config, load_data(config), tmp_path)
    summary = load_summary(tmp_path)
    assert summary.attack.certified == 0
    assert "Something alters the gradients" in " ".join(map(str, summary.attack.notes))


def test_a_malicious_coordinator_acts_alone():
    with pytest.raises(UserError, match="a malicious party acts alone"):
        config_of(adversary=[{"coordinator": "malicious"}, "label_holder"])
    with pytest.raises(UserError, match="cannot be resumed"):
        config_of(federation={"checkpoint_every": 2})


def test_a_batch_is_done_only_when_it_was_observed():
    config = config_of()
    data = load_data(config)
    setting = setting_of(config, data)
    network = Network.of(setting)
    batch = Batch(network, torch.arange(60), torch.Generator().manual_seed(0), measurements=4)
    first = batch.propose()
    assert batch.propose() is first
    gradients, _ = OneProcess(setting, data.x, data.y)(first, torch.arange(60))
    batch.observe(Observation(1, torch.arange(60), 2, first, gradients))
    assert batch.propose() is not first


@pytest.mark.parametrize(
    ("by", "changes"),
    [
        ("one", {"federation": {"rounds": 120}}),
        ("swap", {"federation": {"rounds": 120, "checks": {"schedule": False}}, "training": {"lr": 0.0}}),
        ("swap", {"federation": {"rounds": 119, "checks": {"schedule": False}}, "training": {"lr": 0.0}}),
    ],
)
def test_batches_of_one_and_batches_that_differ_in_one_show_every_row_by_name(by, changes, tmp_path):
    config = config_of(**changes, attack={"name": "single_out", "by": by}, transcript=False)
    simulate(config, load_data(config), tmp_path)
    right, certified = _recovered(tmp_path)
    assert right.mean() >= 0.95  # the last ones of a run that is cut off have no partners
    assert certified.mean() >= 0.95
    assert not (certified & ~right).any()
    assert load_summary(tmp_path).attack.ordered == 0


@pytest.mark.parametrize(
    ("by", "checks", "words"),
    [
        ("one", {"schedule": False}, "round 1 names 1 samples, and the config here plans batches of 60"),
        ("swap", True, "round 1 names other samples than the agreed schedule"),
    ],
)
def test_workers_that_check_refuse_batches_of_its_choice(by, checks, words, tmp_path):
    training = {"lr": 0.0} if by == "swap" else {"optimizer": "adam", "lr": 0.001}
    config = config_of(attack={"name": "single_out", "by": by}, federation={"checks": checks}, training=training)
    with pytest.raises(RunFailedError, match=words):
        simulate(config, load_data(config), tmp_path)
