"""What a run that ends does about an observer that does not."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from server import background
from server.background import LONGEST_HEAD_START, Background


def test_a_run_that_ends_does_not_wait_for_ever_for_an_observer_that_is_stuck(monkeypatch):
    monkeypatch.setattr(background, "OVER_SECONDS", 0.1)
    released = threading.Event()

    async def run() -> bool:
        looking = Background(lambda _: released.wait(60), SimpleNamespace())
        looking.show(None)
        try:
            return await asyncio.wait_for(looking.over(), 30)
        finally:
            released.set()

    assert asyncio.run(run()) is False


def test_the_next_round_goes_before_the_observer_by_a_part_of_its_time_and_never_by_much():
    seen = []

    async def run() -> float:
        looking, began = Background(lambda _: seen.append(time.monotonic()), SimpleNamespace()), time.monotonic()
        looking.show(None, 0.1)
        await looking.task
        return seen[0] - began

    assert asyncio.run(run()) >= 0.03
    looking = Background(lambda _: None, SimpleNamespace())
    assert looking.head_start(0.0) == 0
    assert looking.head_start(0.01) == pytest.approx(0.003)
    assert looking.head_start(10.0) == LONGEST_HEAD_START


def test_an_observer_who_needs_most_of_a_round_is_not_held_up():
    async def run() -> float:
        looking = Background(lambda _: time.sleep(0.06), SimpleNamespace())
        looking.show(None)
        await looking.task
        return looking.head_start(0.1)

    assert asyncio.run(run()) == 0
