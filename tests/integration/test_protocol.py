"""Raw protocol messages against a real coordinator: bad ones are refused with a sentence, nothing hangs."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from protos import coordinator_pb2_grpc
from protos.codec import Assembler, announce, chunks
from protos.coordinator_pb2 import Evaluation, JoinRequest, Slice, UploadHeader, UploadPart
from protos.tensors_pb2 import Chunk
from vfl.network import PROTOCOL_VERSION

CONFIG = """
data: {{name: digits}}
federation: {{workers: 2, batch_size: 4, rounds: 3, join_timeout: 30, round_timeout: 30}}
model: {{name: mlp, hidden: [{hidden}], output: 2}}
"""


class RawCoordinator:
    """A real `cafe serve` process and a raw client."""

    def __init__(self, folder, hidden=3):
        config = folder / "run.yaml"
        config.write_text(CONFIG.format(hidden=hidden))
        command = [
            sys.executable,
            "-m",
            "vfl.cli",
            "serve",
            str(config),
            "--listen",
            "127.0.0.1:0",
            "--out",
            str(folder / "out"),
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.out = folder / "out"
        line = self.process.stderr.readline()
        address = re.search(r"listening on (\S+),", line)
        assert address, line + self.process.stderr.read()
        self.channel = grpc.insecure_channel(address.group(1))
        self.stub = coordinator_pb2_grpc.CoordinatorStub(self.channel)

    def end(self) -> tuple[int, str]:
        """Wait for the process; return its exit code and last words."""
        words = self.process.stderr.read()
        return self.process.wait(30), words

    def close(self):
        self.channel.close()
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(30)
        self.process.stderr.close()


@pytest.fixture
def coordinator(tmp_path) -> Iterator[RawCoordinator]:
    raw = RawCoordinator(tmp_path)
    yield raw
    raw.close()


def join_request(worker, /, **changes):
    half = Slice(sample_shape=[8], start=[4 * worker], stop=[4 * worker + 4])
    values = {
        "protocol_version": PROTOCOL_VERSION,
        "worker": worker,
        "slice": half,
        "samples": 12,
        "ids_digest": b"same",
        "classes": 3 if worker == 0 else 0,
        "peer_address": "127.0.0.1:1",
    }
    return JoinRequest(**{**values, **changes})


class RawWorker:
    """A worker played by hand."""

    def __init__(self, coordinator, worker, **changes):
        self.stub, self.worker = coordinator.stub, worker
        self.orders = coordinator.stub.Join(join_request(worker, **changes), timeout=60)
        self.session = next(self.orders).welcome.session
        self.parameters: dict[str, torch.Tensor] = {}

    def next_round(self):
        """Read orders up to the next round."""
        for order in self.orders:
            kind = order.WhichOneof("order")
            if kind == "parameters":
                assembler = Assembler(order.parameters.bundle, 1 << 30)
                while not assembler.complete:
                    chunk = next(self.orders).chunk
                    assembler.add(chunk.offset, chunk.data)
                self.parameters = assembler.finish()
            elif kind == "round":
                return order.round
            elif kind in ("end", "abort"):
                return order
        raise AssertionError("the orders ended without an end")

    def upload(self, number, gradients=None, **changes):
        gradients = (
            {name: torch.zeros_like(p) for name, p in self.parameters.items()} if gradients is None else gradients
        )
        header = UploadHeader(session=self.session, worker=self.worker, round=number, gradients=announce(gradients))
        if self.worker == 0:
            header.loss = 1.5
        for key, value in changes.items():
            setattr(header, key, value)
        parts = [UploadPart(header=header), *(UploadPart(chunk=chunk) for chunk in chunks(gradients.values()))]
        return self.stub.Upload(iter(parts), timeout=30)


def refused(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


@pytest.fixture
def pair(coordinator):
    """Two workers in the first round."""
    workers = [RawWorker(coordinator, 0), RawWorker(coordinator, 1)]
    assert [worker.next_round().round for worker in workers] == [1, 1]
    return workers


def finish(coordinator, workers, first=1):
    """Play the remaining rounds properly: whatever was refused before, the run goes on and ends well."""
    for number in range(first, 4):
        for worker in workers:
            worker.upload(number)
        orders = [worker.next_round() for worker in workers]
    assert [order.end.rounds for order in orders] == [3, 3]
    for worker in workers:
        assert list(worker.orders) == []
    code, words = coordinator.end()
    assert code == 0, words


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"protocol_version": 99}, "FAILED_PRECONDITION", "speaks protocol version 99, this coordinator 2"),
        ({"ids_digest": b"other"}, "FAILED_PRECONDITION", "same samples in the same order as worker 0"),
        ({"samples": 13}, "FAILED_PRECONDITION", "worker 1 holds 13 samples .* worker 0 12"),
        ({"worker": 0, "classes": 3}, "ALREADY_EXISTS", "worker 0 has already joined"),
        ({"worker": 7}, "INVALID_ARGUMENT", "its workers are 0 to 1"),
        ({"classes": 3}, "INVALID_ARGUMENT", "the label holder is worker 0"),
        (
            {"slice": Slice(sample_shape=[8], start=[4], stop=[9])},
            "INVALID_ARGUMENT",
            "covers 4:9 of a dimension of size 8",
        ),
        (
            {"slice": Slice(sample_shape=[8], start=[3], stop=[8])},
            "FAILED_PRECONDITION",
            "held by more than one worker",
        ),
        ({"slice": Slice(sample_shape=[9], start=[4], stop=[9])}, "FAILED_PRECONDITION", "cuts samples of shape"),
        ({"slice": Slice()}, "INVALID_ARGUMENT", "bounds for a sample of 0 dimensions"),
        (
            {"slice": Slice(sample_shape=[1 << 55], start=[0], stop=[1 << 55])},
            "INVALID_ARGUMENT",
            "at most .* features",
        ),
        ({"samples": 10**13}, "INVALID_ARGUMENT", "expected 1 to 100000000"),
    ],
)
def test_a_worker_that_does_not_fit_is_refused_and_the_right_one_still_gets_in(coordinator, changes, code, words):
    first = RawWorker(coordinator, 0)
    status, details = refused(lambda: next(coordinator.stub.Join(join_request(1, **changes), timeout=30)))
    assert status == grpc.StatusCode[code]
    assert re.search(words, details)
    second = RawWorker(coordinator, 1)
    assert [worker.next_round().round for worker in (first, second)] == [1, 1]
    finish(coordinator, [first, second])


def test_rounds_carry_indices_and_parameters_only_once(coordinator, pair):
    assert set(pair[0].parameters) == {
        "bottom.1.weight",
        "bottom.1.bias",
        "bottom.3.weight",
        "bottom.3.bias",
        "top.fc.weight",
        "top.fc.bias",
    }
    assert "top.fc.weight" not in pair[1].parameters
    for worker in pair:
        worker.parameters_before, worker.parameters = worker.parameters, {}
        worker.upload(1, {name: torch.zeros_like(p) for name, p in worker.parameters_before.items()})
    rounds = [worker.next_round() for worker in pair]
    assert [list(r.indices) for r in rounds] == [list(rounds[0].indices)] * 2
    assert len(set(rounds[0].indices)) == 4
    assert pair[0].parameters == {}  # frozen: not sent again
    for worker in pair:
        worker.parameters = worker.parameters_before
    finish(coordinator, pair, first=2)


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"round": 0}, "FAILED_PRECONDITION", "uploaded for round 0, the current round is 1"),
        ({"round": 5}, "FAILED_PRECONDITION", "uploaded for round 5, the current round is 1"),
        ({"session": "guess"}, "UNAUTHENTICATED", "join first"),
        ({"worker": 0}, "PERMISSION_DENIED", "worker 1 cannot upload for worker 0"),
        ({"loss": 3.0}, "INVALID_ARGUMENT", "the loss comes from the label holder"),
    ],
)
def test_an_upload_with_a_bad_header_is_refused_and_the_round_goes_on(coordinator, pair, change, code, words):
    status, details = refused(lambda: pair[1].upload(1, **change))
    assert status == grpc.StatusCode[code]
    assert words in details
    finish(coordinator, pair)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: g.pop("bottom.1.weight"), "worker 1 uploaded no bottom.1.weight"),
        (lambda g: g.update(secret=torch.zeros(3)), "secret, which nobody asked for"),
        (
            lambda g: g.update({"bottom.1.weight": torch.zeros(3, 5)}),
            r"bottom.1.weight with shape (3, 5), expected (3, 4)",
        ),
        (
            lambda g: g.update({"bottom.1.bias": torch.zeros(3, dtype=torch.float64)}),
            "torch.float64, expected torch.float32",
        ),
        (lambda g: g["bottom.1.bias"].fill_(torch.nan), "bottom.1.bias with values that are not finite"),
        (lambda g: g["bottom.3.weight"][0].fill_(torch.inf), "bottom.3.weight with values that are not finite"),
    ],
    ids=["missing", "unknown", "shape", "dtype", "nan", "infinity"],
)
def test_bad_tensors_are_refused_and_the_round_goes_on(coordinator, pair, change, words):
    gradients = {name: torch.zeros_like(p) for name, p in pair[1].parameters.items()}
    change(gradients)
    status, details = refused(lambda: pair[1].upload(1, gradients))
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert words in details
    finish(coordinator, pair)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda parts: parts[:1], "end after 0 of the 96 bytes"),
        (
            lambda parts: [parts[0], UploadPart(chunk=Chunk(data=parts[1].chunk.data[:50]))],
            "end after 50 of the 96 bytes",
        ),
        (lambda parts: [*parts, parts[1]], "a chunk starts at byte 0, expected 96"),
        (lambda parts: [*parts, UploadPart(chunk=Chunk(offset=96, data=b"x"))], "more than the 96 bytes"),
        (lambda parts: [parts[0], parts[0]], "only chunks follow the header"),
        (lambda parts: parts[1:], "an upload begins with a header"),
        (lambda parts: [], "an upload begins with a header"),
    ],
    ids=["no chunks", "truncated", "repeated", "too long", "two headers", "no header", "empty"],
)
def test_a_broken_chunk_stream_is_refused_and_the_round_goes_on(coordinator, pair, spoil, words):
    worker = pair[1]
    gradients = {name: torch.zeros_like(p) for name, p in worker.parameters.items()}
    header = UploadHeader(session=worker.session, worker=1, round=1, gradients=announce(gradients))
    parts = [UploadPart(header=header), *(UploadPart(chunk=chunk) for chunk in chunks(gradients.values()))]
    status, details = refused(lambda: coordinator.stub.Upload(iter(spoil(parts)), timeout=30))
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert words in details
    finish(coordinator, pair)


def test_a_client_that_breaks_off_in_the_middle_of_an_upload_hurts_nobody(coordinator, pair):
    worker = pair[1]
    gradients = {name: torch.zeros_like(p) for name, p in worker.parameters.items()}
    header = UploadHeader(session=worker.session, worker=1, round=1, gradients=announce(gradients))
    sent, go_on = threading.Event(), threading.Event()

    def parts():
        yield UploadPart(header=header)
        sent.set()
        go_on.wait(30)

    call = coordinator.stub.Upload.future(parts(), timeout=30)
    assert sent.wait(30)
    call.cancel()
    go_on.set()
    finish(coordinator, pair)


def test_a_second_upload_for_the_same_round_is_refused(coordinator, pair):
    pair[1].upload(1)
    status, details = refused(lambda: pair[1].upload(1))
    assert status == grpc.StatusCode.ALREADY_EXISTS
    assert "uploaded for round 1 already" in details
    pair[0].upload(1)
    for worker in pair:
        assert worker.next_round().round == 2
    finish(coordinator, pair, first=2)


def test_a_loss_that_is_no_number_is_refused(coordinator, pair):
    status, details = refused(lambda: pair[0].upload(1, loss=float("nan")))
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert "a loss of nan" in details
    finish(coordinator, pair)


def test_an_evaluation_comes_from_the_label_holder_and_adds_up(coordinator):
    pair = [RawWorker(coordinator, worker, test_samples=5) for worker in (0, 1)]
    for number in range(1, 4):
        assert [worker.next_round().round for worker in pair] == [number] * 2
        for worker in pair:
            worker.upload(number)
    asked = [worker.next_round() for worker in pair]
    assert list(asked[0].indices) == list(range(5))

    def report(worker, **numbers):
        values = {"session": worker.session, "round": 4, "correct": 3, "total": 5, **numbers}
        return coordinator.stub.ReportEvaluation(Evaluation(**values), timeout=30)

    assert refused(lambda: report(pair[1]))[0] == grpc.StatusCode.PERMISSION_DENIED
    assert refused(lambda: report(pair[0], correct=6))[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert refused(lambda: report(pair[0], total=6))[0] == grpc.StatusCode.INVALID_ARGUMENT
    report(pair[0])
    assert [worker.next_round().end.rounds for worker in pair] == [3, 3]
    assert coordinator.end()[0] == 0
    assert json.loads((coordinator.out / "summary.json").read_text())["train"]["test_accuracy"] == 0.6


def test_an_evaluation_nobody_asked_for_is_refused(coordinator, pair):
    status, _ = refused(
        lambda: coordinator.stub.ReportEvaluation(Evaluation(session=pair[0].session, round=9), timeout=30)
    )
    assert status == grpc.StatusCode.FAILED_PRECONDITION
    finish(coordinator, pair)


def test_when_a_worker_leaves_the_others_hear_why_and_the_coordinator_ends(coordinator, pair):
    gradients = {name: torch.full_like(p, torch.nan) for name, p in pair[1].parameters.items()}
    refused(lambda: pair[1].upload(1, gradients))
    pair[1].orders.cancel()
    assert pair[0].next_round().round == 2  # frozen parameters: ordered ahead
    reason = pair[0].next_round().abort.reason
    assert "worker 1 left in round 1 after a refused upload" in reason
    assert "not finite" in reason
    code, words = coordinator.end()
    assert code == 1
    assert f"cafe: {reason}" in words
    assert "Traceback" not in words


def test_a_tensor_of_64_megabytes_travels_both_ways(tmp_path):
    coordinator = RawCoordinator(tmp_path, hidden=4 << 20)  # fc1 at each worker: 4 Mi x 4 float32
    try:
        workers = [RawWorker(coordinator, 0), RawWorker(coordinator, 1)]
        assert [worker.next_round().round for worker in workers] == [1, 1]
        weight = workers[0].parameters["bottom.1.weight"]
        assert weight.numel() * 4 == 64 << 20
        assert weight.std() > 0
        finish(coordinator, workers)
    finally:
        coordinator.close()


def test_health_and_reflection_are_on(coordinator):
    health = health_pb2_grpc.HealthStub(coordinator.channel)
    for service in ("", "cafe.v1.Coordinator"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    services = ProtoReflectionDescriptorDatabase(coordinator.channel).get_services()
    assert {"cafe.v1.Coordinator", "grpc.health.v1.Health"} <= set(services)
