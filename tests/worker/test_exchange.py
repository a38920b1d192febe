"""The exchange between workers over a real socket."""

import threading
import time
from concurrent import futures
from types import SimpleNamespace

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.coordinator_pb2 import End, JoinRequest, Order
from protos.wire import EXCHANGE_SERVICE, ChunkView
from tests.plain_rpc import PlainStub
from tests.support import small_config
from vfl import limits
from vfl.errors import RunFailedError
from vfl.net.tls import worker_role
from worker.exchange import Peer, WorkerServer
from worker.link import Link, LinkLostError
from worker.rendezvous import Rendezvous, swap_parts


@pytest.fixture
def label_holder():
    rendezvous = Rendezvous()
    server = WorkerServer(small_config(), 0, rendezvous, listen="127.0.0.1:0")
    rendezvous.open("run", {1: 3, 2: 2})
    yield rendezvous, f"127.0.0.1:{server.port}"
    server.stop()


def test_peers_bring_outputs_and_get_their_own_gradients_back(label_holder):
    rendezvous, address = label_holder
    outputs = {1: torch.randn(5, 3), 2: torch.randn(5, 2)}
    peers = {worker: Peer(address, "run", worker, holder=worker_role(0), timeout=30) for worker in outputs}
    with futures.ThreadPoolExecutor() as pool:
        rows = torch.arange(5)
        waiting = {worker: pool.submit(peer.swap, 1, rows, outputs[worker]) for worker, peer in peers.items()}
        gathered = rendezvous.gather(1, torch.arange(5), 30)
        assert all(torch.equal(gathered[worker], output) for worker, output in outputs.items())
        rendezvous.answer(1, {worker: 2 * output for worker, output in outputs.items()})
        for worker, answer in waiting.items():
            assert torch.equal(answer.result(30), 2 * outputs[worker])
    assert rendezvous.bytes > 2 * 5 * 5 * 4


@pytest.mark.parametrize(
    ("run_id", "worker", "tensors", "words"),
    [
        ("other", 1, {"output": torch.zeros(5, 3)}, "belongs to another run"),
        ("run", 0, {"output": torch.zeros(5, 3)}, "worker 0 is no peer"),
        ("run", 1, {"output": torch.zeros(5, 4)}, r"of shape \(batch, 3\)"),
        ("run", 1, {"output": torch.zeros(5, 3, dtype=torch.float64)}, "one float32 tensor"),
        ("run", 1, {"something": torch.zeros(5, 3)}, r"of shape \(batch, 3\)"),
        ("run", 1, {"output": torch.zeros(5, 3, dtype=torch.int64)}, r"of shape \(batch, 3\)"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(label_holder, run_id, worker, tensors, words, monkeypatch):
    monkeypatch.setattr(limits, "OPEN_SECONDS", 0.2)
    _, address = label_holder
    with grpc.insecure_channel(address) as channel:
        answers = PlainStub(channel, EXCHANGE_SERVICE).Swap(swap_parts(run_id, worker, 1, tensors), timeout=30)
        with pytest.raises(grpc.RpcError, match=words) as caught:
            next(answers)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [0, 1, 2, 4, 3]], ids=["fewer", "in another order"])
def test_outputs_of_other_rows_end_the_run(label_holder, rows):
    rendezvous, address = label_holder

    def bring(worker, width):
        with pytest.raises(RunFailedError):
            Peer(address, "run", worker, holder=worker_role(0), timeout=30).swap(
                1, torch.tensor(rows), torch.zeros(len(rows), width)
            )

    threads = [threading.Thread(target=bring, args=pair) for pair in ((1, 3), (2, 2))]
    for thread in threads:
        thread.start()
    words = f"sent outputs for {len(rows)} samples in round 1 that are not the label holder's 5: is the defence"
    with pytest.raises(RunFailedError, match=words):
        rendezvous.gather(1, torch.arange(5), 30)
    rendezvous.fail("over")
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_failure_wakes_everybody_who_waits(label_holder):
    rendezvous, address = label_holder
    threading.Timer(0.2, rendezvous.fail, ["worker 2 left"]).start()
    with pytest.raises(RunFailedError, match="worker 2 left"):
        rendezvous.gather(1, torch.arange(5), 30)
    with pytest.raises(RunFailedError, match="round 1: worker 2 left"):
        Peer(address, "run", 1, holder=worker_role(0), timeout=30).swap(1, torch.arange(5), torch.zeros(5, 3))


def test_a_peer_that_never_comes_is_named():
    rendezvous = Rendezvous()
    rendezvous.open("run", {1: 3, 2: 2})
    with pytest.raises(RunFailedError, match=r"no sign of the outputs of workers \[1, 2\] for round 7 for 0.1 s"):
        rendezvous.gather(7, torch.arange(5), 0.1)


def test_only_the_label_holder_exchanges_and_every_worker_is_healthy():
    server = WorkerServer(small_config(), 3, Rendezvous(), listen="127.0.0.1:0")
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.RpcError, match="worker 3 is not the label holder"):
            next(PlainStub(channel, EXCHANGE_SERVICE).Swap(iter([]), timeout=30))
        checked = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert checked.status == health_pb2.HealthCheckResponse.SERVING
    server.stop()


def test_a_peer_has_one_exchange_at_a_time_and_the_next_when_that_has_ended(label_holder):
    rendezvous, address = label_holder
    first = Peer(address, "run", 1, holder=worker_role(0), timeout=30)
    with futures.ThreadPoolExecutor() as pool, grpc.insecure_channel(address) as channel:
        waiting = pool.submit(first.swap, 1, torch.arange(5), torch.ones(5, 3))
        deadline = time.monotonic() + 30
        while 1 not in rendezvous._brought and time.monotonic() < deadline:
            time.sleep(0.01)
        parts = swap_parts("run", 1, 1, {"output": torch.zeros(5, 3)})
        with pytest.raises(grpc.RpcError) as refused:
            list(PlainStub(channel, EXCHANGE_SERVICE).Swap(parts, timeout=30))
        assert "an exchange of worker 1 is under way already" in refused.value.details()
        assert torch.equal(rendezvous._brought[1].output, torch.ones(5, 3))
        for number in (1, 2, 3):
            rendezvous.answer(number, {1: torch.full((5, 3), float(number))})
            assert torch.equal(waiting.result(30), torch.full((5, 3), float(number)))
            waiting = pool.submit(first.swap, number + 1, torch.arange(5), torch.ones(5, 3))
        rendezvous.fail("over")


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ([], LinkLostError, "closed the connection before its welcome"),
        ([Order(end=End(rounds=1))], RunFailedError, "answered a join without a welcome"),
        ([ChunkView(0, memoryview(b"x"), 1)], RunFailedError, "answered a join without a welcome"),
    ],
    ids=["nothing", "another order", "a chunk"],
)
def test_a_join_that_is_answered_without_a_welcome_gets_a_sentence(answer, error, words):
    class Answers:
        def __init__(self):
            self._left = iter(answer)

        def __next__(self):
            return next(self._left)

        def cancel(self):
            pass

    link = Link.__new__(Link)
    link._address, link._worker = "127.0.0.1:1", 0
    link._stub = SimpleNamespace(Join=lambda _request: Answers())
    with pytest.raises(error, match=words) as caught:
        link.join(JoinRequest())
    assert type(caught.value) is error
