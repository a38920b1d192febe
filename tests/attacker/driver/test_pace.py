"""How much of the time an attack works beside workers that need the machine."""

import os
import threading
from types import SimpleNamespace

import pytest

from attacker.driver import pace
from attacker.driver.pace import LEAST_PRIORITY, SHARE, WINDOW, Pace, Use, out_of_the_way, usable_cores
from attacker.driver.process import Begin, LiveAttack
from tests.support import setting_of, small_config
from vfl.folder.transcript.spool import Places


def test_cores_are_to_spare_that_others_do_not_use():
    before = Use(passed=10.0, busy=100.0, own=5.0)
    # two seconds on four cores: others worked 5 s of 8, this process 2 s
    assert Use(passed=12.0, busy=107.0, own=7.0).spare(before, cores=4) == pytest.approx(1.5)


def test_the_counters_of_this_machine_tell_work():
    before = Use.now()
    while Use.now().own < before.own + 0.3:
        pass
    after = Use.now()
    assert after.passed > before.passed
    assert after.busy >= before.busy + 0.1  # they count in hundredths of a second


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux tells which cores a process may use")
def test_only_cores_that_this_process_may_use_count():
    all_cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(all_cores)})
        assert usable_cores() == [max(all_cores)]
        Use.now()
    finally:
        os.sched_setaffinity(0, all_cores)


@pytest.mark.parametrize(
    ("cores", "others", "share"), [(2, 1.8, SHARE), (2, 2.0, SHARE), (2, 0.2, 1.0), (2, 1.25, 0.25), (1, 0.05, 0.45)]
)
def test_the_attack_takes_what_others_leave_and_never_less_than_its_share(monkeypatch, cores, others, share):
    seconds = 0.0

    def now() -> Use:
        return Use(passed=seconds, busy=(others + 0.3) * seconds, own=0.3 * seconds)

    monkeypatch.setattr(Use, "now", now)
    monkeypatch.setattr(pace, "usable_cores", lambda: list(range(cores)))
    monkeypatch.setattr(pace.time, "monotonic", lambda: seconds)
    watch, worked = Pace(), 0.4
    assert worked / (worked + watch.rest_after(worked)) == pytest.approx(SHARE)  # before anything is known
    seconds = 2 * WINDOW
    assert worked / (worked + watch.rest_after(worked)) == pytest.approx(share)


def test_where_there_are_no_counters_nobody_rests(monkeypatch):
    def cpu_times(percpu):
        raise PermissionError

    lost, monotonic = Pace(), pace.time.monotonic
    monkeypatch.setattr(pace.psutil, "cpu_times", cpu_times)
    assert Pace().rest_after(5.0) == 0
    monkeypatch.setattr(pace.time, "monotonic", lambda: monotonic() + 2 * WINDOW)
    assert lost.rest_after(5.0) == 0  # they were there at first


@pytest.fixture
def attack(tmp_path):
    """An attack that is to rest for longer than anybody waits."""
    config = small_config(federation={"rounds": 4}, attack={"name": "tests.server.slow_attack:Slow"})
    line = SimpleNamespace(no_more_rounds=threading.Event(), messages=SimpleNamespace(qsize=lambda: 3), tell=print)
    attack = LiveAttack(Begin(config.attack, setting_of(config), tmp_path, Places(tmp_path / "transcript", None)), line)
    attack._pace.rest_after = lambda worked: worked * 1e6
    return attack


def rests(attack) -> threading.Thread:
    about = {"over": attack._line.no_more_rounds, "hurried": attack._disk_is_needed}
    thread = threading.Thread(target=attack._pace.rest, args=(1.0,), kwargs=about, daemon=True)
    thread.start()
    return thread


def test_a_rest_ends_with_the_rounds(attack):
    thread = rests(attack)
    thread.join(2 * WINDOW)
    assert thread.is_alive()
    attack._line.no_more_rounds.set()
    thread.join(60)
    assert not thread.is_alive()


def test_a_rest_ends_when_cores_become_free(attack):
    thread = rests(attack)
    attack._pace.rest_after = lambda worked: 0.0
    thread.join(60)
    assert not thread.is_alive()


def test_nobody_rests_while_rounds_need_the_disk(attack):
    attack._round_bytes = 1 << 60
    thread = rests(attack)
    thread.join(60)
    assert not thread.is_alive()


def test_the_priority_is_the_lowest_but_while_rounds_need_the_disk(monkeypatch, tmp_path):
    given, over, needed = [], threading.Event(), iter([False, True, True, False])
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    monkeypatch.setattr(pace, "WINDOW", 0.01)
    monkeypatch.setattr(pace, "_set_priority", lambda _, nice, session: given.append((nice, session)))
    monkeypatch.setattr(pace, "SESSION", tmp_path / "autogroup")  # of a process that is nicer than its session
    pace.SESSION.write_text("/autogroup-7 nice 3\n")

    def hurried() -> bool:
        wanted = next(needed, None)
        if wanted is None:
            over.set()
        return bool(wanted)

    out_of_the_way(over.wait, over, hurried)
    least = (LEAST_PRIORITY, LEAST_PRIORITY)
    assert given == [least, (usual, 3), least, (usual, 3)]
