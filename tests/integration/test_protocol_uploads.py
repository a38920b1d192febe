"""Uploads spoken to a real coordinator in raw messages: what is refused, what goes on, what may be withheld."""

import json
import threading

import grpc
import pytest
import torch

from protos.codec import chunks
from protos.coordinator_pb2 import UploadPart
from protos.tensors_pb2 import Chunk
from tests.integration.protocol_support import PATIENT, RawCoordinator, RawWorker, finish, refused


@pytest.fixture(scope="module")
def playing(tmp_path_factory):
    """A coordinator and its two workers in the first round."""
    coordinator = RawCoordinator(tmp_path_factory.mktemp("playing"), arguments=PATIENT)
    workers = [RawWorker(coordinator, 0), RawWorker(coordinator, 1)]
    assert [worker.next_round().round for worker in workers] == [1, 1]
    yield coordinator, workers
    coordinator.close()


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
def test_an_upload_with_a_bad_header_is_refused(playing, change, code, words):
    _, pair = playing
    status, details = refused(lambda: pair[1].upload(1, **change))
    assert status == grpc.StatusCode[code]
    assert words in details


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: g.pop("bottom.1.weight"), "worker 1 uploaded no bottom.1.weight"),
        (lambda g: g.update(secret=torch.zeros(3)), "secret, which the coordinator did not ask for"),
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
def test_bad_tensors_are_refused(playing, change, words):
    _, pair = playing
    gradients = {name: torch.zeros_like(p) for name, p in pair[1].parameters.items()}
    change(gradients)
    status, details = refused(lambda: pair[1].upload(1, gradients))
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert words in details


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
def test_a_broken_chunk_stream_is_refused(playing, spoil, words):
    coordinator, pair = playing
    worker = pair[1]
    gradients = {name: torch.zeros_like(p) for name, p in worker.parameters.items()}
    header = worker.header(1, gradients)
    parts = [UploadPart(header=header), *(UploadPart(chunk=chunk) for chunk in chunks(gradients.values()))]
    status, details = refused(lambda: coordinator.stub.Upload(iter(spoil(parts)), timeout=30))
    cut_short = words.startswith("end after")
    assert status == (grpc.StatusCode.DATA_LOSS if cut_short else grpc.StatusCode.INVALID_ARGUMENT)
    assert words in details


def test_after_all_those_the_round_goes_on(playing):
    finish(*playing)


def test_a_client_that_breaks_off_in_the_middle_of_an_upload_hurts_nobody(coordinator, pair):
    worker = pair[1]
    gradients = {name: torch.zeros_like(p) for name, p in worker.parameters.items()}
    header = worker.header(1, gradients)
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


def test_a_worker_may_withhold_its_upload_and_the_run_ends_with_its_reason(coordinator, pair):
    pair[0].upload(1)
    pair[1].upload(1, {}, withheld="its breaker is open")
    orders = [worker.next_round() for worker in pair]
    assert [order.round for order in orders] == [2, 2]  # frozen parameters: ordered ahead
    assert [worker.next_round().end.rounds for worker in pair] == [0, 0]
    code, words = coordinator.end()
    assert code == 0, words
    summary = json.loads((coordinator.out / "summary.json").read_text())
    assert summary["ended"] == "worker 1 withheld its upload for round 1: its breaker is open"
    assert summary["withheld"] == {"1": 1}
    assert (summary["rounds"], summary["train"]["losses"]) == (0, [])


def test_who_withholds_an_upload_cannot_send_one(coordinator, pair):
    status, details = refused(lambda: pair[1].upload(1, withheld="its breaker is open"))
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert "worker 1 withholds its upload and announces one" in details
    finish(coordinator, pair)


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
