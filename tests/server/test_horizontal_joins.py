"""Who may join a horizontal federation, and what its workers have to bring."""

import asyncio

import grpc
import pytest
import torch

from protos.codec import announce
from protos.coordinator_pb2 import Evaluation, Slice, UploadHeader
from server.inbox import Counts, Inbox, Upload
from server.membership import Membership
from server.refusal import RefusedError
from tests.integration.protocol_support import join_request
from vfl.topology import Topology

HORIZONTAL = Topology(2, kind="horizontal")


def whole(worker, **changes):
    values = {
        "slice": Slice(sample_shape=[8], start=[0], stop=[8]), "classes": 3, "samples": 12 + worker,
        "ids_digest": bytes([worker]),
    }  # fmt: skip
    return join_request(worker, **{**values, **changes})


@pytest.fixture
def membership():
    return Membership(HORIZONTAL, lambda _: None)


def test_workers_with_different_samples_are_let_in(membership):
    for worker in (1, 0):
        membership.admit(whole(worker, test_samples=worker))
    assert not membership.missing
    assert [member.samples for member in membership] == [12, 13]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"slice": Slice(sample_shape=[8], start=[0], stop=[4])}, r"holds \(0,\) to \(4,\) of .* is federation.kind"),
        ({"slice": Slice(sample_shape=[8], start=[0], stop=[0])}, "each holds whole samples and their labels"),
        ({"classes": 0}, "and 0 classes, but in a horizontal federation each holds whole samples and their labels"),
        ({"classes": 4}, r"of shape \(8,\) and 4 classes, worker 0 of shape \(8,\) and 3"),
        ({"slice": Slice(sample_shape=[9], start=[0], stop=[9])}, r"of shape \(9,\) and 3 classes, worker 0 of shape"),
        ({"ids_digest": bytes([0])}, "worker 1 holds the very samples of worker 0"),
    ],
)
def test_whoever_does_not_fit_is_refused_with_a_sentence(membership, changes, sentence):
    membership.admit(whole(0))
    with pytest.raises(RefusedError, match=sentence):
        membership.admit(whole(1, **changes))


def test_a_worker_with_whole_samples_is_refused_by_a_vertical_federation():
    vertical = Membership(Topology(2), lambda _: None)
    vertical.admit(join_request(0))
    with pytest.raises(RefusedError, match="the label holder is worker 0"):
        vertical.admit(whole(1))


def test_every_upload_has_a_loss():
    tensors = {"b": torch.zeros(3)}
    inbox = Inbox(1, {0: tensors, 1: tensors}, HORIZONTAL)
    for worker in (0, 1):
        header = UploadHeader(worker=worker, round=1, gradients=announce(tensors))
        with pytest.raises(RefusedError, match=f"worker {worker}: the loss comes from each worker"):
            inbox.check_header(header)
        header.loss = 0.5
        inbox.check_header(header)
        inbox.put(Upload(worker, tensors, 0.5))
    assert inbox.full.is_set()


def test_an_evaluation_is_done_when_each_worker_has_counted_its_own():
    async def count():
        counts = Counts(7, {0: 4, 2: 3})

        def refused(worker, **numbers):
            with pytest.raises(RefusedError) as caught:
                counts.put(worker, Evaluation(**{"round": 7, "correct": 1, "total": 4, **numbers}))
            return caught.value.code

        assert refused(1) == grpc.StatusCode.PERMISSION_DENIED
        assert refused(0, total=3) == grpc.StatusCode.INVALID_ARGUMENT
        assert refused(0, correct=5) == grpc.StatusCode.INVALID_ARGUMENT
        assert refused(0, round=6) == grpc.StatusCode.FAILED_PRECONDITION
        counts.put(2, Evaluation(round=7, correct=3, total=3, loss_sum=0.5))
        assert refused(2, total=3) == grpc.StatusCode.FAILED_PRECONDITION
        assert not counts.done.done()
        counts.put(0, Evaluation(round=7, correct=1, total=4, loss_sum=1.25))
        await counts.done
        return counts.correct, counts.loss_sum

    assert asyncio.run(count()) == (4, 1.75)
