"""One recorded run of a federation in which every party keeps what it sees: attacked many times afterwards."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from vfl.audit.plan import all_seats
from vfl.audit.schema import Training
from vfl.config import RunConfig, parse_config
from vfl.datasets import Data
from vfl.errors import InterruptedRunError, UserError
from vfl.files import write_text
from vfl.folder import transcript_of
from vfl.folder.recorded_config import names_of
from vfl.folder.summary import Summary, load_summary
from vfl.folder.transcript import Transcript
from vfl.local.launch import LaunchOptions, run_federation
from vfl.registry import PluginSection
from vfl.seats import Seat, adversary_of

RUN = "run.yaml"
LATE = "in the time that it had; give a larger --budget"


@dataclass(frozen=True)
class Recording:
    """Where each seat's transcript is, and the summary of the run that they are of, if this audit ran it."""

    transcripts: dict[Seat, Path]
    config: RunConfig
    summary: Summary | None = None
    trusted: tuple[str, ...] = ()
    """Changes that name the code which the user's own config names: `cafe attack` imports no other."""

    @property
    def training(self) -> Training:
        """Return what training came to and took."""
        if self.summary is None:
            return Training(rounds=min(Transcript(path).rounds for path in self.transcripts.values()))
        return training_of(self.summary, self.config)


def training_of(summary: Summary, config: RunConfig) -> Training:
    """Return what a run's training came to and took."""
    wire = summary.bytes
    return Training(
        rounds=summary.rounds,
        planned=config.federation.planned_rounds(summary.samples or 1),
        loss=summary.train.loss_end,
        accuracy=summary.train.test_accuracy,
        seconds=summary.seconds.federation,
        bytes=wire.up + wire.down + wire.peer,
    )


def recorded_config(
    config: RunConfig, defence: Any = None, *, rounds: int | None = None, auxiliary: int = 0
) -> RunConfig:
    """Return the config of a run that attacks nothing, and in which every party keeps what it sees."""
    tree = config.model_dump(mode="json")
    tree["auxiliary"] = auxiliary or tree["auxiliary"]
    tree |= {"adversary": adversary_of(all_seats(config.topology)), "attack": {"name": "none"}, "transcript": True}
    tree["snapshots"] = tree["federation"]["checkpoint_every"] = None
    if defence is not None:
        tree["defence"] = defence
    if rounds is not None:
        tree["federation"] |= {"rounds": rounds, "epochs": None}
    return parse_config(tree, "the audit's config")


def played_config(recorded: RunConfig, adversary: Any, attack: PluginSection) -> RunConfig:
    """Return the config of the same run with one party that breaks the protocol as its attack proposes."""
    tree = recorded.model_dump(mode="json") | {"adversary": adversary, "attack": attack.model_dump(mode="json")}
    known = 0 if "coordinator" in adversary else tree["auxiliary"]  # who holds no data of anybody
    return parse_config(tree | {"transcript": False, "auxiliary": known}, "the audit's config")


def write_config(config: RunConfig, folder: Path) -> None:
    """Write a run's config into its folder."""
    write_text(folder / RUN, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


def record(config: RunConfig, folder: Path, data: Data, seconds: float) -> Recording:
    """Run a federation and keep what each party sees; after so many seconds with the rounds that were done by then."""
    folder.mkdir(parents=True, exist_ok=True)
    write_config(config, folder)
    with _alarm(seconds) as over:
        try:
            run_federation(config, data, folder, LaunchOptions(fresh=True))
        except (InterruptedRunError, KeyboardInterrupt):  # the latter before there are processes to stop
            if not over.is_set():
                raise KeyboardInterrupt from None  # the user's
    if over.is_set() and not (folder / "summary.json").exists():
        raise UserError(f"{folder}: the run had not begun {LATE}")
    return recorded(config, folder)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[threading.Event]:
    """Stop the block after so many seconds as Ctrl-C would; the event says that it was this and not the user."""
    over = threading.Event()

    def ring(_number: int, _frame: FrameType | None) -> None:
        over.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, seconds))
    try:
        yield over
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def recorded(config: RunConfig, folder: Path) -> Recording:
    """Return what an earlier `record` left in a folder."""
    found = {seat: transcript_of(folder, config, seat.worker) for seat in config.seats}
    summary = load_summary(folder)
    for seat, path in found.items():
        if Transcript(path).rounds < 1:
            why = f"before the run ended ({summary.ended})" if summary.withheld else LATE
            raise UserError(f"{folder}: {seat} saw no whole round {why}")
    tree = config.model_dump(mode="json")
    named = names_of({key: tree[key] for key in ("model", "data")})
    trusted = tuple(f"{key}={name}" for key, name in named if ":" in name)
    return Recording(found, config, summary, trusted)
