"""After how many rounds the worst attackers know what they know: the same attacks, shown fewer rounds."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from vfl.audit.attempts import AT_ONCE, Bench, make_attempt
from vfl.audit.budget import LEAST_SECONDS
from vfl.audit.course import Run
from vfl.audit.judgement import attacker
from vfl.audit.plan import Planned
from vfl.audit.schema import Attempt
from vfl.files import remove
from vfl.sweep.progress import CellsProgress

ENOUGH = 0.9
"""Fewer rounds are enough if they give this much of what all rounds do."""
PROBES = 5
"""How often the number of rounds is halved, or the interval that it is in."""


def look_for_rounds(run: Run, bench: Bench, attackers: list[Planned], watch: CellsProgress, *, until: float) -> None:
    """Note for each attacker how many rounds are enough; attackers that another process looked at keep theirs."""
    made = {attacker(one): one for one in run.audit.attempts if one.defence == bench.defence}
    wanted = [one for one in attackers if made[one.name].rounds is None]

    def search(planned: Planned) -> None:
        name = f"after how many rounds: {planned.name}"
        watch.begins(name)
        attempt = made[planned.name]
        attempt.rounds = _fewest(run, bench, planned, attempt, until=until)
        watch.ends(name, f"{attempt.rounds} of {run.audit.training.rounds}")

    watch.plan(len(wanted))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            list(pool.map(search, wanted))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    run.save()


def _fewest(run: Run, bench: Bench, planned: Planned, attempt: Attempt, *, until: float) -> int:
    """Return the smallest number of rounds that was seen to be enough; the time and the halvings are bounded."""
    enough, too_few = run.audit.training.rounds, 0
    longest = 3 * (attempt.seconds or 0.0) + LEAST_SECONDS
    for _ in range(PROBES):
        middle = (enough + too_few) // 2
        if middle == too_few or run.budget.left(until) < LEAST_SECONDS:
            break
        probe = replace(bench, below=f"rounds/{middle}", rounds=middle)
        found = make_attempt(probe, planned, run.stop, min(longest, run.budget.left(until)))
        if found.outcome == "out of time":
            break
        if _knows_as_much(found, attempt):
            enough = middle
        else:
            too_few = middle
        remove(probe.folder(planned))
    return enough


def _knows_as_much(found: Attempt, whole: Attempt) -> bool:
    """Tell whether an attempt knows nearly as much of everything as one that was shown all rounds."""
    known = {(one.target, one.what): one.beyond for one in found.findings}
    wanted = {(one.target, one.what): one.beyond for one in whole.findings if one.state != "guess"}
    return all(known.get(key, 0.0) >= ENOUGH * beyond for key, beyond in wanted.items())
