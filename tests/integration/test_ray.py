"""A sweep, and step III of one attack, on a real Ray cluster of this machine whose second node is killed on the way."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
import yaml

from attacker.driver.offline import attack_transcript
from attacker.inversion import InversionOptions
from tests.attacker.test_inversion import pooled, problem, solve
from tests.integration.command_support import cafe, nothing_left, start, wait_for
from tests.vfl.sweep.fabricated import BASE, TRAINING, planned, write_sweep
from vfl.cluster import check_cluster, leave
from vfl.config import load_config, parse_config
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.folder.summary import load_summary
from vfl.folder.transcript import Transcript
from vfl.local.launch import check as check_run
from vfl.local.launch import run_federation
from vfl.referee import score_run
from vfl.sweep.engines import choose_engine, run_on_ray
from vfl.sweep.main import run_sweep
from vfl.sweep.plan import load_plan
from vfl.sweep.progress import SweepProgress

AXES = {
    "attack": {"training": TRAINING, "squares": {"attack": {"name": "least_squares"}, "federation.epochs": 10}},
}
TIMES = ("seconds", "rounds_per_second", "coordinator_memory", "memory")

ATTACKED = {
    **BASE,
    "federation": {**BASE["federation"], "epochs": 4},  # so that most samples are parted, and come back
    "model": {"name": "strided_cnn"},
    "training": {"lr": 0.0},
    "transcript": True,
}
ATTACK = {"name": "exact", "inversion": {"chunk": 3, "attempts": 2}}

CLUSTER = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
print(cluster.address, flush=True)
for line in sys.stdin:  # a node for each line
    print(cluster.add_node(num_cpus=1).all_processes["raylet"][0].process.pid, flush=True)
cluster.shutdown()
"""


@dataclass(frozen=True)
class Cluster:
    """A head with one core, in a process of its own that adds nodes with one core when asked to."""

    process: subprocess.Popen
    address: str

    def second_node(self) -> psutil.Process:
        self.process.stdin.write("another\n")
        self.process.stdin.flush()
        return psutil.Process(int(self.process.stdout.readline()))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    log, pipe = tmp_path_factory.mktemp("ray") / "log", subprocess.PIPE
    with log.open("w") as errors:
        process = subprocess.Popen([sys.executable, "-c", CLUSTER], stdin=pipe, stdout=pipe, stderr=errors, text=True)
    yield Cluster(process, process.stdout.readline().strip())
    process.communicate(timeout=500)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_node_loses_no_cell_and_the_table_is_the_local_one(cluster, tmp_path):
    file = write_sweep(tmp_path, axes=AXES)
    node = cluster.second_node()
    process = start(
        "sweep", file, "--out", tmp_path / "ray", "--engine", "ray", "--address", cluster.address, tag="ray"
    )
    _kill_at_work(node, "vfl.cli.guarded", process)
    _, words = process.communicate(timeout=500)
    assert process.returncode == 0, words
    run_sweep(load_plan(file), tmp_path / "local", quiet=True)
    assert _numbers(tmp_path / "ray") == _numbers(tmp_path / "local")
    cells = list((tmp_path / "ray" / "cells").iterdir())
    assert len(cells) == 2
    assert all((cell / "log.txt").exists() and (cell / "summary.json").exists() for cell in cells)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_step_three_on_a_cluster_that_loses_a_node_finds_the_same_bits(cluster, tmp_path):
    file = tmp_path / "attacked.yaml"
    file.write_text(yaml.safe_dump({**ATTACKED, "attack": ATTACK}))
    config = load_config(file)
    data = load_data(config)
    run_federation(config, data, tmp_path / "local")
    score_run(tmp_path / "local", config, data)
    on_ray = ["attack.inversion.engine=ray", f"attack.inversion.address={cluster.address}"]
    node = cluster.second_node()
    changes = [word for change in on_ray for word in ("--set", change)]
    live = start("run", file, "--out", tmp_path / "live", *changes, tag="live")
    _kill_at_work(node, "ray::_work_there", live)
    _, words = live.communicate(timeout=500)
    assert live.returncode == 0, words
    changed = load_config(file, on_ray)
    attack_transcript(Transcript(tmp_path / "local" / "transcript"), changed, tmp_path / "offline")
    score_run(tmp_path / "offline", changed, data)
    assert load_summary(tmp_path / "local").attack.share_30db > 0.8
    expected = _recovered(tmp_path / "local")
    assert _recovered(tmp_path / "live") == expected
    assert _recovered(tmp_path / "offline") == expected
    steps = [json.loads(line) for line in (tmp_path / "live" / "journal.jsonl").read_text().splitlines()]
    assert any("step III" in str(step) for step in steps)


