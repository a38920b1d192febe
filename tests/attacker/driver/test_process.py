"""The attack in its own process: it sees every round once, in order and to the last bit, however slow it is."""

import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attacker.driver.remote import AttackProcess, RemoteAttack
from attacker.interface import attacks, silent
from tests.server.slow_attack import described
from tests.support import run_in_one_process, setting_of, small_config
from vfl import forkserver
from vfl.errors import RunFailedError, UserError, in_words
from vfl.files import tensor_file
from vfl.files.tensor_file import write_directly
from vfl.folder.summary import Queue
from vfl.folder.transcript import Transcript, TranscriptWriter, spool
from vfl.folder.transcript.spool import SLOTS

ROUNDS = 14


def left_in_memory() -> list[Path]:
    return [path for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob(f"cafe-rounds-{os.getpid()}-*")]


class Beside:
    """An attack in a process of its own, and the rounds to show it."""

    def __init__(self, out: Path, lr: float = 0.1, transcript: bool = False, **options) -> None:
        name = options.pop("name", "tests.server.slow_attack:Slow")
        self.config = small_config(
            federation={"rounds": ROUNDS}, training={"lr": lr}, attack={"name": name, **options}, transcript=transcript
        )
        self.rounds = run_in_one_process(self.config)
        self.setting = setting_of(self.config)
        self.process = AttackProcess()
        self.attack = RemoteAttack(self.config, out, self.process.pipe)

    def __enter__(self) -> "Beside":
        return self

    def __exit__(self, *_) -> None:
        self.attack.close()
        self.process.end()
        assert left_in_memory() == []

    def start(self, rounds: int = 0) -> None:
        self.attack.start(self.setting, rounds=rounds)

    def show(self, since: int = 0) -> None:
        for observation in self.rounds[since:]:
            self.attack.observe(observation)


@pytest.mark.parametrize(("lr", "versions"), [(0.1, ROUNDS), (0.0, 1)])
def test_a_slow_attack_sees_every_round_once_in_order_and_to_the_last_bit(tmp_path, lr, versions):
    with Beside(tmp_path, lr, seconds=0.1) as beside:
        beside.start()
        beside.show()
        assert list((tmp_path / "waiting").glob("round-*"))
        steps = []
        recovery = beside.attack.recover(lambda *step: steps.append(step))
        assert list(recovery.notes[:-1]) == [described(observation) for observation in beside.rounds]
        assert recovery.notes[-1] == f"{versions} versions at priority {os.getpriority(os.PRIO_PROCESS, 0)}"
        assert torch.equal(recovery.labels, torch.arange(24) % 3)
        assert steps[-1] == ("slow", 1, 1)
        assert ("observing", 1, 1) not in steps
        assert beside.attack.queue.longest > SLOTS
        assert 0 < beside.attack.queue.spilled < ROUNDS
        assert list((tmp_path / "waiting").iterdir()) == []
    assert not (tmp_path / "waiting").exists()


def test_large_rounds_that_wait_on_disk_go_there_past_the_cache_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "LARGE", 0)
    possible, written = write_directly(tmp_path / "probe", [b"x"]), []

    def noted(path, parts):
        written.append(write_directly(path, parts))
        return written[-1]

    monkeypatch.setattr(tensor_file, "write_directly", noted)
    with Beside(tmp_path, seconds=0.1) as beside:
        beside.start()
        beside.show()
        recovery = beside.attack.recover(silent)
        assert list(recovery.notes[:-1]) == [described(observation) for observation in beside.rounds]
    assert written
    assert set(written) == {possible}


