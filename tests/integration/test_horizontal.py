"""A horizontal federation in real processes: plain PyTorch's gradients and steps, and what the attacks make of it."""

import json
import re

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.integration.command_support import cafe, start
from tests.integration.federation_support import Federation, assert_same_numbers
from tests.support import assert_close, assert_same, run_in_processes, small_config
from tests.vfl.report.made import Page
from vfl.config import load_config
from vfl.datasets.slices import load_data
from vfl.doctor.findings import Level
from vfl.doctor.main import examine_setup
from vfl.doctor.party import Setup
from vfl.folder.schema import as_json
from vfl.folder.transcript import Transcript
from vfl.local.launch import run_federation
from vfl.models.whole import state_dict, whole_model
from vfl.net.certs import make_certificates
from vfl.observation import ModelTensors
from vfl.referee import score_run
from vfl.report.main import write_report
from vfl.topology import even_runs
from vfl.ui.watch import Watch


def horizontal(**changes):
    """Three workers with eight of 24 digits each, unless changed."""
    federation = {"kind": "horizontal", "workers": 3, "batch_size": 3, **changes.pop("federation", {})}
    return small_config(federation=federation, **changes)


class Plain:
    """The same model in plain PyTorch, which knows of no workers."""

    def __init__(self, config, data):
        self.model = whole_model(config.model, [data.sample_shape], data.classes, config.seed)
        self.data = data

    def loss(self, indices):
        return cross_entropy(self.model([self.data.x[indices]]), self.data.y[indices])

    def gradients(self, indices):
        named = dict(self.model.named_parameters())
        gradients = dict(zip(named, torch.autograd.grad(self.loss(indices), list(named.values())), strict=True))
        bottom = {n.removeprefix("bottoms.0."): g for n, g in gradients.items() if n.startswith("bottoms.0.")}
        return ModelTensors(
            (bottom,), {n.removeprefix("top."): g for n, g in gradients.items() if n.startswith("top.")}
        )


SGD = {"lr": 0.1, "momentum": 0.9}
ADAM = {"optimizer": "adam", "lr": 0.01, "clip_norm": 0.5}


