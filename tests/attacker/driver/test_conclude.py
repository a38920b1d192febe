"""The end of a run: which signals stop the attack, and what becomes of them afterwards."""

import os
import signal

import pytest

from attacker.driver.conclude import stoppable
from vfl.errors import InterruptedRunError, UserError

STOP = signal.SIGUSR1


@pytest.fixture
def handler():
    """A handler of before, that is there again afterwards."""
    heard = []
    before = signal.signal(STOP, lambda *_: heard.append(STOP))
    yield heard
    signal.signal(STOP, before)


def test_after_an_error_signals_are_heard_by_those_who_heard_them_before(handler):
    with pytest.raises(UserError, match="too few"), stoppable((STOP,)):
        raise UserError("too few rounds")
    os.kill(os.getpid(), STOP)
    assert handler == [STOP]


def test_the_first_signal_stops_and_further_ones_do_not_disturb(handler):
    with pytest.raises(InterruptedRunError, match="stopped before the end"), stoppable((STOP,)):
        os.kill(os.getpid(), STOP)
    os.kill(os.getpid(), STOP)
    assert handler == []
