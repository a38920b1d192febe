"""The `cafe` command stopped, killed or hit by a bug: a sentence, what is done is kept, and nothing is left behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest

from tests.integration.command_support import cafe, long_run, nothing_left, ours, start, wait_for
from tests.integration.protocol_support import RawCoordinator, RawWorker
from vfl.folder.transcript import Transcript
from vfl.forkserver import warm_up


def test_ctrl_c_stops_everything_and_keeps_what_is_done(config, tmp_path):
    out = tmp_path / "out"
    process = long_run(config, out, tag := f"interrupt-{os.getpid()}")
    assert len(ours(tag)) >= 6
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=500)
    assert process.returncode == 130
    assert "stopped" in words
    assert "Traceback" not in words
    assert nothing_left(tag)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ended"] != "complete"
    assert summary["rounds"] >= 3
    assert len(list(Transcript(out / "transcript"))) >= 3
    assert (out / "model.pt").exists()


PLUGIN = """
import time
from pathlib import Path
from attacker.interface import AttackPlugin, Recovery

class Odd(AttackPlugin):
    where: str
    def start(self, setting):
        self.__dict__["seen"] = 0
        return self
    def observe(self, observation):
        if self.where == "observe" and observation.round == 3:
            raise KeyError("a bug")
    def recover(self, progress):
        Path("recovering").touch()
        if self.where == "recover":
            raise KeyError("a bug")
        time.sleep(60)
        return Recovery()
"""


def odd(config, where):
    (config.parent / "odd_attack.py").write_text(PLUGIN)
    return ["run", config, "--out", "out", "--set", f"attack={{name: 'odd_attack:Odd', where: {where}}}"]


@pytest.mark.parametrize("where", ["observe", "recover"])
@pytest.mark.slow
def test_a_bug_in_an_attack_does_not_lose_what_is_done(config, tmp_path, where):
    done = cafe(*odd(config, where), cwd=tmp_path)
    assert done.returncode == 1
    assert f"the attack plug-in odd_attack:Odd failed in {where}: KeyError: 'a bug' (odd_attack.py, line" in done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert "a bug" in summary["ended"]
    assert summary["rounds"] >= 3


@pytest.mark.slow
def test_ctrl_c_on_the_terminal_during_recovery_keeps_the_rounds(config, tmp_path):
    tag = f"recovery-{os.getpid()}"
    process = start(*odd(config, "nowhere"), tag=tag, cwd=tmp_path, start_new_session=True)
    wait_for(lambda: (tmp_path / "recovering").exists())
    os.killpg(process.pid, signal.SIGINT)  # a terminal signals the whole group
    _, words = process.communicate(timeout=500)
    assert process.returncode == 130
    assert "Traceback" not in words
    assert nothing_left(tag)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rounds"] == 80


def run_program(text: str, folder: Path) -> subprocess.CompletedProcess:
    """A Python program in a process of its own that finds the project."""
    (folder / "program.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(Path.cwd())])}
    command = [sys.executable, "-m", "program"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)


def test_ctrl_c_in_the_middle_of_an_import_ends_with_the_exit_code_of_ctrl_c(tmp_path):
    # Modules run `exec` as they are imported (dataclasses do); Python treats a Ctrl-C there in a way of its own.
    program = """
import os, signal
import vfl.cli.app
vfl.cli.app.app = lambda standalone_mode: exec("os.kill(os.getpid(), signal.SIGINT)")
vfl.cli.main()
"""
    done = run_program(program, tmp_path)
    assert (done.returncode, done.stderr) == (130, "cafe: stopped\n")


def test_ctrl_c_while_the_fork_server_starts_is_heard(monkeypatch):
    monkeypatch.setattr(forkserver, "ensure_running", lambda: os.kill(os.getpid(), signal.SIGINT))
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            warm_up()
    finally:
        signal.signal(signal.SIGINT, handler)


def test_ctrl_c_that_python_dropped_stops_the_run_all_the_same(config, tmp_path):
    program = f"""
import signal, sys, weakref
import vfl.cli, vfl.local.launch

class Loaded:
    pass

def drop(*_):
    signal.raise_signal(signal.SIGINT)

def check(*arguments):
    loaded = Loaded()
    watched = weakref.ref(loaded, drop)  # what is raised in a callback is printed and forgotten
    del loaded

