"""An attack on what a coordinator recorded, without a federation."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from attacker.driver.conclude import conclude
from attacker.driver.follow import Follower, Snapshots
from attacker.interface import Setting
from attacker.start import start_attack
from vfl.config import RunConfig
from vfl.errors import UserError, in_words
from vfl.folder import clear_run
from vfl.folder.journal import Journal
from vfl.folder.record import Record
from vfl.folder.transcript import Transcript

COPIES = 4
"""How often an attack holds what it recovers, at the least: as it is, its gradient, and what an optimiser keeps."""


def attack_transcript(recorded: Transcript, config: RunConfig, folder: Path) -> None:
    """Show the config's attack all complete rounds, let it recover, and write the folder as a run would."""
    setting, rounds = recorded.setting, recorded.rounds
    next(iter(recorded), None)  # files that are not what the recorded run says end it here, before memory is taken
    if config.attack.name != "none":
        _check_size(setting)
    with _memory_errors_explained(setting):
        follower = Follower(start_attack(config.attack, setting), Snapshots(folder, setting, config.snapshots))
        clear_run(folder)
        journal = Journal(folder)
        journal.run(config, setting.samples, setting.rounds)
        journal.state("attacking")
        try:
            for number in follower.follow(recorded):
                journal.step("observing", number, rounds)
            record = Record(rounds=rounds)
            conclude(follower.recover, record, config=config, setting=setting, out=folder, journal=journal)
        except Exception as error:
            journal.state("ended", str(in_words(error)))
            raise
        finally:
            journal.close()


def _check_size(setting: Setting) -> None:
    """Refuse more samples than can be recovered here: their number is what the recorded run says of itself."""
    takes = COPIES * setting.samples * math.prod(setting.boxes[0].sample_shape) * torch.float32.itemsize
    free = psutil.virtual_memory().available
    if takes > free:
        raise UserError(
            f"the recorded run says that it has {_samples(setting)}: to recover them takes {takes / 1e9:.1f} GB of "
            f"memory or more, and {free / 1e9:.1f} GB are free; take a machine with more"
        )


@contextlib.contextmanager
def _memory_errors_explained(setting: Setting) -> Iterator[None]:
    """Turn a want of memory into a sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        short = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
        if not short:
            raise
        says = f"which says that it has {_samples(setting)}; take a machine with more"
        raise UserError(f"there is too little memory to attack the recorded run, {says}") from None


def _samples(setting: Setting) -> str:
    return f"{setting.samples} samples of shape {'x'.join(map(str, setting.boxes[0].sample_shape))}"
