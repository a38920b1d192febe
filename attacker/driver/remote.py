"""The attack's process as the coordinator, or another curious party, has it: to be shown rounds, and to recover."""

import contextlib
import os
import pickle
import socket
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attacker.driver.process import Begin, main
from attacker.interface import Progress, Recovery, Setting
from vfl.config import RunConfig
from vfl.errors import CafeError, InterruptedRunError, RunFailedError
from vfl.folder.recovered import PARTIAL
from vfl.folder.summary import Queue
from vfl.folder.transcript.spool import SLOTS, Places, Spool
from vfl.forkserver import context, end_process, warm_up
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

    def start(self, setting: Setting, *, rounds: int = 0, estimates: bool = False) -> None:
        """Start the attack; of a run that is resumed, so many rounds are in its transcript already."""
        if self._pipe is None:
            self._process = AttackProcess()
            self._pipe = self._process.pipe
        if self._is_cut:
            raise InterruptedRunError("stopped before the end")
        self._unread = self.queue.longest = rounds
        self._places = Places.make(self._out, kept=self._config.records)
        if not self._config.records:
            self._spool = Spool(self._places)
        begin = Begin(self._config.attack, setting, self._out.resolve(), self._places, self._config.snapshots)
        self._tell(replace(begin, rounds=rounds, estimates=estimates))
        self._hear()

    def observe(self, observation: PartyObservation) -> None:
        """Show the attack a round, which it looks at later; only a full disk makes this wait for the attack."""
        assert self._pipe is not None
        while self._pipe.poll() or (self._unread and self._spool is not None and not self._spool.has_room):
            self._hear()
        on_disk = self._unread >= SLOTS if self._spool is None else self._spool.write(observation)
        self._unread += 1
        self.queue.longest = max(self.queue.longest, self._unread)
        self.queue.spilled += on_disk
        self._tell(observation.round)

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
            ended = "the attack's process ended without a word"
            raise RunFailedError(f"{ended}: was it killed, or was there too little memory?") from None
        if isinstance(message, CafeError):
            raise message
        if isinstance(message, int) and message:
            self._unread -= 1
            if self._spool is not None:
                self._spool.was_read()
        return message
