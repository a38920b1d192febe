"""A federation in real processes, and strangers at its ports: its numbers are those of a run that nobody disturbs."""

import gc
import re
import socket

import grpc
import pytest

from protos.wire import COORDINATOR_SERVICE
from tests.integration.command_support import start, wait_for
from tests.integration.hostile_support import Strangers, connect
from tests.integration.protocol_support import join_request, refused
from tests.plain_rpc import PlainStub
from tests.support import assert_same, run_in_processes
from vfl.config import load_config
from vfl.folder.summary import load_summary
from vfl.folder.transcript import Transcript
from vfl.limits import SPARE_CONNECTIONS
from vfl.net.certs import make_certificates
from worker.exchange import WorkerServer
from worker.rendezvous import Rendezvous

CONFIG = """
seed: 3
data: {name: digits, samples: 24}
federation: {workers: 2, batch_size: 8, rounds: 400, join_timeout: 120, round_timeout: 120, rejoin_timeout: 0}
model: {name: mlp, hidden: [12]}
training: {lr: 0.1}
transcript: true
"""

JOINS = 1000


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "run.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def undisturbed(file, tmp_path_factory):
    return run_in_processes(load_config(file), tmp_path_factory.mktemp("undisturbed"))


def test_strangers_at_both_ports_change_no_number(file, undisturbed, tmp_path):
    coordinator = start("serve", file, "--listen", "127.0.0.1:0", "--out", tmp_path / "out", tag="hostile")
    address = re.search(r"listening on (\S+),", coordinator.stderr.readline()).group(1)
    holder = f"127.0.0.1:{free_port()}"
    at_coordinator = Strangers("/cafe.v1.Coordinator/Upload")
    at_holder = Strangers("/cafe.v1.Exchange/Swap")
    at_coordinator.molest(address)
    at_holder.molest(holder)
    line = ["--coordinator", address, "--threads", 1]
    workers = [
        start("work", file, "--id", 0, "--listen", holder, *line, tag="hostile"),
        start("work", file, "--id", 1, *line, tag="hostile"),
    ]
    wait_for((tmp_path / "out" / "transcript" / "round-0000001.safetensors").exists)
    crowd = [connect(at) for at in (address, holder) for _ in range(2 * 2 + SPARE_CONNECTIONS)]
    with grpc.insecure_channel(address) as channel:
        stub = PlainStub(channel, COORDINATOR_SERVICE)
        codes = {
            refused(lambda number=number: next(stub.Join(join_request(number % 7 + 2), timeout=60)))[0]
            for number in range(JOINS)
        }
    said = [process.communicate(timeout=500)[1] for process in (coordinator, *workers)]
    at_coordinator.stop()
    at_holder.stop()
    for one in crowd:
        one.close()
    assert [process.returncode for process in (coordinator, *workers)] == [0, 0, 0], said
    assert codes <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE}
    for strangers in (at_coordinator, at_holder):
        assert len(strangers.connections) == 5, strangers.connections
        assert strangers.bytes > 1 << 20
    assert not any("Traceback" in words for words in said), said
    assert_same(list(Transcript(tmp_path / "out" / "transcript")), undisturbed)


def test_strangers_at_a_tls_port_change_no_number_and_keep_nobody_out(file, undisturbed, tmp_path):
    """They say nothing, speak plain text, or show another authority's certificate; a worker is lost meanwhile."""
    own, foreign, out = tmp_path / "certs", tmp_path / "foreign", tmp_path / "out"
    make_certificates(own, 2)
    make_certificates(foreign, 2)
    secure = ("--tls", own, "--set", "federation.rejoin_timeout=200")
    coordinator = start("serve", file, "--listen", "127.0.0.1:0", "--out", out, *secure, tag="hostile")
    address = re.search(r"listening on (\S+),", coordinator.stderr.readline()).group(1)
    strangers = Strangers("/cafe.v1.Coordinator/Upload")
    strangers.molest(address)
    work = [("work", file, "--id", number, "--coordinator", address, "--threads", 1, *secure) for number in range(2)]
    workers = [start(*line, tag="hostile") for line in work]
    wait_for((out / "transcript" / "round-0000001.safetensors").exists)
    workers[1].kill()
    workers[1].communicate()
    crowd = [connect(address) for _ in range(2 * 2 + SPARE_CONNECTIONS)]
    forged = grpc.ssl_channel_credentials(
        *((folder / name).read_bytes() for folder, name in ((own, "ca.pem"), (foreign, "worker-1.key"))),
        (foreign / "worker-1.pem").read_bytes(),
    )
    with grpc.secure_channel(address, forged) as channel:
        stub = PlainStub(channel, COORDINATOR_SERVICE)
        codes = {refused(lambda: next(stub.Join(join_request(1), timeout=1)))[0] for _ in range(5)}
    workers[1] = start(*work[1], tag="hostile")
    said = [process.communicate(timeout=500)[1] for process in (coordinator, *workers)]
    strangers.stop()
    for one in crowd:
        one.close()
    assert [process.returncode for process in (coordinator, *workers)] == [0, 0, 0], said
    assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert len(load_summary(out).disturbances) == 1
    assert_same(list(Transcript(out / "transcript")), undisturbed)


def test_a_server_that_ends_while_strangers_call_says_nothing_of_them(file, capfd):
    for _ in range(3):
        server = WorkerServer(load_config(file), 0, Rendezvous(24), listen="127.0.0.1:0")
        strangers = Strangers("/cafe.v1.Exchange/Swap")
        strangers.molest(f"127.0.0.1:{server.port}")
        wait_for(lambda strangers=strangers: strangers.bytes > 1 << 20)
        server.stop()
        strangers.stop()
        del server
        gc.collect()
    assert capfd.readouterr().err == ""
