"""Training over the wire is training: the plain loop's curve, evaluations, early stops, and a model to take away."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn.functional import cross_entropy

from tests.integration.command_support import cafe
from tests.support import run_in_processes, small_config
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.local.launch import run_federation
from vfl.models.whole import whole_model
from vfl.observation.schedule import batches

ROOT = Path(__file__).parents[2]

TRAINED = {
    "data": {"name": "digits", "samples": 120, "test_samples": 280},
    "federation": {"batch_size": 20, "rounds": None, "epochs": 6},
    "training": {
        "lr": 0.2,
        "momentum": 0.9,
        "weight_decay": 0.002,
        "clip_norm": 0.5,
        "schedule": {"kind": "cosine", "frozen_epochs": 1, "warmup_epochs": 1, "floor": 0.1},
        "evaluate_every": 8,
    },
    "transcript": False,
}


def train_of(out: Path) -> dict:
    return json.loads((out / "summary.json").read_text())["train"]


def quarters(x: torch.Tensor) -> list[torch.Tensor]:
    return [x[:, :, top : top + 4, left : left + 4] for top in (0, 4) for left in (0, 4)]


def plain_rate(step: int) -> float:
    """Six rounds at 0, six up to 0.2, then half a cosine over 24 rounds to a tenth of it."""
    if step < 12:
        return max(0.0, 0.2 * (step - 5) / 6)
    return 0.02 + 0.18 * 0.5 * (1 + math.cos(math.pi * (step - 12) / 24))


def test_a_federation_learns_what_a_plain_loop_learns(tmp_path):
    config = small_config(**TRAINED)
    data = load_data(config)
    run_federation(config, data, tmp_path)
    found = train_of(tmp_path)

    model = whole_model(config.model, [(1, 4, 4)] * 4, 10, config.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.002)
    losses, norms, evaluations = [], [], []
    for step, rows in enumerate(batches("epochs", 120, 20, 36, seed=config.seed)):
        optimizer.zero_grad()
        loss = cross_entropy(model(quarters(data.x[rows])), data.y[rows])
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        losses.append(loss.item())
        if plain_rate(step) > 0:
            optimizer.param_groups[0]["lr"] = plain_rate(step)
            optimizer.step()
        if step + 1 in (8, 16, 24, 32, 36):
            with torch.no_grad():
                logits = model(quarters(data.x_test))
            right = int((logits.argmax(1) == data.y_test).sum())
            evaluations.append((step + 1, right / 280, float(cross_entropy(logits, data.y_test))))

    assert min(norms) < 0.5 < max(norms)  # some rounds are clipped
    assert losses[-1] < 0.7 * losses[0]
    assert found["losses"] == pytest.approx(losses, rel=1e-5)
    assert [(one["round"], one["accuracy"]) for one in found["evaluations"]] == [(n, a) for n, a, _ in evaluations]
    assert [one["loss"] for one in found["evaluations"]] == pytest.approx([one[2] for one in evaluations], rel=1e-5)
    assert (found["test_accuracy"], found["stopped_early"]) == (evaluations[-1][1], False)
    assert found["test_loss"] == found["evaluations"][-1]["loss"]

    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    assert saved.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert (saved[name] - tensor).norm() < 1e-5 * tensor.norm(), name

    events = EventAccumulator(str(tmp_path / "events")).Reload()
    rates = [event.value for event in events.Scalars("train/learning_rate")]
    assert rates == pytest.approx([plain_rate(step) for step in range(36)], rel=1e-6)
    for tag, key in (("test/loss", "loss"), ("test/accuracy", "accuracy")):
        shown = {event.step: event.value for event in events.Scalars(tag)}
        assert shown == pytest.approx({one["round"]: one[key] for one in found["evaluations"]})


def test_sixteen_workers_learn_what_a_plain_loop_learns_over_200_rounds(tmp_path):
    config = small_config(
        data={"name": "digits", "samples": 120, "test_samples": 280},
        federation={"workers": 16, "batch_size": 20, "rounds": 200},
        training={"optimizer": "adam", "lr": 0.005},
        transcript=False,
    )
    data = load_data(config)
    run_federation(config, data, tmp_path)
    found = train_of(tmp_path)

    def cut(x: torch.Tensor) -> list[torch.Tensor]:
        return [x[:, :, top : top + 2, left : left + 2] for top in range(0, 8, 2) for left in range(0, 8, 2)]

    model = whole_model(config.model, [(1, 2, 2)] * 16, 10, config.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    losses = []
    for rows in batches("epochs", 120, 20, 200, seed=config.seed):
        optimizer.zero_grad()
        loss = cross_entropy(model(cut(data.x[rows])), data.y[rows])
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    with torch.no_grad():
        right = int((model(cut(data.x_test)).argmax(1) == data.y_test).sum())
    assert losses[-1] < 0.3 * losses[0]
    assert found["losses"] == pytest.approx(losses, rel=1e-4)
    assert found["test_accuracy"] == pytest.approx(right / 280, abs=1 / 280)  # one sample may lie on the border


def test_rounds_at_rate_0_send_no_parameters(tmp_path):
    training = {"lr": 0.1, "momentum": 0.9, "schedule": {"frozen_epochs": 2}, "evaluate_every": 2}
    seen = run_in_processes(small_config(training=training, federation={"rounds": 8}), tmp_path / "late")
    assert [one.version for one in seen] == [1, 1, 1, 1, 1, 1, 1, 2]  # an epoch is three rounds
    sizes = {}
    for lr in (0.0, 0.1):  # six rounds, all of them at rate 0
        run_in_processes(small_config(training={**training, "lr": lr}, federation={"rounds": 6}), tmp_path / str(lr))
        sizes[lr] = json.loads((tmp_path / str(lr) / "summary.json").read_text())["bytes"]["raw"]
    assert sizes[0.0] == sizes[0.1]


def test_frozen_rounds_in_flight_and_evaluations_do_not_mix(tmp_path):
    config = small_config(training={"evaluate_every": 1}, data={"name": "digits", "samples": 24, "test_samples": 290})
    seen = run_in_processes(config, tmp_path)
    assert [one.round for one in seen] == [1, 2, 3, 4]
    evaluations = train_of(tmp_path)["evaluations"]
    assert [one["round"] for one in evaluations] == [1, 2, 3, 4]
    assert len({(one["loss"], one["accuracy"]) for one in evaluations}) == 1


COUNTING = """
from attacker.interface import AttackPlugin, Recovery
from vfl.errors import UserError

