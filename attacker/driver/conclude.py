"""The end of a run: the attack makes its estimate, which is written into the run's folder."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from attacker.interface import Progress, Recovery, Setting
from vfl.config import RunConfig
from vfl.errors import InterruptedRunError, UserError
from vfl.folder.events import write_events
from vfl.folder.journal import Journal
from vfl.folder.record import Record, attack_part, write_summary
from vfl.folder.recovered import write_recovery
from vfl.folder.summary import Attack as AttackPart

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What a person sends to stop a coordinator; `cafe run` passes Ctrl-C on as SIGTERM."""


def conclude(
    recover: Callable[[Progress], Recovery],
    record: Record,
    *,
    config: RunConfig,
    setting: Setting,
    out: Path,
    journal: Journal,
    stop_signals: tuple[signal.Signals, ...] = STOP_SIGNALS,
) -> Recovery:
    """Let the attack recover and write down what it found; too few rounds are no error if the run was cut short."""
    began = time.monotonic()
    try:
        with stoppable(stop_signals):
            recovery = _recovered(recover, setting, out, journal)
    except UserError as error:
        if not record.withheld and not record.train.stopped_early:
            raise
        recovery = Recovery(used=(), notes=(f"The attack had too few rounds: {error}",))
    write_summary(out, config, setting, record, recovery=recovery, attack_seconds=time.monotonic() - began)
    write_events(out, record)
    return recovery


@dataclass(frozen=True)
class Attacked:
    """What an attack that is not the coordinator's adds to the run's summary."""

    attack: AttackPart
    seconds: float


def attacked(
    recover: Callable[[Progress], Recovery], config: RunConfig, setting: Setting, out: Path, *, journal: Journal
) -> Attacked:
    """Let an attack recover in the folder of a run whose summary the coordinator writes."""
    began = time.monotonic()
    recovery = _recovered(recover, setting, out, journal)
    return Attacked(attack_part(config, recovery), time.monotonic() - began)


def _recovered(recover: Callable[[Progress], Recovery], setting: Setting, out: Path, journal: Journal) -> Recovery:
    journal.state("attacking")
    recovery = recover(journal.step)
    if any(part is not None for part in (recovery.slices, recovery.representations, recovery.labels)):
        write_recovery(out, setting, recovery)
    return recovery


@contextlib.contextmanager
def stoppable(signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Let the first signal end the block with a sentence; further ones do not disturb what is written down then."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)
        raise InterruptedRunError("stopped before the end")

    before = {one: signal.signal(one, stop) for one in signals}
    try:
        yield
    finally:
        for one, handler in before.items():
            if signal.getsignal(one) is stop:  # a run that was stopped goes on ignoring signals
                signal.signal(one, handler)
