"""Workers that are aligned, and what anybody else who calls there can take: little memory, no line, no long wait."""

import asyncio

import grpc
import pytest

from protos.alignment_pb2 import AlignHeader, AlignPart, PassPart, PlaceRequest
from server.alignment import AlignmentService
from tests.support import small_config
from vfl.net.alignment import from_bytes, keyed_hashes, pass_parts
from vfl.net.network import PROTOCOL_VERSION

ALL = keyed_hashes([f"p{number}" for number in range(8)], b"key")


class AbortedError(Exception):
    """What a context does with a call that is refused."""


class Context:
    async def abort(self, code, reason):
        raise AbortedError(code, reason)


class Federation:
    """The service for two workers, whose run has not begun."""

    def __init__(self, patience=5.0):
        self.started = False
        self.service = AlignmentService(2, False, patience, lambda: self.started)

    async def align(self, worker, hashes, announced=None):
        async def parts():
            header = AlignHeader(protocol_version=PROTOCOL_VERSION, worker=worker, ids=announced or len(hashes))
            yield AlignPart(header=header)
            yield AlignPart(hashes=hashes.tobytes())

        answers = [part async for part in self.service.Align(parts(), Context())]
        return from_bytes(b"".join(part.hashes for part in answers))

    async def swap(self, worker, data):
        async def parts():
            for part in pass_parts(worker, 0, data):
                yield part

        return b"".join([part.data async for part in self.service.Pass(parts(), Context())])

    async def place(self, worker, features):
        return await self.service.Place(PlaceRequest(worker=worker, features=features), Context())


async def refusal(call):
    with pytest.raises(AbortedError) as refused:
        await call
    return refused.value.args


def test_two_workers_are_aligned_and_one_comes_back_but_brings_nothing_else():
    async def go():
        two = Federation()
        first, second = await asyncio.gather(two.align(0, ALL[:6]), two.align(1, ALL[3:]))
        assert (first == second).all()
        assert set(first) == set(ALL[3:6])
        assert two.service._hashes._brought == {}
        two.started = True
        assert (await two.align(1, ALL[3:]) == first).all()
        assert "brings other ids than before" in (await refusal(two.align(1, ALL[:5])))[1]
        assert "not as many as announced" in (await refusal(two.align(1, ALL[3:], 9)))[1]
        assert two.service._calling == set()

    asyncio.run(go())


def test_in_a_run_that_aligned_nobody_nothing_is_taken():
    async def go():
        two = Federation()
        two.started = True
        for call in (two.align(0, ALL), two.swap(0, b"message"), two.place(0, 3)):
            assert await refusal(call) == (
                grpc.StatusCode.FAILED_PRECONDITION,
                "the run has begun, and tables are aligned before that: worker 0 comes too late",
            )

    asyncio.run(go())


@pytest.mark.parametrize(
    "call", [lambda two: two.align(0, ALL), lambda two: two.swap(0, b"m"), lambda two: two.place(0, 3)]
)
def test_a_worker_calls_once_at_a_time_and_does_not_wait_for_ever(call):
    async def go():
        two = Federation(patience=0.2)
        waiting = asyncio.create_task(refusal(call(two)))
        await asyncio.sleep(0.05)
        code, reason = await refusal(call(two))
        assert code == grpc.StatusCode.ALREADY_EXISTS
        assert "worker 0 is being aligned already" in reason
        assert await waiting == (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "after 0.2 s not all workers have come to be aligned",
        )

    asyncio.run(go())


def test_what_all_bring_together_has_a_limit(monkeypatch):
    monkeypatch.setattr("vfl.limits.ALIGN_BYTES", 10 * 16)

    async def go():
        two = Federation(patience=0.1)
        await refusal(two.align(0, ALL))  # not all have come; what it brought is kept
        code, reason = await refusal(two.align(1, ALL))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "all workers' hashes take 256, the limit is 160" in reason
        await refusal(two.align(0, ALL))  # in the place of what it brought before
        assert "or an id is there twice" in (await refusal(two.align(0, ALL[[0, 0]])))[1]
        assert two.service._hashes._room == {}

    asyncio.run(go())


def test_tables_are_aligned_only_where_the_config_says_so():
    def aligns(data, federation=None):
        return small_config(data=data, **({} if federation is None else {"federation": federation})).aligns

    table = {"name": "csv", "path": "none.csv", "label": "y", "id": "person"}
    assert aligns(table)
    assert not aligns({"name": "digits"})
    assert not aligns({key: value for key, value in table.items() if key != "id"})
    assert not aligns(table, {"kind": "horizontal", "workers": 2, "batch_size": 4, "rounds": 1})
    assert not aligns(table, {"label_holder": "coordinator", "workers": 2, "batch_size": 4, "rounds": 1})


def test_an_empty_call_is_refused():
    async def go():
        async def nothing():
            for part in ():
                yield part

        service = Federation().service
        for call in (service.Align, service.Pass):
            code, _ = await refusal(anext(call(nothing(), Context())))
            assert code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
        assert PassPart().header.worker == 0

    asyncio.run(go())