@pytest.mark.parametrize("training", [SGD, pytest.param(ADAM, marks=pytest.mark.slow)], ids=["sgd", "adam"])
def test_training_is_that_of_a_plain_loop_on_all_batches_together(training, tmp_path):
    config = horizontal(data={"name": "digits", "samples": 25, "test_samples": 11}, training=training,
                        federation={"rounds": 9})  # fmt: skip
    seen = run_in_processes(config, tmp_path)
    data = load_data(config)
    plain = Plain(config, data)
    parameters = list(plain.model.parameters())
    kind = torch.optim.Adam if training.get("optimizer") else torch.optim.SGD
    optimizer = kind(parameters, lr=training["lr"], **({} if kind is torch.optim.Adam else {"momentum": 0.9}))
    runs = even_runs(25, 3)
    losses, sizes = [], set()
    for found in seen:
        named = dict(plain.model.named_parameters())
        ours = state_dict(found.parameters)
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, named[name].detach(), rtol=1e-4, atol=1e-6)
        for run, upload in zip(runs, found.uploads, strict=True):
            own = found.indices[(found.indices >= run.start) & (found.indices < run.stop)]
            sizes.add(len(own))
            assert_close(upload, plain.gradients(own), tolerance=1e-4)
        assert_close(found.gradients, plain.gradients(found.indices), tolerance=1e-4)
        optimizer.zero_grad()
        loss = plain.loss(found.indices)
        losses.append(float(loss.detach()))
        loss.backward()
        if "clip_norm" in training:
            torch.nn.utils.clip_grad_norm_(parameters, training["clip_norm"])
        optimizer.step()
    assert len(sizes) > 1  # an average that forgets the weights would not pass
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["train"]["losses"] == pytest.approx(losses, rel=1e-4)
    with torch.no_grad():
        logits = plain.model([data.x_test])
    right = float((logits.argmax(1) == data.y_test).float().mean())
    assert summary["train"]["test_accuracy"] == pytest.approx(right)
    assert summary["train"]["test_loss"] == pytest.approx(float(cross_entropy(logits, data.y_test)), rel=1e-4)
    assert (summary["workers"], summary["samples"], summary["batch_size"]) == (3, 25, 3)
    assert summary["bytes"]["peer"] == 0
    assert summary["bytes"]["raw"] <= summary["bytes"]["up"] + summary["bytes"]["down"]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A run that `exact` rebuilds, and its folder."""
    out = tmp_path_factory.mktemp("attacked")
    config = horizontal(federation={"epochs": 4, "rounds": None, "batch_size": 4}, attack={"name": "exact"})
    data = load_data(config)
    run_federation(config, data, out)
    score_run(out, config, data)
    return config, data, out


def test_exact_rebuilds_every_workers_samples_and_labels(attacked):
    _, data, out = attacked
    attack = json.loads((out / "summary.json").read_text())["attack"]
    assert attack["psnr_min"] > 60
    assert attack["label_accuracy"] == 1
    assert attack["certified"] == 24
    with np.load(out / "recovered.npz") as file:
        assert file["certificates"].shape == (24, 1)
        np.testing.assert_allclose(file["x"], data.x.numpy(), atol=1e-3)


def test_a_transcript_has_each_workers_uploads_and_is_attacked_offline(attacked, tmp_path):
    from attacker.driver.offline import attack_transcript

    config, _, out = attacked
    recorded = Transcript(out / "transcript")
    assert recorded.setting.topology.shares == (8, 8, 8)
    assert all(len(observation.uploads) == 3 for observation in recorded)
    attack_transcript(recorded, config, tmp_path)
    with np.load(out / "recovered.npz") as live, np.load(tmp_path / "recovered.npz") as offline:
        np.testing.assert_allclose(offline["x"], live["x"], atol=1e-5)


def test_report_and_live_page_know_no_slices_and_no_label_holder(attacked):
    _, _, out = attacked
    page = Page(write_report(out).read_text(encoding="utf-8"))
    assert "3 workers (horizontal)" in page.text
    for first in (0, 8, 16):
        assert f"samples {first} to {first + 7}" in page.text
    assert not any(words in page.text for words in ("rows 0 to", "part of the image", "label holder"))
    watch = Watch(out)
    watch.refresh()
    run = json.loads(watch.text)
    assert run["run"]["label_holder"] is None
    assert len(run["workers"]) == 3


def test_exact_follows_samples_while_the_model_learns(tmp_path):
    config = horizontal(
        federation={"epochs": 6, "rounds": None, "batch_size": 4}, attack={"name": "exact"}, training={"lr": 0.05},
    )  # fmt: skip
    data = load_data(config)
    run_federation(config, data, tmp_path)
    attack = as_json(score_run(tmp_path, config, data).attack)
    assert attack["share_30db"] > 0.8


def test_cafe_gets_closer_than_a_guess(tmp_path):
    config = horizontal(
        data={"name": "digits", "samples": 12, "test_samples": 0},
        federation={"workers": 2, "batch_size": 3, "rounds": 300, "schedule": "uniform"},
        attack={
            "name": "cafe", "loop": "single", "optimiser_one": "scaled_sgd", "lr_one": 1.0,
            "optimiser_two": "scaled_sgd", "lr_two": 1.0, "lr_three": 0.1, "alpha": 0, "xi": 25,
        },
        transcript=False,
    )  # fmt: skip
    data = load_data(config)
    run_federation(config, data, tmp_path)
    attack = as_json(score_run(tmp_path, config, data).attack)
    assert attack["psnr_mean"] > attack["psnr_baseline"] + 3


@pytest.mark.slow
def test_workers_that_withhold_are_left_out_of_the_average(tmp_path):
    config = horizontal(
        federation={"rounds": 6, "when_withheld": "continue"},
        defence={"workers": {1: {"name": "breaker"}}},
        training={"lr": 0.1},
    )
    seen = run_in_processes(config, tmp_path)
    assert not all(found.complete for found in seen)
    data = load_data(config)
    plain = Plain(config, data)
    for found in seen:
        plain.model.load_state_dict(state_dict(found.parameters))
        gave = [worker for worker, upload in enumerate(found.uploads) if upload.top]
        runs = [range(8 * worker, 8 * worker + 8) for worker in gave]
        of_those = torch.tensor([i for i in found.indices.tolist() if any(i in run for run in runs)])
        assert_close(found.gradients, plain.gradients(of_those), tolerance=1e-4)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_rounds(tmp_path):
    config = horizontal(training={"lr": 0.1})
    assert_same(*(run_in_processes(config, tmp_path / name) for name in ("a", "b")))


CONFIG = """
seed: 3
data: {name: digits, samples: 90, test_samples: 20}
federation: {kind: horizontal, workers: 2, batch_size: 10, rounds: 80, rejoin_timeout: 60, round_timeout: 60,
  checkpoint_every: 20}
model: {name: mlp, hidden: [16]}
training: {optimizer: adam, lr: 0.001, evaluate_every: 40}
transcript: true
"""


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_coordinator_change_no_number(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG)
    done = cafe("run", config, "--out", tmp_path / "undisturbed", "--quiet")
    assert done.returncode == 0, done.stderr
    sliced = cafe("slice", config, "--out", tmp_path / "slices")
    assert sliced.returncode == 0, sliced.stderr
    federation = Federation(config, tmp_path / "out")
    try:
        files = [("--data", tmp_path / "slices" / f"worker-{worker}.safetensors") for worker in (0, 1)]
        workers = [federation.worker(worker, *files[worker]) for worker in (0, 1)]
        federation.reaches(5)
        workers[1].kill()
        federation.worker(1, *files[1])
        federation.reaches(22)
        federation.server.kill()
        federation.server.wait(30)
        federation.serve("--resume")
        federation.finished()
    finally:
        federation.close()
    summary = assert_same_numbers(federation.out, tmp_path / "undisturbed")
    assert len(summary["disturbances"]) == 2
    assert len(summary["train"]["evaluations"]) == 2


def test_the_doctor_finds_all_well_over_tls_without_a_label_holder(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG)
    make_certificates(tmp_path / "certs", 2)
    (tmp_path / "certs" / "ca.key").unlink()
    tls = ("--tls", tmp_path / "certs")
    coordinator = start("doctor", config, "--wait", "--listen", "127.0.0.1:0", *tls, tag="doctor")
    address = re.search(r"listening on (\S+),", coordinator.stderr.readline()).group(1)
    for worker in (1, 0):
        setup = Setup(load_config(config), "127.0.0.1:0", worker, address, tls=tmp_path / "certs", wait=True)
        lines = [line for sheet in examine_setup(setup) for line in sheet.lines]
        assert lines
        assert all(line.level == Level.OK for line in lines), lines
    said, words = coordinator.communicate(timeout=150)
    assert coordinator.returncode == 0, said + words
    assert "each with its own samples and their labels" in said
