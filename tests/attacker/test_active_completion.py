"""A malicious worker uploads its gradients enlarged, and completes the bottom model that comes of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attacker.active.completion import ActiveCompletion, enlarged
from tests.seats_support import seated, seen_from
from tests.support import run_in_processes
from vfl.config import parse_config
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.folder.summary import load_summary
from vfl.folder.verdict import verdict
from vfl.local.simulation import simulate
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection
from vfl.seats import Seat

KNOWN = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9}
MALICIOUS = Seat("worker", 2, malicious=True)


def config_of(**changes):
    tree = {
        "seed": 3,
        "data": {"name": "digits", "samples": 60, "test_samples": 0},
        "federation": {"workers": 2, "batch_size": 20, "epochs": 2},
        "model": {"name": "mlp", "hidden": [16]},
        "training": {"optimizer": "sgd", "lr": 0.1},
        "adversary": {"worker": 1, "malicious": True},
        "attack": {"name": "active_completion", "known": KNOWN, "steps": 2},
        "transcript": True,
    }
    return parse_config(tree | changes, "the test")


def test_it_uploads_autograds_gradients_enlarged_where_they_keep_their_sign():
    boxes = tuple(partition((1, 8, 8), 4))
    base = Setting(PluginSection(name="mlp", hidden=[8]), boxes, 3, 30, 10, "epochs", 3, False, 5, "cpu")
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(30, 1, 8, 8, generator=random), torch.arange(30) % 3
    both = seated(base, (Seat("coordinator"), MALICIOUS), x, y)
    options = ActiveCompletion(known={0: 0, 1: 1, 2: 2})
    running = options.start(seated(base, (MALICIOUS,), x, y))
    before = None
    for seen in seen_from(both, x, y, TrainingConfig(optimizer="sgd", lr=0.1)):
        running.observe(seen.parts[1])
        upload = running.propose(seen.round).upload
        honest = seen.parts[0].gradients.bottoms[2]
        for name, gradient in honest.items():
            wanted = gradient if before is None else enlarged(gradient, before[name], options)
            torch.testing.assert_close(upload[name], wanted, rtol=1e-4, atol=1e-8)
        moved = before or {name: torch.zeros_like(one) for name, one in upload.items()}
        before = {name: 0.9 * moved[name] + 0.1 * upload[name] for name in upload}


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=20))
def test_no_number_changes_its_sign_shrinks_or_grows_more_than_it_may(pairs):
    gradient, before = (torch.tensor(column) for column in zip(*pairs, strict=True))
    found = enlarged(gradient, before, ActiveCompletion(most=5.0))
    assert (found * gradient >= 0).all()
    assert (found.abs() >= gradient.abs()).all()
    assert (found.abs() <= 5.001 * gradient.abs()).all()
    turned = gradient * before <= 0
    assert torch.equal(found[turned], gradient[turned])


def test_over_the_wire_the_coordinator_steps_by_what_the_malicious_worker_uploads(tmp_path):
    config = config_of()
    run_in_processes(config, tmp_path / "wire")
    simulate(config, load_data(config), tmp_path / "one")
    quiet = config_of(adversary={"worker": 1}, attack={"name": "none"})
    simulate(quiet, load_data(config), tmp_path / "honest")
    wire, one, honest = (
        torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("wire", "one", "honest")
    )
    for name, parameter in one.items():
        assert torch.equal(parameter, wire[name])
    assert not any(torch.equal(one[name], honest[name]) for name in one if name.startswith("bottoms.1"))
    summary = load_summary(tmp_path / "one")
    assert summary.model_dump(mode="json")["attack"]["adversary"] == {"worker": 1, "malicious": True}
    assert "THE WORKER WAS MALICIOUS" in verdict(summary).basis
    assert verdict(summary).sentence.startswith("Malicious worker 1 knows the labels of")


def test_a_worker_that_keeps_to_its_gradients_cannot_play_it(tmp_path):
    config = config_of(adversary={"worker": 1})
    with pytest.raises(UserError, match="a worker that uploads what it proposes"):
        simulate(config, load_data(config), tmp_path)
