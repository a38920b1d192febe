"""The `cafe` command as a person uses it: real processes, exit codes, words, and what is in the folder."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.integration.command_support import cafe, nothing_left, ours, start, wait_for
from tests.support import assert_same
from vfl.cli import main
from vfl.folder.transcript import Transcript


def test_run_scores_the_attack_and_writes_the_folder(config, tmp_path):
    out = tmp_path / "out"
    done = cafe("run", config, "--out", out, "--set", "transcript=true", "--set", "snapshots=40")
    assert done.returncode == 0, done.stderr
    assert "rebuilt 60 of 60 images" in done.stdout
    assert str(out) in done.stdout.replace("\n", "")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["workers"] == 4
    assert summary["samples"] == 60
    assert summary["rounds"] == 80
    assert set(summary["seconds"]) == {"total", "federation", "attack"}
    assert summary["bytes"]["up"] > 0 < summary["bytes"]["peer"]
    assert summary["attack"]["used"] == ["indices", "parameters", "gradients"]
    assert summary["attack"]["psnr_min"] > 60 > summary["attack"]["psnr_baseline"]
    (snapshot,) = summary["attack"]["over_rounds"]  # after 40 rounds the samples are not determined yet
    assert (snapshot["round"], snapshot["psnr_mean"]) == (80, summary["attack"]["psnr_mean"])
    assert 0 <= summary["train"]["test_accuracy"] <= 1
    arrays = np.load(out / "recovered.npz")
    assert arrays["x"].shape == arrays["x_true"].shape == (60, 1, 8, 8)
    assert np.abs(arrays["x"] - arrays["x_true"]).max() < 1e-3
    assert (out / "recovered.png").stat().st_size > 0
    assert list((out / "events").iterdir())

    again = cafe("attack", out / "transcript", "--out", tmp_path / "offline")
    assert again.returncode == 0, again.stderr
    offline = json.loads((tmp_path / "offline" / "summary.json").read_text())
    assert offline["attack"]["psnr_min"] == summary["attack"]["psnr_min"]


def test_a_coordinator_that_cannot_start_leaves_the_folder_alone(config, tmp_path):
    (tmp_path / "summary.json").write_text("mine")
    assert cafe("serve", config, "--listen", "203.0.113.7:1", "--insecure", "--out", tmp_path).returncode == 2
    assert (tmp_path / "summary.json").read_text() == "mine"


@pytest.mark.slow
def test_slices_cut_beforehand_will_do(config, tmp_path):
    config.write_text(config.read_text().replace("workers: 4", "workers: 2"))
    made = cafe("slice", config, "--out", tmp_path / "slices").stdout.split()
    assert [Path(path).name for path in made] == [f"worker-{m}.safetensors" for m in range(2)]
    changes = ["--set", "data={name: npz, path: nowhere.npz}", "--set", "attack.name=none"]
    serve = start("serve", config, "--listen", "127.0.0.1:0", "--out", tmp_path / "o", *changes, tag="slices")
    address = re.search(r"listening on (\S+),", serve.stderr.readline()).group(1)
    workers = [
        start("work", config, "--id", m, "--coordinator", address, "--data", made[m], *changes, tag="slices")
        for m in range(2)
    ]
    for process in (serve, *workers):
        _, words = process.communicate(timeout=500)
        assert process.returncode == 0, words


def test_a_worker_with_another_model_says_so(config, tmp_path):
    changes = ["--set", "federation.workers=2", "--set", "attack.name=none"]
    serve = start("serve", config, "--listen", "127.0.0.1:0", "--out", tmp_path / "o", *changes, tag="model")
    address = re.search(r"listening on (\S+),", serve.stderr.readline()).group(1)
    worker = start("work", config, "--id", 0, "--coordinator", address, *changes, tag="model")
    other = cafe("work", config, "--id", 1, "--coordinator", address, *changes, "--set", "model.hidden=[17]")
    assert other.returncode == 1
    assert "is the config's model section the same on both?" in other.stderr
    assert "Traceback" not in other.stderr
    for process in (serve, worker):
        _, words = process.communicate(timeout=500)
        assert process.returncode == 1
        assert "worker 1: the coordinator's bottom.1.weight has shape (16, 32)" in words


def by_hand(config, folder, order, tag):
    """`cafe serve` and `cafe work` in separate processes, the workers started in a given order."""
    serve = start(
        "serve", config, "--listen", "127.0.0.1:0", "--out", folder, "--referee", "--set", "transcript=true", tag=tag
    )
    line = serve.stderr.readline()
    address = re.search(r"listening on (\S+),", line).group(1)
    workers = []
    for worker in order:
        workers.append(start("work", config, "--id", worker, "--coordinator", address, "--threads", 1, tag=tag))
        time.sleep(0.3)
    (words, errors), *others = [process.communicate(timeout=500) for process in (serve, *workers)]
    assert [process.returncode for process in (serve, *workers)] == [0] * (1 + len(workers)), (errors, others)
    return words, list(Transcript(folder / "transcript"))


@pytest.mark.slow
def test_by_hand_in_any_order_gives_the_same_numbers(config, tmp_path):
    config.write_text(config.read_text().replace("workers: 4", "workers: 3"))
    words, found = by_hand(config, tmp_path / "a", [2, 1, 0], f"hand-{os.getpid()}")
    assert "rebuilt 60 of 60 images" in words
    done = cafe("run", config, "--out", tmp_path / "b", "--set", "transcript=true", "--quiet")
    assert done.returncode == 0, done.stderr
    assert_same(found, list(Transcript(tmp_path / "b" / "transcript")))


@pytest.mark.slow
def test_a_worker_with_other_samples_is_told_so_and_the_right_one_may_follow(config, tmp_path):
    tag = f"digest-{os.getpid()}"
    changes = ["--set", "federation.workers=2", "--set", "attack.name=none"]
    serve = start("serve", config, "--listen", "127.0.0.1:0", "--out", tmp_path / "o", *changes, tag=tag)
    address = re.search(r"listening on (\S+),", serve.stderr.readline()).group(1)
    first = start("work", config, "--id", 0, "--coordinator", address, *changes, tag=tag)
    wait_for(
        lambda: any(
            c.status == psutil.CONN_ESTABLISHED for p in ours(tag) if p.pid == first.pid for c in p.net_connections()
        )
    )
    time.sleep(1)
    wrong = cafe("work", config, "--id", 1, "--coordinator", address, *changes, "--set", "data.samples=50")
    assert wrong.returncode == 1
    assert "refused worker 1: worker 1 holds 50 samples" in wrong.stderr
    right = cafe("work", config, "--id", 1, "--coordinator", address, *changes)
    assert right.returncode == 0, right.stderr
    for process in (serve, first):
        process.communicate(timeout=500)
        assert process.returncode == 0
    assert nothing_left(tag)


def test_nobody_at_the_coordinators_address(config):
    done = cafe("work", config, "--id", 0, "--coordinator", "127.0.0.1:9", "--set", "federation.join_timeout=1")
    assert done.returncode == 1
    assert "no coordinator answers at 127.0.0.1:9" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["run", "CONFIG", "--set", "federation.wrkers=3"], "federation.wrkers: there is no such key"),
        (["run", "CONFIG", "--set", "attack.name=magic"], "there is no attack called 'magic'"),
        (["run", "CONFIG", "--set", "model.hiden=3"], "model.hiden: there is no such key"),
        (["run", "CONFIG", "--set", "defence.name=wall"], "there is no defence called 'wall'"),
        (["run", "CONFIG", "--set", "federation.epochs=2"], "needs 7 epochs"),
        (["run", "CONFIG", "--set", "training.lr=0.1"], "needs frozen parameters"),
        (["run", "CONFIG", "--set", "federation.batch_size=61"], "61 is more than the 60 samples"),
        (["run", "CONFIG", "--set", "federation.workers=17"], "cannot be divided among 17 workers"),
        (
            ["run", "CONFIG", "--set", "model={name: cafe_cnn}", "--set", "data.name=breast_cancer"],
            "use mlp for tables",
        ),
        (["run", "CONFIG", "--out", "/proc/nothing"], "--out /proc/nothing"),
        (["run"], "Missing argument 'FILE'"),
        (["run", "CONFIG", "--set", "training.lr=.inf"], "training.lr"),
        (["run", "CONFIG", "--set", "device=banana"], "device: 'banana' is not to be had here"),
        (["run", "CONFIG", "--set", "attack.name=vfl.models.mlp:MLP"], "is not a plug-in class"),
        (
            ["work", "CONFIG", "--id", "0", "--coordinator", "127.0.0.1:1", "--listen", "0.0.0.0:0", "--insecure"],
            "--advertise",
        ),
        (["work", "CONFIG", "--id", "9", "--coordinator", "127.0.0.1:1"], "workers of this federation are 0 to 3"),
        (["work", "CONFIG", "--id", "0", "--coordinator", "here"], "expected HOST:PORT"),
        (["attack", "nowhere"], "nowhere is not a transcript"),
        (["export", "nowhere"], "nowhere is not a run's folder"),
        (["export", "nowhere", "--to", "tea"], "--to tea: choose csv or mlflow"),
        (["list", "models", "--for", "CONFIG"], "cafe list attacks --for FILE"),
        (["list", "birds"], "choose one of attacks, defences, datasets, models"),
        (["bench", "tea"], "choose one of all, federation, training, attack, matching"),
        (["brew"], "No such command 'brew'"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(config, arguments, words, tmp_path, monkeypatch, capfd):
    # In this process, as importing torch again for each sentence would take minutes
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["cafe", *(str(config) if a == "CONFIG" else a for a in arguments)])
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGINT, handler)
    said = capfd.readouterr().err
    assert ended.value.code == 2, said
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "CONFIG", "--set", "attack.name=magic"], "there is no attack called 'magic'"),
        (["serve", "CONFIG", "--listen", "203.0.113.7:1", "--insecure"], "cannot be bound"),
    ],
)
def test_bad_input_ends_a_process_the_same_way(config, arguments, words):
    done = cafe(*[str(config) if a == "CONFIG" else a for a in arguments])
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("attacks", ["least_squares", "none"]),
        ("defences", ["none"]),
        ("datasets", ["breast_cancer", "cifar10", "digits", "mnist", "npz", "photos"]),
        ("models", ["cafe_cnn", "mlp"]),
    ],
)
def test_list_shows_what_a_config_can_name(kind, names):
    listed = cafe("list", kind).stdout
    assert set(names) <= {line.split()[0] for line in listed.splitlines() if not line.startswith(" ")}


def test_list_says_which_attacks_can_run_on_a_config_and_what_the_others_need(config):
    trained = cafe(
        "list", "attacks", "--for", config, "--set", "training.lr=0.1", "--set", "attack={name: dlg, rounds: 1}"
    )
    lines = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in trained.stdout.splitlines()}
    assert lines["least_squares"] == "cannot run: it needs frozen parameters, and in this run they move"
    assert lines["dlg"] == "can run"
    assert trained.stdout.endswith("that an attack cannot run says nothing about safety\n")
    apart = cafe("list", "attacks", "--for", config, "--set", "attack={name: dlg, disaggregate: true}").stdout
    assert re.search("^dlg +can run$", apart, re.MULTILINE)
    few = ["--set", "attack={name: dlg, disaggregate: true}", "--set", "federation.epochs=1"]
    assert re.search(
        "^dlg +cannot run: it needs 7 epochs", cafe("list", "attacks", "--for", config, *few).stdout, re.MULTILINE
    )