def test_on_a_slow_disk_the_cache_is_left_to_take_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "LARGE", 0)
    written, clock = [], itertools.count(0, 0.6)
    monkeypatch.setattr(spool, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # each write takes 0.6 s
    monkeypatch.setattr(tensor_file, "write_directly", lambda path, _: written.append(path.name))
    with Beside(tmp_path, seconds=0.4) as beside:
        beside.start()
        beside.show()
        assert beside.attack.queue.spilled > 2
        beside.attack.recover(silent)
    assert len(written) == 4  # two rounds and their parameters


RECOVERS = """
import sys
from pathlib import Path
import torch
from attacker.interface import silent
from tests.attacker.driver.test_process import Beside

with Beside(Path(sys.argv[1]), threads=True) as beside:
    beside.start()
    beside.show()
    print(*beside.attack.recover(silent).notes)
print(torch.get_num_threads(), "threads")
"""


@pytest.mark.parametrize("threads", ["1", "64"])
def test_an_attack_recovers_on_the_threads_that_torch_takes_from_the_environment(tmp_path, threads):
    environment = {**os.environ, "OMP_NUM_THREADS": threads}  # torch may take no more than there are cores
    command = [sys.executable, "-c", RECOVERS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], env=environment)
    recovering, own = done.stdout.splitlines() or pytest.fail(done.stderr)
    assert recovering == own
    assert threads != "1" or own == "1 threads"


def test_an_attack_reads_a_transcript_that_is_kept_anyway(tmp_path):
    with Beside(tmp_path, seconds=0.05, transcript=True) as beside:
        recorder = TranscriptWriter(tmp_path / "transcript", beside.config, beside.setting)
        for observation in beside.rounds:
            recorder.observe(observation)
        beside.start()
        beside.show()
        recovery = beside.attack.recover(silent)
        assert list(recovery.notes[:-1]) == [described(observation) for observation in beside.rounds]
        assert beside.attack.queue.spilled > 0
    assert list(map(described, Transcript(tmp_path / "transcript"))) == list(map(described, beside.rounds))


def test_a_resumed_attack_starts_at_the_first_round_of_the_kept_transcript(tmp_path):
    with Beside(tmp_path, transcript=True) as beside:
        recorder = TranscriptWriter(tmp_path / "transcript", beside.config, beside.setting)
        for observation in beside.rounds:
            recorder.observe(observation)
        beside.start(rounds=5)
        beside.show(since=5)
        recovery = beside.attack.recover(silent)
        assert list(recovery.notes[:-1]) == [described(observation) for observation in beside.rounds]
        assert recovery.ledger.shown == ROUNDS
        assert beside.attack.queue.longest >= 5


def test_when_the_disk_is_full_rounds_wait_for_the_attack(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "RESERVE_BYTES", 1 << 60)
    with Beside(tmp_path, seconds=0.05) as beside:
        beside.start()
        beside.show()
        recovery = beside.attack.recover(silent)
        assert list(recovery.notes[:-1]) == [described(observation) for observation in beside.rounds]
        assert beside.attack.queue == Queue(spilled=0, longest=SLOTS)


