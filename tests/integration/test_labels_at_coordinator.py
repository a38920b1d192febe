"""Labels at the coordinator in real processes: the numbers of a label holder without features, and what fails aloud."""

import json
import re
import socket

import psutil
import pytest

from tests.integration.command_support import cafe, nothing_left, start, wait_for
from tests.support import assert_same, run_in_processes, small_config
from vfl.config import parse_config
from vfl.datasets.slices import WorkerData, load_data
from vfl.errors import UserError
from vfl.folder.transcript import Transcript
from vfl.net.certs import make_certificates
from vfl.net.tls import worker_role

CONFIG = """
seed: 3
data: {name: digits, samples: 24, test_samples: 30}
federation: {workers: 2, batch_size: 8, rounds: 4, label_holder: coordinator, rejoin_timeout: 30}
model: {name: mlp, hidden: [12]}
training: {lr: 0.1}
transcript: true
"""


def of(label_holder, workers, features=True, **changes):
    federation = {"workers": workers, "label_holder": label_holder, "label_holder_features": features}
    return small_config(federation=federation, training={"lr": 0.1}, **changes)


@pytest.fixture(scope="module")
def with_a_worker(tmp_path_factory):
    """The same federation, with a third worker that has the labels and nothing else."""
    out = tmp_path_factory.mktemp("worker")
    return out, run_in_processes(of(2, 3, features=False), out)


def test_losses_and_gradients_are_bit_by_bit_those_of_a_label_holder_without_features(with_a_worker, tmp_path):
    config = of("coordinator", 2)
    seen = run_in_processes(config, tmp_path)
    assert_same(seen, with_a_worker[1])
    summary, expected = (json.loads((out / "summary.json").read_text()) for out in (tmp_path, with_a_worker[0]))
    assert summary["train"] == expected["train"]
    assert summary["train"]["test_accuracy"] is not None
    assert (summary["workers"], expected["workers"]) == (2, 3)
    assert len(summary["defence"]) == 2
    assert summary["config"]["federation"]["label_holder"] == "coordinator"


def test_an_attack_knows_the_labels_live_and_in_the_transcript(tmp_path):
    config = small_config(
        federation={"workers": 2, "label_holder": "coordinator", "rounds": 21}, attack={"name": "exact"}
    )
    data = load_data(config)
    run_in_processes(config, tmp_path)
    attack = json.loads((tmp_path / "summary.json").read_text())["attack"]
    assert "labels" in attack["used"]
    assert attack["ledger"]["labels"] is True
    assert Transcript(tmp_path / "transcript").setting.labels == tuple(data.y.tolist())
    done = cafe("attack", tmp_path / "transcript", "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    again = json.loads((tmp_path / "again" / "summary.json").read_text())["attack"]
    assert again["ledger"]["labels"] is True
    assert again["psnr_mean"] > 60
    assert "The coordinator has the labels itself" in " ".join(again["notes"])


def test_by_hand_with_certificates_and_a_file_of_labels(with_a_worker, tmp_path):
    file, out, certs = tmp_path / "run.yaml", tmp_path / "out", tmp_path / "certs"
    file.write_text(CONFIG)
    assert cafe("slice", file, "--out", tmp_path).returncode == 0
    held = WorkerData.load(tmp_path / "labels.safetensors")
    assert held.box.empty
    assert held.y is not None
    assert WorkerData.load(tmp_path / "worker-1.safetensors").y is None
    assert cafe("certs", certs, "--workers", 2, "--label-name", "localhost").returncode == 0
    command = ("serve", file, "--listen", "0.0.0.0:0", "--out", out, "--tls", certs)
    server = start(*command, "--labels", tmp_path / "labels.safetensors", tag=str(tmp_path))
    address = f"localhost:{listening(server)}"
    workers = [
        start(
            "work", file, "--id", m, "--coordinator", address, "--tls", certs, "--threads", 1,
            "--data", tmp_path / f"worker-{m}.safetensors", tag=str(tmp_path),
        )
        for m in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=200)[1] for process in (server, *workers)]
    assert [process.returncode for process in (server, *workers)] == [0, 0, 0], said
    assert_same(list(Transcript(out / "transcript")), with_a_worker[1])
    assert nothing_left(str(tmp_path))


def test_a_label_holder_that_is_killed_is_started_again(with_a_worker, tmp_path):
    file, out = tmp_path / "run.yaml", tmp_path / "out"
    file.write_text(CONFIG)
    server = start("serve", file, "--listen", "127.0.0.1:0", "--out", out, tag=str(tmp_path))
    address = f"127.0.0.1:{listening(server)}"
    (out / "journal.jsonl").touch()
    wait_for(lambda: '"joined"' in (out / "journal.jsonl").read_text())

    def listens(process):
        return any(one.status == psutil.CONN_LISTEN for one in process.net_connections("tcp"))

    (label_holder,) = filter(listens, psutil.Process(server.pid).children(recursive=True))
    label_holder.kill()
    where = ("--coordinator", address, "--threads", 1)
    workers = [start("work", file, "--id", m, *where, tag=str(tmp_path)) for m in range(2)]
    said = [process.communicate(timeout=200)[1] for process in (server, *workers)]
    assert [process.returncode for process in (server, *workers)] == [0, 0, 0], said
    assert_same(list(Transcript(out / "transcript")), with_a_worker[1])
    assert nothing_left(str(tmp_path))