class Counting(AttackPlugin):
    needs: int
    def start(self, setting):
        self.__dict__["seen"] = []
        return self
    def observe(self, observation):
        self.seen.append(observation.round)
    def recover(self, progress):
        if len(self.seen) < self.needs:
            raise UserError("more rounds, please")
        return Recovery(used=("indices",), notes=(f"saw rounds 1 to {self.seen[-1]}",))
"""

STOPPING = [
    "training={lr: 0.01, schedule: {frozen_epochs: 1}, evaluate_every: 5, early_stop: {patience: 2, min_delta: 9}}",
    "federation.epochs=20",
]


@pytest.mark.parametrize(
    ("needs", "note"),
    [
        (1, "saw rounds 1 to 25"),
        pytest.param(50, "too few rounds: more rounds, please", marks=pytest.mark.slow),
    ],
)
def test_an_early_stop_is_a_success_and_the_attack_works_on_the_rounds_so_far(config, tmp_path, needs, note):
    (tmp_path / "counting.py").write_text(COUNTING)
    changes = [*STOPPING, f"attack={{name: 'counting:Counting', needs: {needs}}}"]
    done = cafe("run", config, "--out", "out", *(f"--set={change}" for change in changes), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the test loss did not improve in the last 2 evaluations" in done.stdout
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["ended"], summary["rounds"], summary["train"]["stopped_early"]) == ("complete", 25, True)
    # Two evaluations before the first step, the first one after it, and two that are no better by 9.
    assert [one["round"] for one in summary["train"]["evaluations"]] == [5, 10, 15, 20, 25]
    assert note in summary["attack"]["notes"][0]
    assert (tmp_path / "out" / "model.pt").exists()


def test_evaluations_need_test_samples(tmp_path):
    config = small_config(data={"name": "digits", "samples": 24, "test_samples": 0}, training={"evaluate_every": 2})
    with pytest.raises(UserError, match=r"training\.evaluate_every: there are no test samples"):
        run_federation(config, load_data(config), tmp_path)


def test_the_model_in_the_docs_loads_as_they_say(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "training.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    config = small_config(training={"lr": 0.1}, model={"name": "strided_cnn"})
    run_federation(config, load_data(config), tmp_path / "runs" / "digits")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks:
        exec(code, names)
    assert float(names["accuracy"]) == pytest.approx(train_of(tmp_path / "runs" / "digits")["test_accuracy"])
