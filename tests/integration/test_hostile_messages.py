"""A real coordinator and a real label holder, and messages that no worker would send: refused, at little cost."""

import gzip
import itertools
import threading

import grpc
import psutil
import pytest
import torch
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos.coordinator_pb2 import UploadPart
from protos.tensors_pb2 import Bundle, TensorSpec
from tests.fuzz.support import mutated
from tests.integration.hostile_support import DATA, PREFACE, connect, frame, headers, message, watched
from tests.integration.protocol_support import PATIENT, RawCoordinator, RawWorker, finish, join_request, refused
from tests.support import small_config
from vfl.limits import SPARE_CONNECTIONS
from vfl.net import pace
from vfl.net.tls import worker_role
from worker.exchange import Peer, WorkerServer
from worker.rendezvous import Rendezvous

GROWTH_BYTES = 64 << 20
"""What strangers may cost a party in memory, at any moment, whatever they send here."""

CLEAN = {
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
}
"""How calls are turned down: not by an error that nobody thought of, which would be UNKNOWN or INTERNAL."""

TABLES = ("--set", "data={name: csv, path: none.csv, label: y, id: person}")
"""With this, workers may bring tables, and the coordinator aligns them."""

KINDS = {
    "Coordinator/Join": "join",
    "Coordinator/Upload": "upload",
    "Coordinator/ReportEvaluation": "report",
    "Coordinator/ReportTrouble": "report",
    "Alignment/Align": "align",
    "Alignment/Pass": "pass",
    "Alignment/Place": "place",
}
"""What a coordinator can be called for, and the corpus of that."""

bounded = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck), database=None)


@pytest.fixture(scope="module")
def playing(tmp_path_factory):
    """A coordinator and its two workers in the first round."""
    coordinator = RawCoordinator(tmp_path_factory.mktemp("hostile"), arguments=(*PATIENT, *TABLES))
    workers = [RawWorker(coordinator, 0), RawWorker(coordinator, 1)]
    assert [worker.next_round().round for worker in workers] == [1, 1]
    yield coordinator, workers
    coordinator.close()


@pytest.fixture
def memory(playing):
    return psutil.Process(playing[0].process.pid)


def bomb(address: str, method: str) -> bytes:
    """Send a message that is small as it comes, and a quarter of a gigabyte when it is unpacked; return the answer."""
    packed = message(gzip.compress(bytes(256 << 20), 1), compressed=True)
    with connect(address) as line:
        line.sendall(PREFACE + headers(method, grpc_encoding="gzip"))
        for start in range(0, len(packed), 16_000):
            line.sendall(frame(DATA, 0, 1, packed[start : start + 16_000]))
        answer = b""
        while b"disabled" not in answer and (more := line.recv(65536)):
            answer += more
    return answer


def test_a_message_that_unpacks_to_gigabytes_is_not_unpacked(playing, memory):
    with watched(memory, GROWTH_BYTES):
        assert b"disabled" in bomb(playing[0].address, "/cafe.v1.Coordinator/Upload")


def test_ten_gigabytes_announced_and_never_sent(playing, memory):
    coordinator, (_, worker) = playing
    names = list(worker.parameters)
    for spec in (
        TensorSpec(name=names[0], dtype=1, shape=[2_500_000_000]),
        TensorSpec(name=names[0], dtype=1, shape=[(1 << 64) - 1] * 300_000),
        TensorSpec(name="x" * 3_000_000, dtype=1, shape=[1]),
    ):
        header = worker.header(1, {})
        header.gradients.CopyFrom(Bundle(tensors=[spec]))
        with watched(memory, GROWTH_BYTES):
            code, _ = refused(
                lambda header=header: coordinator.stub.Upload(iter([UploadPart(header=header)]), timeout=60)
            )
        assert code == grpc.StatusCode.INVALID_ARGUMENT


