"""A malicious label holder answers what its attack chooses; a worker sees that some answers cannot be gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacker.active.fsha import FSHA
from attacker.driver.offline import attack_transcript
from attacker.interface import silent
from attacker.outputs.networks import Critic
from tests.seats_support import seated, seen_from
from tests.support import run_in_processes
from vfl.config import parse_config
from vfl.datasets.slices import load_data
from vfl.errors import RunFailedError, UserError
from vfl.folder.summary import load_summary
from vfl.folder.transcript import Transcript
from vfl.folder.verdict import verdict
from vfl.local.simulation import simulate
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection
from vfl.seats import Seat
from worker.answers import AnswerChecks, AnswersRefusedError

MALICIOUS = Seat("label_holder", 0, malicious=True)
QUICK = {"name": "fsha", "hidden": 16, "warm_up": 5, "steps": 1}


def config_of(**changes):
    tree = {
        "seed": 3,
        "data": {"name": "digits", "samples": 60, "test_samples": 0},
        "federation": {"workers": 4, "batch_size": 20, "epochs": 1, "checks": {"answers": False}},
        "model": {"name": "mlp", "hidden": [16]},
        "training": {"optimizer": "adam", "lr": 0.001},
        "adversary": {"label_holder": "malicious"},
        "auxiliary": 20,
        "attack": QUICK,
    }
    for key, value in changes.items():
        tree[key] = {**tree[key], **value} if key in ("federation", "training") else value
    return parse_config(tree, "the test")


def test_its_answers_are_the_gradients_of_what_the_critic_says_of_each_worker_and_of_nothing_else():
    boxes = tuple(partition((1, 8, 8), 4))
    model = PluginSection(name="mlp", hidden=[8])
    base = Setting(model, boxes, 3, 30, 10, "epochs", 3, False, 5, "cpu", auxiliary=12)
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(30, 1, 8, 8, generator=random), torch.arange(30) % 3
    setting = seated(base, (MALICIOUS,), x, y)
    running = FSHA(hidden=8, warm_up=1, steps=1).start(setting)
    for seen in seen_from(setting, x, y, TrainingConfig()):
        running.observe(seen)
        assert running.propose(seen.round + 1) is None
        proposal = running.propose(seen.round)
        assert torch.equal(proposal.answers[0], seen.answers[0])
        known = torch.cat([torch.eye(3)[y], boxes[0].cut(x).flatten(1)], dim=1)[seen.indices]
        for worker in (1, 2, 3):
            critic: Critic = running._sides[worker]._critic
            z = seen.outputs[worker].clone().requires_grad_()
            (-torch.nn.functional.logsigmoid(critic(z, known)).mean()).backward()
            torch.testing.assert_close(proposal.answers[worker], z.grad)
    found = running.recover(silent)
    for worker, box in enumerate(boxes):
        assert torch.equal(found.slices[worker][:12], box.cut(x)[:12])
    assert found.told == tuple(range(12))


def test_over_the_wire_it_answers_the_same_and_every_report_says_that_the_seat_was_malicious(tmp_path):
    config = config_of(transcript=True)
    seen = run_in_processes(config, tmp_path / "wire")
    simulate(config, load_data(config), tmp_path / "one")
    simulate(config_of(attack={"name": "none"}), load_data(config), tmp_path / "honest")
    models = {name: torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("wire", "one", "honest")}
    for name, parameter in models["one"].items():
        assert torch.equal(parameter, models["wire"][name])
    moved = {name for name, parameter in models["one"].items() if not torch.equal(parameter, models["honest"][name])}
    assert {name for name in models["one"] if name.startswith("bottoms.1")} <= moved
    assert len(seen) == 3
    x = [np.load(tmp_path / name / "recovered.npz")["x"] for name in ("wire", "one")]
    np.testing.assert_array_equal(*x)
    attack_transcript(Transcript(tmp_path / "wire" / "transcript"), config, tmp_path / "later")
    np.testing.assert_array_equal(np.load(tmp_path / "later" / "recovered.npz")["x"], x[0])
    summary = load_summary(tmp_path / "wire")
    assert summary.model_dump(mode="json")["attack"]["adversary"] == {"label_holder": "malicious"}
    for folder in ("wire", "one"):  # not scored, and scored
        assert "THE LABEL HOLDER WAS MALICIOUS" in verdict(load_summary(tmp_path / folder)).basis


def test_a_worker_refuses_answers_that_no_top_model_of_one_dense_layer_gives(tmp_path):
    config = config_of(federation={"checks": {"answers": True}})
    with pytest.raises(RunFailedError, match="the label holder's answers span 10 dimensions"):
        simulate(config, load_data(config), tmp_path / "refused")
    told = config_of(federation={"checks": {"answers": True}}, attack={**QUICK, "rank": 9})
    simulate(told, load_data(told), tmp_path / "told")


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(1, 16), st.integers(1, 40), st.floats(1e-4, 10), st.integers(0, 2**31))
def test_honest_answers_are_never_refused(classes, width, rows, scale, seed):
    config = config_of(federation={"checks": {"answers": True}}, model={"name": "mlp", "output": width})
    random = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(classes, width, generator=random)
    for sure in (1.0, 1e2, 1e5):  # as training goes on what is left is rounding
        logits, labels = sure * torch.randn(rows, classes, generator=random), torch.randint(classes, (rows,))
        labels = logits.argmax(1) if sure > 1 else labels
        checks = AnswerChecks(config)  # as of a worker that was restarted, and has seen none before
        checks.begin([width] * 4, classes)
        logits.requires_grad_()
        torch.nn.functional.cross_entropy(logits, labels).backward()
        checks.check(1, logits.grad @ weight)


def test_answers_of_other_top_models_and_noisy_ones_are_not_looked_at():
    strange = torch.randn(20, 10)
    on = {"checks": {"answers": True}}
    for changes in (
        {"model": {"name": "mlp", "top_hidden": [8]}},
        {"defence": {"answers": {"name": "discretise"}}},
        {"defence": {"answers": {"name": "max_norm"}}},
        {"federation": {"checks": False}},
    ):
        checks = AnswerChecks(config_of(**{"federation": on, **changes}))
        checks.begin([10] * 4, 10)
        checks.check(1, strange)
    checks = AnswerChecks(config_of(federation=on))
    checks.begin([10] * 4, 10)
    with pytest.raises(AnswersRefusedError, match="they span 9 at the most"):
        checks.check(1, strange)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"adversary": "label_holder"}, "a label holder that answers what it proposes"),
        ({"attack": {"name": "sdar"}}, "no more than to look on"),
        ({"training": {"lr": 0.0}}, "parameters that move as its answers say"),
        ({"auxiliary": 3}, "10 samples that it knows from elsewhere"),
    ],
)
def test_where_it_cannot_be_played_the_run_does_not_begin(changes, sentence, tmp_path):
    config = config_of(**changes)
    with pytest.raises(UserError, match=sentence):
        simulate(config, load_data(config), tmp_path)


def test_a_malicious_label_holder_acts_alone():
    with pytest.raises(UserError, match="a malicious party acts alone"):
        config_of(adversary=[{"label_holder": "malicious"}, {"worker": 1}])
