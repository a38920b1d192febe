"""How much of the time an attack works beside workers that need the machine."""

import pytest

from server import resting
from server.resting import Resting, Use
from server.watching import LONGEST_HEAD_START, head_start


def test_cores_are_to_spare_that_others_do_not_use():
    before = Use(passed=10.0, busy=100.0, own=5.0)
    # two seconds on four cores: others worked 5 s of 8, this process 2 s
    assert Use(passed=12.0, busy=107.0, own=7.0).spare(before, cores=4) == pytest.approx(1.5)


def test_the_counters_of_this_machine_go_forward():
    before, after = Use.now(), Use.now()
    assert after.passed >= before.passed
    assert after.busy >= before.busy
    assert after.own >= before.own


@pytest.mark.parametrize(("others", "share"), [(1.7, resting.SHARE), (2.0, resting.SHARE), (1.0, 1.0), (0.2, 1.0)])
def test_the_attack_works_all_the_time_only_if_a_core_is_to_spare(monkeypatch, others, share):
    seconds = 0.0

    def now() -> Use:
        return Use(passed=seconds, busy=(others + 0.3) * seconds, own=0.3 * seconds)

    monkeypatch.setattr(Use, "now", now)
    monkeypatch.setattr(resting.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(resting.time, "monotonic", lambda: seconds)
    watch = Resting()
    seconds = 2 * resting.WINDOW
    worked = 0.4
    assert worked / (worked + watch.after(worked)) == pytest.approx(share)


def test_the_next_round_goes_first_by_a_part_of_its_time_and_never_by_much():
    assert head_start([]) == head_start([7.0]) == 0
    assert head_start([7.0, 7.01]) == pytest.approx(0.003)
    assert head_start([7.0, 17.0]) == LONGEST_HEAD_START