@bounded
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_any_bytes_to_the_coordinator(playing, memory, method, data):
    coordinator, workers = playing
    kind = KINDS[method]
    messages = data.draw(st.lists(mutated(kind), min_size=1, max_size=3))
    if kind == "upload" and data.draw(st.booleans()):  # as if from the worker itself
        with_session = UploadPart(header=workers[1].header(1, workers[1].parameters)).SerializeToString()
        messages.insert(0, with_session)
    call = coordinator.channel.stream_stream(f"/cafe.v1.{method}")
    with watched(memory, GROWTH_BYTES):
        code, details = refused(lambda: list(call(iter(messages), timeout=60)))
    assert code in CLEAN, details


def test_thousands_of_joins(playing, memory):
    coordinator, _ = playing
    with watched(memory, GROWTH_BYTES):
        for number in range(2000):
            code, _ = refused(lambda number=number: next(coordinator.stub.Join(join_request(number % 3), timeout=60)))
            assert code in CLEAN


def test_after_all_that_the_rounds_go_on(playing):
    finish(*playing)


@pytest.fixture
def holder(monkeypatch):
    """A label holder that waits for two peers, and not long for what others send."""
    monkeypatch.setattr(pace, "FIRST_SECONDS", 0.5)
    meeting = Rendezvous(24)
    server = WorkerServer(small_config(), 0, meeting, listen="127.0.0.1:0")
    meeting.open("run", {1: 3})
    yield meeting, f"127.0.0.1:{server.port}"
    server.stop()


def test_any_bytes_to_the_label_holder(holder, monkeypatch):
    monkeypatch.setattr("vfl.limits.OPEN_SECONDS", 0.05)
    _, address = holder

    @bounded
    @given(st.lists(mutated("swap"), min_size=1, max_size=3))
    def fuzz(messages):
        with watched(psutil.Process(), GROWTH_BYTES), grpc.insecure_channel(address) as channel:
            call = channel.stream_stream("/cafe.v1.Exchange/Swap")
            code, details = refused(lambda: list(call(iter(messages), timeout=2)))
            # An output that fits waits for its gradient.
            assert code in CLEAN | {grpc.StatusCode.DEADLINE_EXCEEDED}, details

    fuzz()


def test_calls_that_never_end_keep_nobody_from_the_label_holder(holder):
    meeting, address = holder
    lines = [connect(address) for _ in range(30)]
    for line, stream in itertools.product(lines, range(1, 17, 2)):  # as many calls as a connection may have
        line.sendall((PREFACE if stream == 1 else b"") + headers("/cafe.v1.Exchange/Swap", stream))
    threading.Timer(0.2, meeting.answer, [1, {1: torch.ones(5, 3)}]).start()
    peer = Peer(address, "run", 1, holder=worker_role(0), timeout=60)
    assert torch.equal(peer.swap(1, torch.arange(5), torch.zeros(5, 3)), torch.ones(5, 3))
    peer.close()
    for line in lines:
        line.settimeout(30)
        said = b""
        while b"took too long" not in said and (more := line.recv(65536)):
            said += more
        assert b"took too long" in said
        line.close()


def test_who_only_watches_keeps_no_connection(monkeypatch):
    monkeypatch.setattr("vfl.limits.IDLE_SECONDS", 0.5)
    config, meeting = small_config(), Rendezvous(24)
    server = WorkerServer(config, 0, meeting, listen="127.0.0.1:0")
    meeting.open("run", {1: 3})
    address, own = f"127.0.0.1:{server.port}", [("grpc.use_local_subchannel_pool", 1)]
    crowd = [grpc.insecure_channel(address, own) for _ in range(2 * config.topology.parties + SPARE_CONNECTIONS)]
    calls = [HealthStub(channel).Watch(HealthCheckRequest(), timeout=60) for channel in crowd]
    codes = {refused(lambda call=call: list(call))[0] for call in calls}
    assert codes <= {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE}
    threading.Timer(0.2, meeting.answer, [1, {1: torch.ones(5, 3)}]).start()
    peer = Peer(address, "run", 1, holder=worker_role(0), timeout=60)
    assert torch.equal(peer.swap(1, torch.arange(5), torch.zeros(5, 3)), torch.ones(5, 3))
    peer.close()
    for channel in crowd:
        channel.close()
    server.stop()
