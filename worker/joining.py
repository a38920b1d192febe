"""Joining a run: tried again while what stands in the way may yet pass."""

import time
from collections.abc import Callable

from vfl.net.handshake import HungUpError
from worker.link import Link, LinkLostError, TakenError

NOTICED_SECONDS = 5.0
"""After `silence_timeout` a coordinator has noticed that a worker is lost, and so much later another has its place."""

LONGEST_PAUSE = 5.0


def keep_joining(
    join: Callable[[float], Link], patience: float, doubted: float, say: Callable[[str], None] = lambda _: None
) -> Link:
    """Return what `join`, given the seconds that are left, returns; after `patience` seconds fail as it failed last.

    Where the number is taken, or the other side hangs up on us, that is likely to be a mistake: it is said at once, and
    tried for `doubted` seconds only.
    """
    deadline, pause, doubts_end = time.monotonic() + patience, 0.1, None
    while True:
        try:
            return join(max(1.0, deadline - time.monotonic()))
        except (LinkLostError, HungUpError) as error:
            now, until = time.monotonic(), deadline
            if isinstance(error, TakenError | HungUpError):
                if doubts_end is None:
                    doubts_end = now + doubted
                    say(f"{error}; trying again for {min(doubted, deadline - now):.0f} s")
                until = min(deadline, doubts_end)
            if now >= until:
                raise
            time.sleep(min(pause, until - now))
            pause = min(2 * pause, LONGEST_PAUSE)
