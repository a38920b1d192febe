"""Shows an attack the rounds of a transcript, keeps the ledger of what its recovery rests on, and shows estimates."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from attacker.interface import Attack, Progress, Proposal, Recovery, Resumable, Setting, silent
from vfl.errors import UserError
from vfl.folder.recovered import write_partial, write_snapshot
from vfl.observation import AnyObservation
from vfl.recovery import SEEN, Ledger

_VERSIONS, _SECONDS = "versions by round", "seconds so far"
KNOWN = (*SEEN, "indices", "parameters", "labels", "learning rate")


class Follower:
    """An attack that follows a transcript."""

    def __init__(self, attack: Attack, snapshots: "Snapshots | None" = None) -> None:
        self._attack, self._snapshots = attack, snapshots
        self._versions: dict[int, int] = {}
        """Of the parameters, by round."""

    def follow(self, rounds: Iterable[AnyObservation]) -> Iterator[int]:
        """Show the attack one round after the other; yield the number of each that it is done with.

        Rounds that lack what the attack would need, because a worker withheld its upload, are passed over.
        """
        if not self._versions and self._snapshots is not None and (begins := getattr(self._attack, "beginning", None)):
            self._snapshots.take(0, lambda _progress: begins())
        for observation in rounds:
            if observation.shown:
                self._attack.observe(observation)
                self._versions[observation.round] = observation.version
                if self._snapshots is not None:
                    self._snapshots.take(observation.round, self.recover)
            yield observation.round

    @property
    def active(self) -> bool:
        """Whether the attack proposes what a malicious party orders or sends."""
        return getattr(self._attack, "propose", None) is not None

    def propose(self, number: int) -> Proposal | None:
        """Return what the attack wants done in a round."""
        propose = getattr(self._attack, "propose", None)
        proposed: Proposal | None = None if propose is None else propose(number)
        return proposed

    @property
    def resumable(self) -> bool:
        """Whether the attack can go on from a state."""
        return bool(getattr(self._attack, "resumable", isinstance(self._attack, Resumable)))

    def version_of(self, number: int) -> int:
        """Return the version of the parameters of a round that was shown, or of the last one before it."""
        return max((version for shown, version in self._versions.items() if shown <= number), default=0)

    def state(self) -> dict[str, Tensor]:
        """Return the attack's state, and what its ledger needs."""
        assert isinstance(self._attack, Resumable)
        versions = torch.tensor([*self._versions.items()], dtype=torch.int64).reshape(-1, 2)
        seconds = 0.0 if self._snapshots is None else self._snapshots.seconds
        return {**self._attack.state(), _VERSIONS: versions, _SECONDS: torch.tensor(seconds, dtype=torch.float64)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Let the attack go on from a state."""
        assert isinstance(self._attack, Resumable)
        self._versions = dict(state[_VERSIONS].tolist())
        if self._snapshots is not None:
            self._snapshots.seconds = float(state[_SECONDS])
        self._attack.restore({name: one for name, one in state.items() if name not in (_VERSIONS, _SECONDS)})

    def recover(self, progress: Progress) -> Recovery:
        """Return the attack's estimate from the rounds so far, with its ledger."""
        recovery = self._attack.recover(progress)
        return replace(recovery, ledger=_ledger(recovery, self._versions)) if recovery.used else recovery


def _ledger(recovery: Recovery, versions: Mapping[int, int]) -> Ledger:
    rounds = tuple(versions) if recovery.rounds is None else recovery.rounds
    return Ledger(
        rounds=rounds,
        versions=len({versions[number] for number in rounds}),
        shown=len(versions),
        seen=tuple(what for what in SEEN if what in recovery.used) or ("gradients",),
        indices="indices" in recovery.used,
        parameters="parameters" in recovery.used,
        labels="labels" in recovery.used,
        learning_rate="learning rate" in recovery.used,
        other=tuple(what for what in recovery.used if what not in KNOWN),
    )


STEP_EVERY_SECONDS = 0.1
ESTIMATE_EVERY_SECONDS = 2.0


class Snapshots:
    """Asks the attack for its estimate after every `every` rounds, if that is a number."""

    def __init__(self, out: Path, setting: Setting, every: int | None) -> None:
        self._out, self._setting, self._every = out, setting, every
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return how long the attack has been at it, the time before it was resumed included."""
        return time.monotonic() - self._began

    @seconds.setter
    def seconds(self, before: float) -> None:
        self._began = time.monotonic() - before

    def take(self, number: int, recover: Callable[[Progress], Recovery]) -> None:
        """Write an estimate if one is due after this round and the rounds so far allow one."""
        if self._every is None or number % self._every:
            return
        seconds = self.seconds
        try:
            recovery = recover(silent)
        except UserError:  # not enough rounds yet, as its sentence says at the end if that is still so
            return
        write_snapshot(self._out, self._setting, recovery, number=number, seconds=seconds)


class LiveProgress:
    """What the attack is given to show how far it is: the coordinator gets its steps, a file its estimate so far."""

    def __init__(
        self, send: Callable[[tuple[str, int, int]], None], out: Path, setting: Setting, *, estimates: bool
    ) -> None:
        self._send, self._out, self._setting, self._estimates = send, out, setting, estimates
        self._step, self._sent = "", 0.0
        self._written = time.monotonic()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Send a step, if it is a new one, the last of its kind, or some time has passed since the one before."""
        if step != self._step or done >= total or time.monotonic() - self._sent >= STEP_EVERY_SECONDS:
            self._step, self._sent = step, time.monotonic()
            self._send((step, done, total))

    def estimate(self, make: Callable[[], Recovery]) -> None:
        """Write what `make` returns, if the user wants to see estimates and it is time for one."""
        if self._estimates and time.monotonic() - self._written >= ESTIMATE_EVERY_SECONDS:
            with contextlib.suppress(OSError):  # a full disk is no reason to end an attack that need not write yet
                write_partial(self._out, self._setting, make())
            self._written = time.monotonic()
