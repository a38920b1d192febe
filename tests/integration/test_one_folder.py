"""One folder, one run: a live run's folder is nobody else's, and what an earlier run left there is not lost unasked."""

import json
import re
import shutil
import signal
import uuid

import pytest

from tests.integration.command_support import cafe, long_run, nothing_left, start

CONFIG = """
data: {name: digits, samples: 40}
federation: {workers: 2, batch_size: 8, epochs: 2}
model: {name: mlp, hidden: [8]}
attack: {name: none}
transcript: true
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("one-folder") / "run.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def done(config):
    """The folder of a run that came to its end."""
    out = config.parent / "done"
    ran = cafe("run", config, "--out", out, "--quiet")
    assert ran.returncode == 0, ran.stderr
    return out


def files(folder):
    """All that a folder holds, byte by byte, but for the lock."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}


def test_a_second_start_in_a_live_runs_folder_is_refused_and_the_live_run_goes_on(config, tmp_path):
    out, tag = tmp_path / "runs" / config.stem, uuid.uuid4().hex  # the folder of this config, if none is named
    live = long_run(config, out, tag, cwd=tmp_path)
    named = ("--out", out)
    try:
        for line in (["run"], ["run", *named, "--resume"], ["serve", *named, "--listen", "127.0.0.1:0"]):
            refused = cafe(line[0], config, *line[1:], cwd=tmp_path)
            assert refused.returncode == 2, refused.stderr
            assert f"is in use: process {live.pid} " in refused.stderr
            assert "Traceback" not in refused.stderr
        assert (out / "transcript" / "round-0000001.safetensors").exists()
        assert live.poll() is None
        live.send_signal(signal.SIGINT)
        _, said = live.communicate(timeout=120)
        assert live.returncode == 130, said
        assert json.loads((out / "summary.json").read_text())["rounds"] >= 3
    finally:
        live.kill()
        live.wait()
    assert nothing_left(tag)


def test_after_kill_9_the_folder_is_free_but_what_can_be_resumed_is_not_thrown_away(config, tmp_path):
    out, tag = tmp_path / "out", uuid.uuid4().hex
    live = long_run(config, out, tag, cwd=tmp_path)
    live.kill()
    live.communicate()
    (out / "checkpoints").mkdir()
    (out / "checkpoints" / "checkpoint-0000020.safetensors").write_bytes(b"a day's training")
    refused = cafe("run", config, "--out", out)
    assert nothing_left(tag)
    assert refused.returncode == 2
    assert re.search(r"not finished \(round 20\): --resume goes on with it, --fresh throws it away", refused.stderr)
    assert (out / "transcript" / "round-0000003.safetensors").exists()
    fresh = cafe("run", config, "--out", out, "--fresh", "--quiet")
    assert fresh.returncode == 0, fresh.stderr
    assert json.loads((out / "summary.json").read_text())["rounds"] == 10
    assert not any((out / "checkpoints").iterdir())


def test_a_run_of_another_config_moves_what_was_there_and_says_so(config, done, tmp_path):
    out = tmp_path / "again"
    shutil.copytree(done, out)
    before, other = files(done), ("--set", "seed=9", "--set", "transcript=false")
    ran = cafe("run", config, "--out", out, *other)
    assert ran.returncode == 0, ran.stderr
    assert f"is now in {out / 'before-1'} (--fresh would" in " ".join(ran.stderr.split())
    assert {done / path.relative_to(out / "before-1"): text for path, text in files(out / "before-1").items()} == before
    assert json.loads((out / "summary.json").read_text())["seed"] == 9
    assert not list(out.glob("transcript/*"))

    attacked = cafe("attack", done / "transcript", "--out", out, "--quiet")
    assert attacked.returncode == 0, attacked.stderr
    assert json.loads((out / "before-2" / "summary.json").read_text())["seed"] == 9
    fresh = cafe("run", config, "--out", out, "--fresh", "--quiet")
    assert fresh.returncode == 0, fresh.stderr
    assert {path.name for path in out.glob("before-*")} == {"before-1", "before-2"}


def test_a_run_of_the_same_config_takes_the_place_of_the_one_before(config, done, tmp_path):
    out = tmp_path / "again"
    shutil.copytree(done, out)
    ran = cafe("run", config, "--out", out)
    assert ran.returncode == 0, ran.stderr
    assert "before" not in ran.stderr
    assert not list(out.glob("before-*"))
    rounds = [path for path in files(done) if path.suffix == ".safetensors"]
    assert rounds
    assert all(path.read_bytes() == (out / path.relative_to(done)).read_bytes() for path in rounds)


def test_an_attack_on_a_copy_of_a_run_does_not_take_the_place_of_its_transcript(done, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(done, out)
    attacked = cafe("attack", done / "transcript", "--out", out, "--quiet")
    assert attacked.returncode == 0, attacked.stderr
    assert len(list(out.glob("before-1/transcript/round-*"))) == 10


def test_a_run_that_is_refused_leaves_the_results_before_it(config, done):
    before = files(done)
    refused = cafe("run", config, "--out", done, "--set", "federation.batch_size=41")
    assert refused.returncode == 2, refused.stderr
    assert files(done) == before


def test_a_coordinator_whose_workers_never_come_leaves_the_results_before_it(config, done):
    before = files(done)
    soon = ("--set", "federation.join_timeout=2")
    alone = cafe("serve", config, *soon, "--out", done, "--listen", "127.0.0.1:0")
    assert alone.returncode == 1, alone.stderr
    assert "have not joined" in alone.stderr
    assert files(done) == before


def test_a_coordinator_whose_attack_is_refused_leaves_the_results_before_it(config, done):
    before, tag = files(done), uuid.uuid4().hex
    # `averaging` needs frozen parameters, which the coordinator sees when it has a setting
    moving = ("--set", "training.lr=0.1")
    attacked = ("--set", "attack.name=averaging", *moving)
    server = start("serve", config, "--out", done, "--listen", "127.0.0.1:0", *attacked, tag=tag)
    said = server.stderr.readline()
    address = re.search(r"listening on (\S+),", said).group(1)
    line = ("work", config, "--coordinator", address, *moving, "--threads", 1)
    workers = [start(*line, "--id", number, tag=tag) for number in range(2)]
    _, said = server.communicate(timeout=120)
    for worker in workers:
        worker.communicate(timeout=120)
    assert server.returncode == 2, said
    assert "averaging cannot run here" in said
    assert files(done) == before


def test_what_is_refused_leaves_no_folder_behind(config, done, tmp_path):
    recorded = tmp_path / "recorded"
    shutil.copytree(done / "transcript", recorded)
    last = recorded / "round-0000010.safetensors"
    last.write_bytes(b"damaged")
    for line in (
        ("attack", done / "transcript", "--attack", "no_such_attack"),
        ("attack", done / "transcript", "--attack", "least_squares"),  # which needs more rounds
        ("attack", done / "transcript", "--attack", "exact", "--set", "attack.no_such_option=1"),
        ("attack", recorded, "--attack", "theory"),
        ("run", config, "--set", "federation.batch_size=41"),
    ):
        refused = cafe(*line, "--out", tmp_path / "deep" / "down")
        assert refused.returncode == 2, refused.stderr
        assert refused.stderr.startswith("cafe: ") or "\ncafe: " in refused.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == ["recorded"], line
    (tmp_path / "mine").mkdir()  # the user's own folder stays
    assert cafe("attack", done / "transcript", "--attack", "least_squares", "--out", tmp_path / "mine").returncode == 2
    assert not list((tmp_path / "mine").iterdir())
