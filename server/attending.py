"""The attack's own process: it observes the rounds that it is shown while the workers go on, then recovers.

It talks with the coordinator over a pipe, and ends when the pipe does: whatever happened to the coordinator, no
process and no file is left.
"""

import contextlib
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from attacker.interface import Recovery, attacks
from attacker.start import start_attack
from attacker.witness import Witness
from server.resting import WINDOW, Resting
from server.shelf import Places, Shown
from server.snapshots import Partial, Snapshots
from vfl.device import keep_freed_memory
from vfl.errors import CafeError, in_words
from vfl.folder.transcript import read_parameters, read_round
from vfl.limits import RESERVE_BYTES
from vfl.observation import ModelTensors, Observation, Setting
from vfl.registry import PluginSection

STEP_EVERY_SECONDS = 0.1
LEAST_PRIORITY = 19


@dataclass(frozen=True)
class Begin:
    """To the attack, first of all: what to run."""

    attack: PluginSection
    setting: Setting
    snapshots: int | None
    out: Path
    places: Places
    estimates: bool = False
    """Whether to show unfinished estimates while it recovers."""


@dataclass(frozen=True)
class Recover:
    """To the attack: there are no more rounds."""


@dataclass(frozen=True)
class Begun:
    """From the attack: it can do with the setting."""


@dataclass(frozen=True)
class Seen:
    """From the attack: it is done with one more round."""


@dataclass(frozen=True)
class Step:
    """From the attack: how far its recovery is."""

    name: str
    done: int
    total: int


@dataclass(frozen=True)
class Recovered:
    """From the attack: its Recovery, pickled here so that torch does not share its memory with the reader."""

    recovery: bytes


@dataclass(frozen=True)
class Failed:
    """From the attack: why it cannot go on."""

    exit_code: int
    sentence: str


def attend(pipe: Connection) -> None:
    """Serve one run at the end of a pipe. Ctrl-C is the coordinator's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setsid()  # Linux shares out time by session first: what the attack uses is not to be taken off the workers'
    keep_freed_memory()
    threads = torch.get_num_threads()  # all cores, or what OMP_NUM_THREADS says
    torch.set_num_threads(1)
    messages = _Messages(pipe)
    attacks.names()  # imports them all while the workers join
    try:
        begin = messages.get()
        _Attending(begin, messages, threads).run()
    except Exception as error:
        if not isinstance(error, CafeError | OSError):
            traceback.print_exc()
        told = in_words(error)
        messages.tell(Failed(told.exit_code, str(told)))
    messages.wait_for_the_end()


class _Messages:
    """The pipe: a thread listens all the time, so that the end of the coordinator is never missed."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: SimpleQueue[Any] = SimpleQueue()
        self._places: Places | None = None
        self.no_more_rounds = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def get(self) -> Any:
        """Wait for the next message."""
        return self._waiting.get()

    @property
    def waiting(self) -> int:
        """Return how many messages have not been looked at."""
        return self._waiting.qsize()

    def unget(self, message: Any) -> None:
        """Put back the last message."""
        self._waiting.put(message)

    def tell(self, message: Any) -> None:
        """Send a message; if nobody is there to read it, the listener is about to end this process."""
        with contextlib.suppress(ConnectionError):
            self._pipe.send(message)

    def wait_for_the_end(self) -> None:
        """Wait until the coordinator hangs up."""
        self._listener.join()

    def _listen(self) -> None:
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                if self._places is not None:
                    self._places.clear()
                os._exit(0)
            if isinstance(message, Begin):
                self._places = message.places
            elif isinstance(message, Recover):
                self.no_more_rounds.set()
            self._waiting.put(message)