def test_an_interrupted_inversion_leaves_no_task_at_work(cluster):
    model, _, targets = problem(pooled)
    head = psutil.Process(cluster.process.pid)

    def enough(_done, _total):
        if _at_work(head, "ray::_work_there"):
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            solve(model, targets, progress=enough, search_steps=10**8, engine="ray", address=cluster.address)
        wait_for(lambda: not _at_work(head, "ray::_work_there"))
    finally:
        leave()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_in_step_three_ends_the_attack_and_its_tasks(cluster, tmp_path):
    config = tmp_path / "long.yaml"
    endless = {"name": "exact", "inversion": {"search_steps": 10**8, "engine": "ray", "address": cluster.address}}
    config.write_text(yaml.safe_dump({**ATTACKED, "attack": endless}))
    process = start("run", config, "--out", tmp_path / "out", tag="stopped")
    _stop_at_work(process, signal.SIGINT, psutil.Process(cluster.process.pid), "ray::_work_there")
    assert nothing_left("stopped")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sweep_that_is_told_to_stop_ends_its_cells_on_the_cluster(cluster, tmp_path):
    long = {"attack": {"name": "none"}, "training.lr": 0.1, "federation.rounds": 10**6}
    file = write_sweep(tmp_path, cells={"long": long})
    process = start(
        "sweep", file, "--out", tmp_path / "out", "--engine", "ray", "--address", cluster.address, tag="long"
    )
    # SIGTERM, which Ray would answer itself
    words = _stop_at_work(process, signal.SIGTERM, psutil.Process(cluster.process.pid), "vfl.cli.guarded")
    assert "stopped with 0 of 1 cells done" in words


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("spark", None, None), "--engine spark: choose local or ray"),
        (("local", None, "here:1"), "--address here:1: belongs to --engine ray"),
        (("ray", 2, None), "--jobs 2: belongs to --engine local"),
    ],
)
def test_an_engine_that_makes_no_sense_is_a_sentence(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        choose_engine(*arguments)


def test_an_address_without_a_cluster_is_a_sentence_before_anything_runs(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    file = write_sweep(tmp_path, axes=AXES)
    swept = cafe("sweep", file, "--engine", "ray", "--address", address, "--out", tmp_path / "out")
    assert swept.returncode == 2
    assert f"no Ray cluster answers at {address} (Connection refused)" in swept.stderr
    inversion = {"engine": "ray", "address": address}
    config = parse_config({**ATTACKED, "attack": {"name": "exact", "inversion": inversion}}, "the test")
    with pytest.raises(UserError, match=f"attack.inversion.engine ray: no Ray cluster answers at {address}"):
        check_run(config, load_data(config))


@pytest.mark.parametrize("address", ["here", ":1", "here:port", "here:70000"])
def test_an_address_that_is_none_is_a_sentence(address):
    with pytest.raises(UserError, match=f"'{address}' is not HOST:PORT or auto"):
        check_cluster(address, "--address")


def test_without_ray_the_sentence_has_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as Python has it where an import fails
    with pytest.raises(UserError, match=r"Ray is not installed here; pip install 'cafe-vfl\[ray\]'"):
        InversionOptions(engine="ray").check_engine()
    InversionOptions().check_engine()


def test_an_address_belongs_to_the_engine_that_uses_it():
    with pytest.raises(ValueError, match="address auto: belongs to engine ray"):
        InversionOptions(address="auto")


def test_cells_on_ray_do_not_wait_for_tasks_of_their_own(tmp_path):
    plan = planned(tmp_path, cells={"both": {"attack": {"name": "exact", "inversion": {"engine": "ray"}}}})
    with pytest.raises(UserError, match=r"cell both has attack\.inversion\.engine ray too"):
        next(run_on_ray(list(plan.cells), tmp_path, SweepProgress(1, None, quiet=True), None))


def test_cells_on_ray_do_not_choose_among_the_gpus(tmp_path):
    plan = planned(tmp_path, cells={"second": {"device": "cuda:1"}})
    with pytest.raises(UserError, match=r"cell second has device cuda:1; Ray gives each cell a GPU: say cuda"):
        next(run_on_ray(list(plan.cells), tmp_path, SweepProgress(1, None, quiet=True), None))


def test_a_cell_that_needs_a_graphics_card_is_refused_by_a_cluster_without(cluster, tmp_path):
    plan = planned(tmp_path, cells={"fast": {"device": "cuda"}})
    with pytest.raises(UserError, match=r"no node of the cluster has a GPU, which device: cuda asks for \(fast\)"):
        next(run_on_ray(list(plan.cells), tmp_path, SweepProgress(1, None, quiet=True), cluster.address))


def _kill_at_work(node: psutil.Process, name: str, command: subprocess.Popen) -> None:
    """Kill a node's raylet while a process of that name is at work below it."""
    wait_for(lambda: _at_work(node, name) or command.poll() is not None, seconds=300)
    assert command.poll() is None, command.communicate()
    os.kill(node.pid, signal.SIGKILL)


def _stop_at_work(command: subprocess.Popen, by: signal.Signals, node: psutil.Process, name: str) -> str:
    """Send a command a signal while a process of that name is at work for it; return its words once both are gone."""
    try:
        wait_for(lambda: _at_work(node, name) or command.poll() is not None, seconds=300)
        assert command.poll() is None, command.communicate()
        command.send_signal(by)
        _, words = command.communicate(timeout=500)
    finally:
        command.kill()
    assert command.returncode == 130, words
    wait_for(lambda: not _at_work(node, name))
    return words


def _at_work(process: psutil.Process, name: str) -> bool:
    return any(name in _command(child) for child in process.children(recursive=True))


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # also a killed node that nobody has buried
        return ""


def _recovered(out):
    """The bits of all that an attack recovered."""
    with np.load(out / "recovered.npz") as arrays:
        return {name: (arrays[name].shape, arrays[name].tobytes()) for name in arrays}


def _numbers(out):
    """All numbers of all cells but those that measure time and memory."""
    rows = json.loads((out / "results.json").read_text())["rows"]
    return [{key: value for key, value in row.items() if not key.startswith(TIMES)} for row in rows]
