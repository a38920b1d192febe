"""An attack on what curious parties recorded, without a federation."""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import torch

from attacker.driver.conclude import Attacked, attacked, conclude
from attacker.driver.follow import Follower, Snapshots
from attacker.interface import Setting
from attacker.start import start_attack
from vfl.config import RunConfig
from vfl.errors import UserError, in_words, is_want_of_memory
from vfl.folder import clear_run, make_way
from vfl.folder.journal import Journal
from vfl.folder.record import Record
from vfl.folder.transcript import Transcript
from vfl.observation import AnyObservation, CoalitionObservation, united

COPIES = 4
"""How often an attack holds what it recovers, at the least: as it is, its gradient, and what an optimiser keeps."""


def attack_transcript(
    transcript: Transcript,
    config: RunConfig,
    folder: Path,
    *,
    others: Sequence[Transcript] = (),
    most: int | None = None,
) -> None:
    """Show the config's attack all complete rounds, let it recover, and write the folder as a run would.

    With `others` of the same run it is that of a coalition, which is shown each round as all of them saw it. `most` is
    how many rounds are shown at the most, the first ones.
    """
    recorded = (transcript, *others)
    setting = _known(recorded, config)
    rounds = min([one.rounds for one in recorded] + ([] if most is None else [most]))
    with memory_errors_explained(setting):
        follower = Follower(start_attack(config.attack, setting), Snapshots(folder, setting, config.snapshots))
        moved = make_way(folder, config, records=False)
        journal = Journal(folder)
        journal.run(config, setting.samples, setting.rounds)
        if moved:
            journal.say(moved)
        try:
            _show(follower, recorded, journal, rounds)
            record = Record(rounds=rounds)
            conclude(follower.recover, record, config=config, setting=setting, out=folder, journal=journal)
        except UserError:  # a round that is not what the run says: it is as if nothing had been started
            journal.close()
            clear_run(folder)
            raise
        except Exception as error:
            journal.state("ended", str(in_words(error)))
            raise
        finally:
            journal.close()


def attack_together(recorded: Sequence[Transcript], config: RunConfig, folder: Path) -> Attacked:
    """Let the attack of a coalition recover in the folder of the run, whose summary the coordinator has written."""
    setting, journal = _known(recorded, config), Journal(folder)
    try:
        with memory_errors_explained(setting):
            follower = Follower(start_attack(config.attack, setting), Snapshots(folder, setting, config.snapshots))
            _show(follower, recorded, journal, min(one.rounds for one in recorded))
            return attacked(follower.recover, config, setting, folder, journal=journal)
    finally:
        journal.close()


def _known(recorded: Sequence[Transcript], config: RunConfig) -> Setting:
    """Return what all that recorded the run knew together; files that are not what the run says end it here."""
    setting = united([one.setting for one in recorded])
    for one in recorded:
        next(iter(one), None)
    if config.attack.name != "none":
        check_size(setting)
    return setting


def _show(follower: Follower, recorded: Sequence[Transcript], journal: Journal, most: int) -> None:
    journal.state("attacking")
    rounds: Iterator[AnyObservation] = iter(recorded[0]) if len(recorded) == 1 else _together(recorded)
    for number in follower.follow(itertools.islice(rounds, most)):
        journal.step("observing", number, most)


def _together(recorded: Sequence[Transcript]) -> Iterator[AnyObservation]:
    for parts in zip(*recorded, strict=False):  # a run that was cut off may have one round more at one party
        if len({(part.round, part.version) for part in parts}) > 1:
            numbers = " and ".join(str(part.round) for part in parts)
            raise UserError(f"the transcripts are not of the same run: they have rounds {numbers} side by side")
        yield CoalitionObservation(parts)


def check_size(setting: Setting) -> None:
    """Refuse more samples than can be recovered here: their number is what the recorded run says of itself."""
    takes = COPIES * setting.samples * math.prod(setting.boxes[0].sample_shape) * torch.float32.itemsize
    free = psutil.virtual_memory().available
    if takes > free:
        raise UserError(
            f"the recorded run says that it has {_samples(setting)}: to recover them takes {takes / 1e9:.1f} GB of "
            f"memory or more, and {free / 1e9:.1f} GB are free; take a machine with more"
        )


@contextlib.contextmanager
def memory_errors_explained(setting: Setting) -> Iterator[None]:
    """Turn a want of memory into a sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_want_of_memory(error):
            raise
        says = f"which says that it has {_samples(setting)}; take a machine with more"
        raise UserError(f"there is too little memory to attack the recorded run, {says}") from None


def _samples(setting: Setting) -> str:
    return f"{setting.samples} samples of shape {'x'.join(map(str, setting.boxes[0].sample_shape))}"
