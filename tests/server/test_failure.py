"""Waits at the coordinator: what ends them, and with which words."""

import asyncio

import pytest

from server.disturbances import DisturbedError, Failure
from vfl.errors import RunFailedError, UserError


def late() -> str:
    return "nobody came within 0.05 s"


def test_a_failure_ends_every_wait_and_the_first_one_counts():
    async def play() -> list[BaseException]:
        failure = Failure()
        waits = [asyncio.ensure_future(failure.until(asyncio.Event().wait(), None, late)) for _ in range(3)]
        await asyncio.sleep(0)
        failure.check()  # nothing is wrong yet
        failure.fail(UserError("the first"))
        failure.fail(RunFailedError("the second"))
        ended = await asyncio.gather(*waits, return_exceptions=True)
        with pytest.raises(UserError, match="the first"):
            failure.check()
        with pytest.raises(UserError, match="the first"):  # as one that begins later does
            await failure.until(asyncio.Event().wait(), None, late)
        return ended

    assert [str(error) for error in asyncio.run(play())] == ["the first"] * 3


def test_a_wait_that_takes_too_long_says_what_did_not_come():
    async def play() -> None:
        await Failure().until(asyncio.Event().wait(), 0.05, late)

    with pytest.raises(RunFailedError, match=r"^nobody came within 0\.05 s$"):
        asyncio.run(play())


def test_what_comes_ends_the_wait_and_its_own_error_is_told():
    async def play() -> None:
        failure = Failure()
        await failure.until(asyncio.sleep(0), None, late)
        broken = asyncio.get_running_loop().create_future()
        broken.set_exception(KeyError("its own"))
        await failure.until(broken, None, late)

    with pytest.raises(KeyError, match="its own"):
        asyncio.run(play())


def test_a_disturbance_ends_the_wait_and_what_was_a_future_goes_on():
    async def play() -> bool:
        disturbed = asyncio.get_running_loop().create_future()
        evaluation = asyncio.get_running_loop().create_future()
        disturbed.set_result(None)
        with pytest.raises(DisturbedError):
            await Failure().until(evaluation, None, late, disturbed)
        return evaluation.cancelled()

    assert asyncio.run(play()) is False
