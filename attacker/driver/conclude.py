"""The end of a run: the attack makes its estimate, which is written into the run's folder."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from attacker.interface import Progress, Recovery, Setting
from vfl.config import RunConfig
from vfl.errors import InterruptedRunError, UserError
from vfl.folder.events import write_events
from vfl.folder.journal import Journal
from vfl.folder.record import Record, write_summary
from vfl.folder.recovered import write_recovery

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
    journal.state("attacking")
    try:
        with stoppable(stop_signals):
            recovery = recover(journal.step)
    except UserError as error:
        if not record.withheld and not record.train.stopped_early:
            raise
        recovery = Recovery(used=(), notes=(f"The attack had too few rounds: {error}",))
    if recovery.slices is not None or recovery.representations is not None:
        write_recovery(out, setting, recovery)
    write_summary(out, config, setting, record, recovery=recovery, attack_seconds=time.monotonic() - began)
    write_events(out, record)
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
