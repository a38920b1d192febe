"""Which uploads the coordinator takes, and what becomes of a worker whose upload it refused."""

import asyncio

import grpc
import pytest
import torch

from protos.coordinator_pb2 import Slice
from server.disturbances import WorkerLeftError
from server.inbox import Inbox, Upload
from server.membership import Membership
from server.refusal import RefusedError
from server.session import Session
from tests.integration.protocol_support import join_request
from tests.support import small_config
from vfl.folder.journal import Journal
from vfl.topology import Topology


def test_finite_numbers_are_taken_though_their_sum_overflows():
    large = {"w": torch.full((2,), 3e38)}
    assert large["w"].sum().isinf()
    inbox = Inbox(1, {0: large}, Topology(2))
    inbox.put(Upload(0, large, None))
    assert torch.equal(inbox.uploads[0].gradients["w"], large["w"])


@pytest.mark.parametrize("values", [[torch.nan, 0.0], [torch.inf, 0.0], [torch.inf, -torch.inf], [3e38, torch.inf]])
def test_numbers_that_are_not_finite_are_refused(values):
    inbox = Inbox(1, {0: {"w": torch.zeros(2)}}, Topology(2))
    with pytest.raises(RefusedError, match="uploaded w with values that are not finite"):
        inbox.put(Upload(0, {"w": torch.tensor(values)}, None))
    assert inbox.missing == [0]


@pytest.mark.parametrize("refused", [False, True])
def test_a_lost_worker_is_waited_for_unless_its_upload_was_refused(tmp_path, refused):
    async def play() -> tuple[bool, str]:
        session = Session(small_config(federation={"workers": 2}), Journal(tmp_path), patience=60.0)
        members = [session.membership.admit(join_request(worker)) for worker in range(2)]
        await session.gather()
        if refused:
            members[1].refusal = "uploaded w with values that are not finite"
        session.membership.remove(members[1])
        try:
            session.failure.check()
        except WorkerLeftError as error:
            return session.disturbances.happened.done(), str(error)
        return session.disturbances.happened.done(), ""

    ended = "worker 1 left in round 1 after a refused upload: uploaded w with values that are not finite"
    assert asyncio.run(play()) == ((False, ended) if refused else (True, ""))


@pytest.mark.parametrize("others_there", [False, True])
@pytest.mark.parametrize(
    ("worker", "other"),
    [
        (1, {"samples": 11}),
        (1, {"test_samples": 1}),
        (1, {"ids_digest": b"other"}),
        (1, {"slice": Slice(sample_shape=[8], start=[5], stop=[8])}),
        (0, {"classes": 4}),
    ],
)
def test_a_worker_that_comes_back_brings_the_data_it_had(worker, other, others_there):
    membership = Membership(Topology(2), lambda _: None, returning=True)
    members = [membership.admit(join_request(number)) for number in range(2)]
    membership.start()
    for member in members:
        if member.worker == worker or not others_there:
            membership.remove(member)
    with pytest.raises(RefusedError) as caught:
        membership.admit(join_request(worker, **other))
    assert caught.value.code == grpc.StatusCode.FAILED_PRECONDITION
    if not others_there or "classes" in other:  # else the others' data says it first
        assert "does not hold what it held when the run began" in caught.value.reason
    assert membership.admit(join_request(worker)).generation == 1