vfl.local.launch.check = check
sys.argv = ["cafe", "run", {str(config)!r}, "--out", {str(tmp_path / "out")!r}, "--set", "federation.epochs=100000"]
vfl.cli.main()
"""
    done = run_program(program, tmp_path)
    assert done.returncode == 130, done.stderr
    assert "cafe: stopped" in done.stderr


@pytest.mark.parametrize("after", [0.1, 0.6, 1.2, 2.0])
def test_ctrl_c_while_everything_starts_ends_quietly(config, tmp_path, after):
    tag = f"early-{after}-{os.getpid()}"
    process = start(
        "run", config, "--out", tmp_path / "out", "--set", "federation.epochs=100000", tag=tag, start_new_session=True
    )
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    _, words = process.communicate(timeout=500)
    if process.returncode == 130:
        assert "Traceback" not in words
    else:  # Python itself was still starting, and ends as Python does: by the signal, or with 1 before `site` is done
        assert process.returncode == -signal.SIGINT or "init_import_site" in words, words
        assert not re.search(r'vfl/cli/app.py", line \d+, in run_command', words)
    assert nothing_left(tag)


@pytest.fixture
def temporary():
    """A folder for temporary files with a path that is short enough for sockets, which tmp_path's may not be."""
    with tempfile.TemporaryDirectory(prefix="cafe-test-") as folder:
        yield Path(folder)


def test_a_folder_of_temporary_files_with_too_long_a_path_is_named(config, tmp_path):
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    process = start("run", config, "--out", tmp_path / "out", tag="long", environment={"TMPDIR": str(folder)})
    _, words = process.communicate(timeout=500)
    assert process.returncode == 2
    assert words.startswith("cafe: TMPDIR") or "\ncafe: TMPDIR" in words
    assert "Traceback" not in words


def test_sigterm_cleans_up_as_ctrl_c_does(config, tmp_path, temporary):
    out = tmp_path / "out"
    process = long_run(config, out, tag := f"term-{os.getpid()}", environment={"TMPDIR": str(temporary)})
    assert list(temporary.glob("cafe-slices-*"))
    process.terminate()
    process.communicate(timeout=500)
    assert process.returncode == 130
    assert nothing_left(tag)
    assert json.loads((out / "summary.json").read_text())["rounds"] >= 3
    assert not list(temporary.glob("cafe-slices-*"))


def test_a_worker_that_waits_for_its_coordinator_can_be_stopped(config):
    process = start("work", config, "--id", 0, "--coordinator", "127.0.0.1:9", tag="waiting")
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=500)
    assert process.returncode == 130
    assert "cafe: stopped" in words


def role(name: str, tag: str) -> psutil.Process:
    """A process of a run by what it does: of those that listen, the coordinator started first."""
    listening = [p for p in ours(tag) if any(c.status == psutil.CONN_LISTEN for c in p.net_connections())]
    oldest, *others = sorted(listening, key=lambda process: process.create_time())
    return oldest if name == "coordinator" else others[-1]


@pytest.mark.parametrize("name", ["worker", "coordinator"])
@pytest.mark.slow
def test_when_a_process_is_killed_the_run_ends_with_a_sentence_and_nothing_is_left(config, tmp_path, name):
    out = tmp_path / "out"
    process = long_run(config, out, tag := f"kill-{name}-{os.getpid()}")
    role(name, tag).kill()
    _, words = process.communicate(timeout=500)
    assert process.returncode == 1
    assert re.search(r"cafe: (worker \d left in round \d+|the coordinator ended without a word)", words), words
    assert "Traceback" not in words
    assert nothing_left(tag)


def test_when_the_command_itself_is_killed_nothing_is_left(config, tmp_path):
    process = long_run(config, tmp_path / "out", tag := f"orphan-{os.getpid()}")
    process.kill()
    process.communicate(timeout=500)
    assert nothing_left(tag)


def test_a_coordinator_is_stopped_while_its_attack_does_not_start(tmp_path):
    pid = tmp_path / "pid"
    attack = f"attack={{name: 'tests.server.slow_attack:Slow', hangs: true, pid: {pid}}}"
    coordinator = RawCoordinator(tmp_path, rejoin=30, arguments=("--set", attack))
    with contextlib.closing(coordinator):
        workers = [RawWorker(coordinator, number) for number in (0, 1)]
        wait_for(pid.exists)
        coordinator.process.send_signal(signal.SIGTERM)
        code, words = coordinator.end()
    assert (code, len(workers)) == (130, 2), words
    assert "stopped before the end" in words
    wait_for(lambda: not psutil.pid_exists(int(pid.read_text())))