def test_when_memory_and_disk_are_full_rounds_wait_for_the_attack(tmp_path, monkeypatch):
    monkeypatch.setattr(spool.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with Beside(tmp_path, seconds=0.05) as beside:
        beside.start()
        beside.show()
        recovery = beside.attack.recover(silent)
        assert list(recovery.notes[:-1]) == [described(observation) for observation in beside.rounds]
        assert beside.attack.queue == Queue(spilled=ROUNDS, longest=1)  # on what is left of the disk, one at a time


@pytest.mark.parametrize("full", [True, False])
def test_without_room_in_memory_rounds_wait_on_disk(tmp_path, monkeypatch, full):
    if full:
        monkeypatch.setattr(
            "vfl.folder.transcript.spool.shutil.disk_usage", lambda path: SimpleNamespace(free=free[path == tmp_path])
        )
        free = {True: 1 << 60, False: 0}
    else:
        monkeypatch.setattr(spool, "SHARED_MEMORY", tmp_path / "missing")
    with Beside(tmp_path) as beside:
        beside.start()
        beside.show()
        recovery = beside.attack.recover(silent)
        assert list(recovery.notes[:-1]) == [described(observation) for observation in beside.rounds]
        assert not full or beside.attack.queue.spilled == ROUNDS


def test_its_numbers_are_those_of_an_attack_in_this_process(tmp_path):
    with Beside(tmp_path, name="cafe", switch_one=None, switch_two=None) as beside:
        here = attacks.build(beside.config.attack).start(beside.setting)
        beside.start()
        beside.show()
        for observation in beside.rounds:
            here.observe(observation)
        found, expected = beside.attack.recover(silent), here.recover(silent)
        assert found.notes == expected.notes
        for left, right in zip(found.slices, expected.slices, strict=True):
            assert torch.equal(left, right)


def test_a_setting_that_will_not_do_is_said_at_once(tmp_path):
    with Beside(tmp_path, fails="start") as beside, pytest.raises(UserError, match="told to fail in start"):
        beside.start()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"fails": "observe"}, UserError, "told to fail in observe"),
        ({"fails": "recover"}, UserError, "told to fail in recover"),
        ({"fails": "observe", "bug": True}, RunFailedError, "slow_attack:Slow failed in observe: KeyError: 'a bug'"),
        ({"fails": "killed"}, RunFailedError, "the attack's process ended without a word"),
    ],
)
def test_what_goes_wrong_there_is_raised_here(tmp_path, options, kind, words):
    with Beside(tmp_path, **options) as beside:
        beside.start()
        with pytest.raises(kind, match=words):  # noqa: PT012
            beside.show()
            beside.attack.recover(silent)


def test_where_linux_kills_for_want_of_memory_the_sentence_says_so_and_the_attack_goes_first(tmp_path, monkeypatch):
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 1\noom_kill 3\n")
    monkeypatch.setattr(forkserver, "COUNTERS", counters)
    with Beside(tmp_path, seconds=300.0) as beside:
        beside.start()
        pid = beside.process._process.pid
        ours = int(Path("/proc/self/oom_score_adj").read_text())
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) > ours
        os.kill(pid, signal.SIGKILL)  # as Linux does, which counts it
        counters.write_text("pgfault 1\noom_kill 4\n")
        with pytest.raises(RunFailedError, match="has killed a process for want of memory since it began: end other"):
            beside.attack.recover(silent)


def test_linux_is_asked_for_its_own_count():
    counted = re.search(r"^oom_kill (\d+)$", forkserver.COUNTERS.read_text(), re.MULTILINE)
    assert forkserver.memory_kills() == int(counted[1])


def test_memory_that_is_refused_is_a_sentence_and_no_bug():
    def asked_of_torch() -> None:
        torch.empty(1 << 50, dtype=torch.uint8)

    with pytest.raises(RuntimeError) as refused:
        asked_of_torch()
    assert str(in_words(refused.value)).startswith("there is too little memory: end other programs, use fewer samples")
    assert str(in_words(MemoryError())).startswith("there is too little memory")
    assert "internal error" in str(in_words(RuntimeError("a bug")))


def test_a_coordinator_that_hangs_up_ends_it_in_the_middle_of_a_round(tmp_path):
    with Beside(tmp_path, seconds=300.0) as beside:
        beside.start()
        beside.show()
        beside.attack.close()
        beside.process._process.join(10)
        assert beside.process._process.exitcode == 0


def test_it_clears_up_itself_when_the_coordinator_was_killed(tmp_path):
    with Beside(tmp_path, seconds=300.0) as beside:
        beside.start()
        beside.show()
        slots = left_in_memory()
        assert slots
        assert (tmp_path / "waiting").exists()
        os.kill(beside.process._process.pid, signal.SIGINT)  # Ctrl-C alone does not end it
        beside.process.pipe.close()  # as the kernel does
        beside.process._process.join(10)
        assert not any(path.exists() for path in (*slots, tmp_path / "waiting"))
