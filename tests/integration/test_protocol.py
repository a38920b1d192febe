"""The coordinator's protocol spoken in raw messages: joining, rounds, evaluation, leaving, health."""

import json
import re

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from protos.coordinator_pb2 import Evaluation, Slice
from tests.integration.protocol_support import PATIENT, RawCoordinator, RawWorker, finish, join_request, refused


@pytest.fixture(scope="module")
def gathering(tmp_path_factory):
    """A coordinator that one of two workers has joined."""
    coordinator = RawCoordinator(tmp_path_factory.mktemp("gathering"), arguments=PATIENT)
    yield coordinator, RawWorker(coordinator, 0)
    coordinator.close()


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"protocol_version": 99}, "FAILED_PRECONDITION", "speaks protocol version 99, this coordinator 3"),
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
def test_a_worker_that_does_not_fit_is_refused(gathering, changes, code, words):
    coordinator, _ = gathering
    status, details = refused(lambda: next(coordinator.stub.Join(join_request(1, **changes), timeout=30)))
    assert status == grpc.StatusCode[code]
    assert re.search(words, details)


def test_after_all_those_the_right_one_still_gets_in(gathering):
    coordinator, first = gathering
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


def test_an_evaluation_comes_from_the_label_holder_and_adds_up(coordinator):
    pair = [RawWorker(coordinator, worker, test_samples=5) for worker in (0, 1)]
    for number in range(1, 4):
        assert [worker.next_round().round for worker in pair] == [number] * 2
        for worker in pair:
            worker.upload(number)
    asked = [worker.next_round() for worker in pair]
    assert list(asked[0].indices) == list(range(5))

    def report(worker, **numbers):
        values = {"session": worker.session, "run_id": worker.run_id, "round": 4, "correct": 3, "total": 5, **numbers}
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
        lambda: coordinator.stub.ReportEvaluation(
            Evaluation(session=pair[0].session, run_id=pair[0].run_id, round=9), timeout=30
        )
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


def test_health_and_reflection_are_on(coordinator):
    health = health_pb2_grpc.HealthStub(coordinator.channel)
    for service in ("", "cafe.v1.Coordinator"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    services = ProtoReflectionDescriptorDatabase(coordinator.channel).get_services()
    assert {"cafe.v1.Coordinator", "grpc.health.v1.Health"} <= set(services)