def test_a_label_holder_that_cannot_listen_ends_the_run_with_its_own_words(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = cafe(
            "serve", tmp_path / "run.yaml", "--listen", "127.0.0.1:0", "--out", tmp_path, "--label-listen", where
        )
    assert done.returncode == 2, done.stderr
    assert re.search(r"cafe: the coordinator's label holder: .*cannot", done.stderr), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--label-listen", "0.0.0.0:0", "--insecure"], "say with --label-advertise HOST:PORT how workers reach it"),
        pytest.param(
            ["--label-listen", "192.0.2.1:0"],
            "--label-listen 192.0.2.1:0: without --tls DIR only this machine's own",
            marks=pytest.mark.slow,
        ),
        (["--labels", "worker-0.safetensors"], "holds no labels; `cafe slice` writes labels.safetensors"),
        pytest.param(
            ["--labels", "nothing.safetensors"], "there is no slice file nothing.safetensors", marks=pytest.mark.slow
        ),
        pytest.param(["--tls", "certs"], "certs/worker-2.pem cannot be read", marks=pytest.mark.slow),
        (
            ["--set", "federation.label_holder=1", "--label-listen", "127.0.0.1:0"],
            "--label-listen 127.0.0.1:0: belongs to federation.label_holder: coordinator, and here worker 1 has",
        ),
    ],
)
def test_what_serve_cannot_do_with_labels_is_a_sentence(arguments, sentence, tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    assert cafe("slice", "run.yaml", "--out", ".", cwd=tmp_path).returncode == 0
    make_certificates(tmp_path / "certs", 2)
    done = cafe("serve", "run.yaml", "--listen", "127.0.0.1:0", "--out", "out", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr


def test_nobody_joins_as_the_coordinators_label_holder(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    done = cafe("work", tmp_path / "run.yaml", "--id", 2, "--coordinator", "127.0.0.1:1")
    assert done.returncode == 2
    assert "--id 2: the workers of this federation are 0 to 1" in done.stderr


def test_a_doctor_says_what_only_the_run_shows(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    assert cafe("certs", tmp_path / "certs", "--workers", 2, "--label-name", "localhost").returncode == 0
    done = cafe(
        "doctor", tmp_path / "run.yaml", "--listen", "127.0.0.1:0", "--tls", tmp_path / "certs", "--out", tmp_path
    )
    assert "the coordinator has the labels" in done.stdout
    assert f"is that of {worker_role(2)}" in done.stdout
    assert "are looked at by `cafe serve`" in done.stdout
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"federation": {"label_holder": "server"}}, "label_holder is 'server', expected a worker's number, or coord"),
        ({"federation": {"label_holder_features": False}}, "the coordinator has no features in any case"),
        ({"federation": {"slices": ["0:1"]}}, "slices lists 1 slices for 2 workers with features"),
        ({"defence": {"name": "indices"}}, "with label_holder: coordinator it must know them to find their labels"),
        ({"defence": {"workers": {2: {"name": "clip"}}}}, "names worker 2, but the workers are 0 to 1"),
    ],
)
def test_what_does_not_go_with_labels_at_the_coordinator(changes, sentence):
    federation = {"workers": 2, "batch_size": 4, "epochs": 1, "label_holder": "coordinator"}
    tree = {"data": {"name": "digits"}, **changes, "federation": federation | changes.get("federation", {})}
    with pytest.raises(UserError, match=re.escape(sentence)):
        parse_config(tree, "the test")


def test_tables_of_the_workers_own_are_not_aligned_with_labels_of_the_coordinator(tmp_path):
    (tmp_path / "run.yaml").write_text(
        CONFIG.replace("{name: digits, samples: 24, test_samples: 30}", "{name: csv, path: a.csv, label: y, id: id}")
    )
    (tmp_path / "a.csv").write_text("id,a,y\n1,2,0\n2,3,1\n")
    done = cafe("work", tmp_path / "run.yaml", "--id", 0, "--coordinator", "127.0.0.1:1", "--data", tmp_path / "a.csv")
    assert done.returncode == 2
    assert "give the labels to a worker, or cut slices from one table" in done.stderr


def listening(server):
    """Return the port that a coordinator says it listens on."""
    while line := server.stderr.readline():
        if found := re.search(r"listening on \S+:(\d+),", line):
            return found.group(1)
    raise AssertionError("it ended")