class _Attending:
    """An attack at work."""

    def __init__(self, begin: Begin, messages: _Messages, threads: int) -> None:
        self._messages, self._threads = messages, threads
        self._setting = begin.setting
        self._attack = Witness(start_attack(begin.attack, begin.setting))
        self._observers: list[Callable[[Observation], None]] = [self._attack.observe]
        if begin.snapshots:
            self._observers.append(Snapshots(begin.out, begin.setting, self._attack, begin.snapshots).observe)
        self._parameters = ModelTensors((), {})
        self._out = begin.out
        self._size = 0
        """Bytes that a round takes while it waits."""
        self._resting = Resting()
        self._progress = _Progress(messages, Partial(begin.out, begin.setting) if begin.estimates else None)
        messages.tell(Begun())

    def run(self) -> None:
        """Observe out of the workers' way, what is left then at full speed, and recover."""
        no_more_rounds = self._messages.no_more_rounds
        # A thread of its own: without privileges the lowest priority is for ever.
        with ThreadPoolExecutor(1) as pool:
            thread = pool.submit(threading.get_native_id).result()
            _set_priority(thread, LEAST_PRIORITY)
            watching = pool.submit(self._observe, no_more_rounds.is_set, self._rest)
            watching.add_done_callback(lambda _: no_more_rounds.set())
            no_more_rounds.wait()
            _set_priority(thread, os.getpriority(os.PRIO_PROCESS, 0))
            watching.result()
        self._observe(lambda: False, lambda _worked: None)
        torch.set_num_threads(self._threads)  # the workers are gone
        recovery = self._attack.recover(self._progress)
        self._messages.tell(Recovered(pickle.dumps(recovery)))

    def _observe(self, enough: Callable[[], bool], rest: Callable[[float], None]) -> None:
        while not enough():
            message = self._messages.get()
            if isinstance(message, Recover):
                self._messages.unget(message)
                return
            began = time.thread_time()
            observation = self._read(message)
            for observer in self._observers:
                observer(observation)
            self._messages.tell(Seen())
            rest(time.thread_time() - began)

    def _rest(self, worked: float) -> None:
        """Leave the cores to the workers for a while, unless the rounds that wait need what is left of the disk."""
        began = time.monotonic()
        while (left := began + self._resting.after(worked) - time.monotonic()) > 0 and self._room():
            if self._messages.no_more_rounds.wait(min(left, WINDOW)):
                return

    def _room(self) -> bool:
        """Whether as much of the disk is free as the waiting rounds take, besides what no run may take."""
        return self._messages.waiting * self._size < shutil.disk_usage(self._out).free - RESERVE_BYTES

    def _read(self, shown: Shown) -> Observation:
        if shown.parameters is not None:
            self._parameters = read_parameters(shown.parameters, self._setting)
        observation = read_round(shown.round, self._setting, lambda _version: self._parameters)
        files = [path for path in (shown.round, shown.parameters) if path is not None]
        self._size = sum(path.stat().st_size for path in files)
        if shown.discard:
            for path in files:
                path.unlink()
        return observation


class _Progress:
    """What the attack is given to show how far it is: the coordinator hears of its steps, a file has its estimate."""

    def __init__(self, messages: _Messages, partial: Partial | None) -> None:
        self._messages, self._partial = messages, partial
        self._told = ("", 0.0)

    def __call__(self, name: str, done: int, total: int) -> None:
        told, when = self._told
        if name != told or done >= total or time.monotonic() - when >= STEP_EVERY_SECONDS:
            self._told = (name, time.monotonic())
            self._messages.tell(Step(name, done, total))

    def estimate(self, make: Callable[[], Recovery]) -> None:
        """Take an unfinished estimate, if anybody wants to see one now."""
        if self._partial is not None:
            self._partial.offer(make)


def _set_priority(thread: int, nice: int) -> None:
    """Change how much time a thread of this process is given beside others; Linux has this by thread and by session."""
    if sys.platform == "linux":
        with contextlib.suppress(PermissionError):  # to raise a thread's again may not be allowed
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        with contextlib.suppress(OSError):  # where sessions do not count there is no such file
            Path("/proc/self/autogroup").write_text(str(nice), encoding="ascii")
