"""One recorded run of a federation in which every party keeps what it sees: attacked many times afterwards."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vfl.audit.plan import all_seats
from vfl.audit.schema import Training
from vfl.config import RunConfig, parse_config
from vfl.errors import UserError, from_words
from vfl.files import write_text
from vfl.folder import transcript_of
from vfl.folder.recorded_config import names_of
from vfl.folder.summary import Summary, load_summary
from vfl.folder.transcript import Transcript
from vfl.forkserver import memory_kills
from vfl.local.command import OutOfTimeError, last_words, run_command
from vfl.seats import Seat, adversary_of

RUN = "run.yaml"


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


def recorded_config(config: RunConfig, defence: Any = None, rounds: int | None = None) -> RunConfig:
    """Return the config of a run that attacks nothing, and in which every party keeps what it sees."""
    tree = config.model_dump(mode="json")
    tree |= {"adversary": adversary_of(all_seats(config.topology)), "attack": {"name": "none"}, "transcript": True}
    tree["snapshots"] = tree["federation"]["checkpoint_every"] = None
    if defence is not None:
        tree["defence"] = defence
    if rounds is not None:
        tree["federation"] |= {"rounds": rounds, "epochs": None}
    return parse_config(tree, "the audit's config")


def record(config: RunConfig, folder: Path, stop: threading.Event, seconds: float) -> Recording:
    """Run a federation and keep what each party sees; after so many seconds with the rounds that were done by then."""
    folder.mkdir(parents=True, exist_ok=True)
    file, log = folder / RUN, folder / "log.txt"
    write_text(file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    kills = memory_kills()
    with log.open("wb") as said:
        try:
            code = run_command(
                ["run", str(file), "--out", str(folder), "--quiet", "--fresh"], said, stop, seconds=seconds
            )
        except OutOfTimeError:
            code = 0
    if code:
        raise from_words(code, last_words(log, code, kills))
    return recorded(config, folder)


def recorded(config: RunConfig, folder: Path) -> Recording:
    """Return what an earlier `record` left in a folder."""
    found = {seat: transcript_of(folder, config, seat.worker) for seat in config.seats}
    for seat, path in found.items():
        if Transcript(path).rounds < 1:
            raise UserError(f"{path}: {seat} saw no whole round in the time that it had; give a larger --budget")
    tree = config.model_dump(mode="json")
    named = names_of({key: tree[key] for key in ("model", "data")})
    trusted = tuple(f"{key}={name}" for key, name in named if ":" in name)
    return Recording(found, config, load_summary(folder), trusted)
