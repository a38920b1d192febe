"""The attack's own process: it follows a curious party's transcript while the workers go on, then recovers.

Over a pipe the party (the coordinator, as the words below have it, or any other) sends `Begin`, the number of each
round that it has written, and None after the last; a malicious one also asks with `Propose` what to order next (or to
send in the round that was just written), and is answered with a pickled Proposal. The attack answers with `Ready`, then
with how many rounds it has seen, its steps as (name, done, total), and its pickled Recovery, or the error that ends it.
It ends when the pipe does: whatever happened to the coordinator, no process and no file is left.
"""

import contextlib
import os
import pickle
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from attacker.driver.follow import Follower, LiveProgress, Snapshots
from attacker.driver.pace import Pace, out_of_the_way
from attacker.driver.state import Kept, States, thin
from attacker.interface import Recovery, Setting, attacks
from attacker.start import start_attack
from vfl.device import keep_freed_memory
from vfl.errors import CafeError, from_words, in_words, is_want_of_memory
from vfl.folder.transcript.files import RoundReader
from vfl.folder.transcript.spool import Places
from vfl.forkserver import first_to_go
from vfl.limits import RESERVE_BYTES, WAITING_BYTES
from vfl.observation import PartyObservation
from vfl.registry import PluginSection


@dataclass(frozen=True)
class Begin:
    """What the coordinator says first: what to run, and where."""

    attack: PluginSection
    setting: Setting
    out: Path
    places: Places
    snapshots: int | None = None
    """After how many rounds each the attack's estimate is kept."""
    rounds: int = 0
    """How many rounds are in the transcript already: the run is resumed."""
    estimates: bool = False
    """Whether to show unfinished estimates while it recovers."""
    checkpoint_every: int | None = None
    """After how many rounds each the attack's state is kept, if it has one."""
    thins: bool = False
    """Whether the transcript is there for the attack alone: rounds that its states have seen may go."""
    waiting_bytes: int = WAITING_BYTES
    """How much may wait for the attack before the rounds do."""


@dataclass(frozen=True)
class Propose:
    """Asks what to do in a round; all rounds before it were sent, by a worker or label holder that one too."""

    round: int


@dataclass(frozen=True)
class Ready:
    """What the attack answers when it can do with the setting."""

    seen: int
    """So many rounds of those in the transcript it need not be shown again."""
    resumable: bool


def main(pipe: Connection) -> None:
    """Serve one run at the end of a pipe. Ctrl-C is the coordinator's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setsid()  # Linux shares out time by session first: what the attack uses is not to be taken off the workers'
    keep_freed_memory()
    first_to_go()
    threads = torch.get_num_threads()  # all cores, or what OMP_NUM_THREADS says
    torch.set_num_threads(1)
    line = Line(pipe)
    attacks.names()  # imports them all while the workers join
    try:
        live = LiveAttack(line.messages.get(), line)
        line.tell(live.ready)
        recovery = live.run(threads)
        line.tell(pickle.dumps(recovery))  # here, as torch would share the tensors' memory with the coordinator
    except Exception as error:
        if not isinstance(error, CafeError | OSError) and not is_want_of_memory(error):
            traceback.print_exc()
        said = in_words(error)
        line.tell(
            from_words(said.exit_code, str(said), said.code)
        )  # an error of a plug-in's own class may be unknown there
    line.listener.join()  # until the coordinator hangs up


class Line:
    """The pipe to the coordinator: a thread listens all the time, so that the coordinator's end is never missed."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._places: Places | None = None
        self.messages: SimpleQueue[Any] = SimpleQueue()
        """What to begin with, the numbers of rounds that the attack has not seen, and None after the last."""
        self.no_more_rounds = threading.Event()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def tell(self, message: Any) -> None:
        """Send a message; if the coordinator is gone, the listener is about to end this process."""
        with contextlib.suppress(ConnectionError):
            self._pipe.send(message)

    def _listen(self) -> None:
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                if self._places is not None:
                    self._places.clear()
                os._exit(0)
            if message is None:
                self.no_more_rounds.set()
            self.messages.put(message)
            if isinstance(message, Begin):
                self._places = message.places


class LiveAttack:
    """An attack that follows a transcript as it grows."""

    def __init__(self, begin: Begin, line: Line) -> None:
        self._line, self._places = line, begin.places
        snapshots = Snapshots(begin.out, begin.setting, begin.snapshots)
        self._follower = Follower(start_attack(begin.attack, begin.setting), snapshots)
        self._begin, self._states = begin, States(begin.out)
        kept = self._states.last(begin.rounds) if self._follower.resumable else Kept(0, {})
        if kept.round:
            self._follower.restore(kept.tensors)
        for number in range(kept.round + 1, begin.rounds + 1):
            line.messages.put(number)
        self.ready = Ready(kept.round, self._follower.resumable)
        self._reader = RoundReader(begin.setting, begin.places.find, checked=False, done=self._was_read)
        self._progress = LiveProgress(line.tell, begin.out, begin.setting, estimates=begin.estimates)
        self._pace = Pace()
        self._seen = 0
        self._round_bytes = 0
        """What the last round took while it waited."""

    def run(self, threads: int) -> Recovery:
        """Observe out of the workers' way, what is left after the last round at full speed, and recover."""
        over = self._line.no_more_rounds
        rest = partial(self._pace.rest, over=over, hurried=self._disk_is_needed)
        if self._follower.active:  # the party waits for what it proposes
            self._follow(over.is_set, _no_rest)
        else:
            out_of_the_way(lambda: self._follow(over.is_set, rest), over, self._disk_is_needed)
        # Still on one thread: sums depend on their number, and which rounds are left by now on the machine's load.
        self._follow(self._line.messages.empty, _no_rest)
        torch.set_num_threads(threads)  # the workers are gone
        return self._follower.recover(self._progress)

    def _follow(self, enough: Callable[[], bool], rest: Callable[[float], None]) -> None:
        began = time.thread_time()
        for number in self._follower.follow(self._rounds(enough)):
            self._keep(number)
            self._seen += 1
            self._line.tell(self._seen)
            rest(time.thread_time() - began)
            began = time.thread_time()

    def _rounds(self, enough: Callable[[], bool]) -> Iterator[PartyObservation]:
        while not enough():
            number = self._line.messages.get()
            if isinstance(number, Propose):
                self._line.tell(pickle.dumps(self._follower.propose(number.round)))
            elif number is not None:
                self._round_bytes = 0
                yield self._reader.read(number)

    def _keep(self, number: int) -> None:
        """Keep the attack's state where it is time for that, and let go of the rounds that it makes superfluous."""
        every = self._begin.checkpoint_every
        if every is None or number % every or not self._follower.resumable:
            return
        superfluous = self._states.write(number, self._follower.state())
        if self._begin.thins and superfluous:
            thin(self._places.disk, superfluous, self._follower.version_of(superfluous))

    def _was_read(self, path: Path) -> None:
        self._round_bytes += path.stat().st_size
        self._places.discard(path)

    def _disk_is_needed(self) -> bool:
        """Whether the waiting rounds take half of what may wait, or as much as is free besides what no run may take."""
        free = shutil.disk_usage(self._places.disk.parent).free - RESERVE_BYTES
        return self._line.messages.qsize() * self._round_bytes >= min(free, self._begin.waiting_bytes // 2)


def _no_rest(worked: float) -> None:
    """Go on at once."""
