"""The attack's estimate every so many rounds, kept for the referee: how far it has got by when."""

import time
from pathlib import Path

from attacker.interface import Attack, silent
from vfl.errors import UserError
from vfl.observation import Observation, Setting
from vfl.results import write_snapshot


class Snapshots:
    """Asks the attack for its estimate after every `every` rounds."""

    def __init__(self, out: Path, setting: Setting, attack: Attack, every: int) -> None:
        self._out, self._setting, self._attack, self._every = out, setting, attack, every
        self._began = time.monotonic()

    def observe(self, observation: Observation) -> None:
        """Write an estimate if one is due and the rounds so far allow one."""
        if observation.round % self._every:
            return
        seconds = time.monotonic() - self._began
        try:
            recovery = self._attack.recover(silent)
        except UserError:  # not enough rounds yet, as its sentence says at the end if that is still so
            return
        write_snapshot(self._out, self._setting, recovery, observation.round, seconds)
