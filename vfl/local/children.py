"""The processes of a run on this machine: started from the fork server, waited for, and none left behind."""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any

from attacker.driver.conclude import Attacked
from attacker.driver.remote import AttackProcess
from server.disturbances import WorkerLeftError
from vfl.errors import CafeError, from_words, in_words, is_want_of_memory
from vfl.forkserver import context, end_process, end_with_parent, memory_kills, silent_end, warm_up
from worker.session import Finished

GRACE_SECONDS = 15.0
JOINED = "all workers have joined"


@dataclass(frozen=True)
class Outcome:
    """How a process ended: 0, or an exit code with a sentence; `blames` names the worker that it says is at fault."""

    code: int = 0
    sentence: str = ""
    error_code: str = "E62"
    """As in docs/errors.md; a process that says nothing has left its federation."""
    blames: int | None = None
    wordless: bool = False
    """Whether the process said nothing itself: it was killed."""

    def as_error(self, sentence: str = "") -> CafeError:
        """Return the error that the process ended with, in these words instead of its own if there are any."""
        return from_words(self.code or 1, sentence or self.sentence, self.error_code)


def _child_main(target: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    """Run a role in its own process and send its outcome home; Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        target(pipe, *arguments)
        outcome = Outcome()
    except Exception as error:  # the parent must hear of bugs too, with the traceback on standard error
        if not isinstance(error, CafeError | OSError) and not is_want_of_memory(error):
            import traceback

            traceback.print_exc()
        failure = in_words(error)
        blames = failure.worker if isinstance(failure, WorkerLeftError) else None
        outcome = Outcome(failure.exit_code, str(failure), failure.code, blames)
    pipe.send(outcome)


class Child:
    """A process with a pipe on which it sends values and, last of all, its outcome."""

    def __init__(self, name: str, process: ForkServerProcess, pipe: Connection) -> None:
        self.name, self.process, self.pipe = name, process, pipe
        self._kills = memory_kills()
        self.outcome: Outcome | None = None
        self.finished: Finished | None = None
        self.attacked: Attacked | None = None
        """What the attack of a curious worker, or of a coalition, found."""

    def receive(self) -> Any:
        """Wait for the next value, or the outcome when the process ends without one."""
        try:
            value = self.pipe.recv()
        except EOFError:
            self.process.join(GRACE_SECONDS)
            words = silent_end(self.name, self._kills, f" (exit code {self.process.exitcode})")
            value = Outcome(1, words, wordless=True)
        if isinstance(value, Outcome):
            self.outcome = value
        elif isinstance(value, Finished):
            self.finished = value
        elif isinstance(value, Attacked):
            self.attacked = value
        return value


class Children:
    """All processes of a run."""

    def __init__(self, trains: bool = False) -> None:
        warm_up(trains)
        self._context = context()
        self._all: list[Child] = []
        self._attack: AttackProcess | None = None

    def start_attack(self) -> Connection:
        """Start the attack's process; return the pipe for the coordinator."""
        self._attack = AttackProcess()
        return self._attack.pipe

    def start(self, name: str, target: Callable[..., None], *arguments: Any) -> Child:
        """Start a process."""
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_child_main, args=(target, theirs, *arguments), name=name, daemon=True)
        process.start()
        theirs.close()
        child = Child(name, process, ours)
        self._all.append(child)
        return child

    def wait_for(self, coordinator: Child) -> Outcome:
        """Wait for the coordinator's outcome; a worker that fails before all have joined ends the run at once."""
        joined = False
        while coordinator.outcome is None:
            silent = [child for child in self._all if child.outcome is None]
            for pipe in wait([child.pipe for child in silent]):
                child = next(child for child in silent if child.pipe is pipe)
                joined = child.receive() == JOINED or joined
                if not joined and child is not coordinator and child.outcome and child.outcome.code:
                    return replace(child.outcome, sentence=f"{child.name}: {child.outcome.sentence}")
        return coordinator.outcome

    def attacked_by(self, child: Child) -> Attacked:
        """Wait for what the attack of another party than the coordinator finds, or fail as it failed."""
        while child.attacked is None and child.outcome is None:
            child.receive()
        if child.attacked is None:
            assert child.outcome is not None
            ended = child.outcome.sentence or f"the {child.name} ended before its attack had recovered"
            raise child.outcome.as_error(ended)
        return child.attacked

    def child(self, name: str) -> Child:
        """Return the process of this name."""
        return next(child for child in self._all if child.name == name)

    def root_cause(self, outcome: Outcome) -> Outcome:
        """Put the words of the worker that is blamed beside the coordinator's."""
        if outcome.blames is None:
            return outcome
        child = self.child(f"worker {outcome.blames}")
        if child.outcome is None and child.pipe.poll(GRACE_SECONDS):
            child.receive()
        if child.outcome is None or not child.outcome.sentence:
            return outcome
        both = f"{outcome.sentence}; it says: {child.outcome.sentence}"
        return replace(child.outcome, code=child.outcome.code or 1, sentence=both)

    def defence_reports(self) -> list[dict[str, Any]]:
        """Return what the workers' defences say at the end; the coordinator never hears of it."""
        deadline = time.monotonic() + GRACE_SECONDS
        for child in self._all:
            while child.outcome is None and child.pipe.poll(max(0.0, deadline - time.monotonic())):
                child.receive()
        return [child.finished.defence for child in self._all if child.finished]

    def interrupt(self) -> None:
        """Ask the coordinator to stop; it tells the workers and writes down what is done."""
        if not self._all or not self._all[0].process.is_alive():
            return  # all that is left is a curious worker's attack, which `end` stops
        self._all[0].process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for child in self._all:
            child.process.join(max(0.0, deadline - time.monotonic()))

    def end(self) -> None:
        """Make sure that no process is left."""
        for child in self._all:
            child.process.join(2.0 if child.outcome else 0.0)
        for child in self._all:
            if child.process.is_alive():
                child.process.terminate()
        for child in self._all:
            end_process(child.process, 3.0)
        if self._attack is not None:
            self._attack.end()
