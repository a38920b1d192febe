"""The attack's process as the coordinator, or another curious party, has it: to be shown rounds, and to recover."""

import contextlib
import os
import pickle
import socket
from collections import deque
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attacker.driver.process import Begin, Propose, Ready, main
from attacker.interface import Progress, Proposal, Recovery, Setting
from vfl.config import RunConfig
from vfl.errors import CafeError, InterruptedRunError, RunFailedError
from vfl.folder.recovered import PARTIAL
from vfl.folder.summary import Queue
from vfl.folder.transcript.files import files_of
from vfl.folder.transcript.spool import SLOTS, Places, Spool
from vfl.forkserver import context, end_process, memory_kills, silent_end, warm_up
from vfl.observation import PartyObservation

GRACE_SECONDS = 5.0


class AttackProcess:
    """The process, which ends when all hold on its pipe is gone."""

    def __init__(self) -> None:
        warm_up()
        self.pipe, theirs = context().Pipe()
        self._process = context().Process(target=main, args=(theirs,), name="attack", daemon=True)
        self._process.start()
        theirs.close()

    def end(self) -> None:
        """Hang up, and make sure that the process is gone."""
        self.pipe.close()
        end_process(self._process, GRACE_SECONDS)


class RemoteAttack:
    """An attack in the process at the other end of a pipe, and the transcript that it follows."""

    def __init__(self, config: RunConfig, out: Path, pipe: Connection | None = None) -> None:
        """Prepare; without a pipe to a process, `start` makes one."""
        self._config, self._out, self._pipe = config, out, pipe
        self.queue = Queue()
        self._unread = 0
        self._process: AttackProcess | None = None
        self._places: Places | None = None
        self._spool: Spool | None = None
        """None if the transcript is kept: each round is then in it before it is shown."""
        self._is_cut = False
        self._waiting: deque[int] = deque()
        """The bytes of the rounds that the attack has not read; of those before a run was resumed, 0."""
        self._version = 0
        self._kills = memory_kills()
        self._bounded = False
        """Whether so much may wait and no more: what the user wants to keep is kept, however much it is."""

    def start(self, setting: Setting, *, rounds: int = 0, estimates: bool = False) -> None:
        """Start the attack; of a run that is resumed, so many rounds are in its transcript already."""
        if self._pipe is None:
            self._process = AttackProcess()
            self._pipe = self._process.pipe
        if self._is_cut:
            raise InterruptedRunError("stopped before the end")
        self._places = Places.make(self._out, kept=self._config.records)
        if not self._config.records:
            self._spool = Spool(self._places)
        begin = Begin(self._config.attack, setting, self._out.resolve(), self._places, self._config.snapshots)
        every, asked_for = self._config.federation.checkpoint_every, self._config.transcript
        begin = replace(begin, rounds=rounds, estimates=estimates, checkpoint_every=every, thins=not asked_for)
        self._tell(replace(begin, waiting_bytes=self._limit))
        ready = self._hear()
        assert isinstance(ready, Ready)
        self._unread = self.queue.longest = rounds - ready.seen
        self._waiting.extend([0] * self._unread)
        self._bounded = self._spool is not None or (ready.resumable and not asked_for)

    def observe(self, observation: PartyObservation) -> None:
        """Show the attack a round, which it looks at later, unless too much waits for it already."""
        assert self._pipe is not None
        files = files_of(observation, new_parameters=observation.version != self._version)
        size = sum(tensor.nbytes for file in files for tensor in file.tensors.values())
        self._version = observation.version
        while self._pipe.poll() or (self._unread and not self._has_room(size)):
            self._hear()
        self._waiting.append(size)
        on_disk = self._unread >= SLOTS if self._spool is None else self._spool.write(observation)
        self._unread += 1
        self.queue.longest = max(self.queue.longest, self._unread)
        self.queue.spilled += on_disk
        self._tell(observation.round)

    def propose(self, number: int) -> Proposal | None:
        """Ask the attack what to do in a round, when it has seen all that were shown."""
        self._tell(Propose(number))
        while True:
            message = self._hear()
            if isinstance(message, bytes):
                proposal: Proposal | None = pickle.loads(message)  # as in `recover`  # nosec B301
                return proposal

    def _has_room(self, size: int) -> bool:
        if self._spool is not None and not self._spool.has_room:
            return False
        return not self._bounded or sum(self._waiting) + size <= self._limit

    @property
    def _limit(self) -> int:
        return round(self._config.waiting_gb * 1e9)

    def recover(self, progress: Progress) -> Recovery:
        """Wait until the attack has seen all rounds and made its estimate."""
        behind = self._unread
        self._tell(None)
        while True:
            message = self._hear()
            if isinstance(message, bytes):
                recovery: Recovery = pickle.loads(message)  # from a process that we started, by its pipe  # nosec B301
                return recovery
            if isinstance(message, tuple):
                progress(*message)
            elif behind > 1:
                progress("observing", behind - self._unread, behind)

    def cut(self) -> None:
        """End the pipe, also for a thread of this process that waits for the attack."""
        self._is_cut = True
        if self._pipe is not None:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._pipe.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the attack, wherever it is, and remove what is left of its rounds and its estimates."""
        if self._pipe is not None:
            self._pipe.close()
        if self._places is not None:
            self._places.clear()
            (self._out / PARTIAL).unlink(missing_ok=True)
        if self._process is not None:
            self._process.end()

    def _tell(self, message: Any) -> None:
        assert self._pipe is not None
        try:
            self._pipe.send(message)
        except ConnectionError:
            while True:  # its last words say why
                self._hear()

    def _hear(self) -> Any:
        assert self._pipe is not None
        try:
            message = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise RunFailedError(silent_end("attack's process", self._kills)) from None
        if isinstance(message, CafeError):
            raise message
        if isinstance(message, int) and message:
            self._unread -= 1
            self._waiting.popleft()
            if self._spool is not None:
                self._spool.was_read()
        return message
