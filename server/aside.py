"""The attack beside the training: to the coordinator an attack like any other, but at work in its own process."""

import contextlib
import os
import pickle
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attacker.interface import Progress, Recovery
from server.attending import Begin, Failed, Recover, Recovered, Seen, Step, attend
from server.shelf import Places, Shelf
from vfl.config import RunConfig
from vfl.errors import RunFailedError, from_words
from vfl.folder.results import Queue
from vfl.forkserver import context, warm_up
from vfl.observation import Observation, Setting

GRACE_SECONDS = 5.0


def needs_process(config: RunConfig) -> bool:
    """Tell whether a run has an attack that looks at the rounds."""
    return config.attack.name != "none"


def cut(pipe: Connection) -> None:
    """End a pipe for all who read or write there, those of our own threads that wait for an attack too."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


class AttackProcess:
    """The process, as whoever starts it sees it; it ends when all hold on its pipe is gone."""

    def __init__(self) -> None:
        warm_up()
        self.pipe, theirs = context().Pipe()
        self._process = context().Process(target=attend, args=(theirs,), name="attack", daemon=True)
        self._process.start()
        theirs.close()

    def end(self) -> None:
        """Hang up, and make sure that the process is gone."""
        self.pipe.close()
        self._process.join(GRACE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class Aside:
    """An attack in the process at the other end of a pipe."""

    def __init__(
        self, pipe: Connection, config: RunConfig, setting: Setting, out: Path, queue: Queue, estimates: bool = False
    ) -> None:
        self._pipe = pipe
        self._places = Places.make(out, config.records)
        self._shelf = Shelf(self._places, queue)
        try:
            self._tell(Begin(config.attack, setting, config.snapshots, out.resolve(), self._places, estimates))
            self._hear()
        except BaseException:
            self.close()
            raise

    def observe(self, observation: Observation) -> None:
        """Show the attack a round, whenever it comes to look at it; only a full disk makes this wait for the attack."""
        while self._pipe.poll() or (self._shelf.unread and not self._shelf.has_room):
            self._hear()
        self._tell(self._shelf.put(observation))

    def recover(self, progress: Progress) -> Recovery:
        """Wait until the attack has seen all rounds and made its estimate."""
        behind = self._shelf.unread
        self._tell(Recover())
        while True:
            message = self._hear()
            if isinstance(message, Recovered):
                recovery: Recovery = pickle.loads(message.recovery)  # from a process that we started, by its pipe  # nosec B301
                return recovery
            if isinstance(message, Step):
                progress(message.name, message.done, message.total)
            elif behind > 1:
                progress("observing", behind - self._shelf.unread, behind)

    def close(self) -> None:
        """Let go of the attack, wherever it is, and remove the rounds it has not read."""
        self._pipe.close()
        self._places.clear()

    def _tell(self, message: Any) -> None:
        try:
            self._pipe.send(message)
        except ConnectionError:
            while True:  # its last words say why
                self._hear()

    def _hear(self) -> Any:
        try:
            message = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise RunFailedError(
                "the attack's process ended without a word: was it killed, or was there too little memory?"
            ) from None
        if isinstance(message, Failed):
            raise from_words(message.exit_code, message.sentence)
        if isinstance(message, Seen):
            self._shelf.taken()
        return message
