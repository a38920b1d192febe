"""A sweep on a real Ray cluster of two nodes on this machine, one of which is killed on the way."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from sweep.main import choose_engine
from tests.integration.command_support import cafe, start, wait_for
from tests.sweep.fabricated import TRAINING, write_sweep
from vfl.errors import UserError

AXES = {
    "attack": {"training": TRAINING, "squares": {"attack": {"name": "least_squares"}, "federation.epochs": 10}},
    "seed": [0, 1, 2],
}
TIMES = ("seconds", "rounds_per_second", "coordinator_memory", "memory")


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


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two raylets with a core each, the first with the cluster's head; their ports are free ones."""
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("ray")
    script = (
        "import sys, time\n"
        "from ray.cluster_utils import Cluster\n"
        "cluster = Cluster(initialize_head=True, head_node_args={'num_cpus': 1, 'include_dashboard': False})\n"
        "second = cluster.add_node(num_cpus=1)\n"
        "raylets = [n.all_processes['raylet'][0].process.pid for n in (cluster.head_node, second)]\n"
        "print(cluster.address, *raylets, flush=True)\n"
        "sys.stdin.read()\n"
        "cluster.shutdown()\n"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=(folder / "log").open("w"), text=True
    )
    address, _, second = next(line for line in process.stdout if ":" in line.split()[0]).split()
    yield address, int(second)
    process.communicate(timeout=500)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_node_loses_nothing_and_the_table_is_the_local_one(nodes, tmp_path):
    address, raylet = nodes
    write_sweep(tmp_path, axes=AXES)
    file = tmp_path / "grid.yaml"
    process = start("sweep", file, "--out", tmp_path / "ray", "--engine", "ray", "--address", address, tag="ray")
    node = psutil.Process(raylet)
    wait_for(lambda: any("sweep.guarded" in " ".join(child.cmdline()) for child in _below(node)), seconds=300)
    os.kill(raylet, signal.SIGKILL)
    _, words = process.communicate(timeout=500)
    assert process.returncode == 0, words
    local = cafe("sweep", file, "--out", tmp_path / "local", timeout=500)
    assert local.returncode == 0, local.stderr
    assert _numbers(tmp_path / "ray") == _numbers(tmp_path / "local")
    cells = sorted(path.name for path in (tmp_path / "ray" / "cells").iterdir())
    assert len(cells) == 6
    assert all((tmp_path / "ray" / "cells" / cell / "log.txt").exists() for cell in cells)


def test_no_cluster_is_a_sentence(tmp_path):
    pytest.importorskip("ray")
    write_sweep(tmp_path, axes=AXES)
    process = start(
        *("sweep", tmp_path / "grid.yaml", "--engine", "ray", "--address", "127.0.0.1:9", "--out", tmp_path / "out"),
        tag="no-cluster",
        environment={"RAY_gcs_rpc_server_reconnect_timeout_s": "3"},
    )
    _, words = process.communicate(timeout=500)
    assert process.returncode == 1
    assert "cafe: --address 127.0.0.1:9: no Ray cluster answers there" in words


def _below(process: psutil.Process) -> list[psutil.Process]:
    for _ in range(3):  # what ends meanwhile is asked for again
        try:
            return process.children(recursive=True)
        except psutil.NoSuchProcess:
            time.sleep(0.1)
    return []


def _numbers(out):
    """All numbers of all cells but those that measure time and memory."""
    rows = json.loads((out / "results.json").read_text())["rows"]
    return [{key: value for key, value in row.items() if not key.startswith(TIMES)} for row in rows]
