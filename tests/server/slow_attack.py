"""An attack for the tests: as slow as it is told to be, it fails where it is told to, and says what it has seen."""

import os
import time
from pathlib import Path
from typing import Literal

import torch

from attacker.interface import Attack, AttackPlugin, Observation, Progress, Recovery, Setting
from vfl.errors import UserError

Where = Literal["nowhere", "start", "observe", "recover", "killed"]


class Slow(AttackPlugin):
    seconds: float = 0.0
    fails: Where = "nowhere"
    bug: bool = False
    hangs: bool = False
    pid: Path | None = None
    """A file for the number of the process that observes."""
    threads: bool = False
    """Say how many threads it recovers on, and nothing else."""

    def start(self, setting: Setting) -> Attack:
        self.fail("start")
        if self.hangs:
            assert self.pid is not None
            self.pid.write_text(str(os.getpid()))
            time.sleep(3600)
        return _Slow(self, setting.samples)

    def fail(self, where: Where) -> None:
        if self.fails == where:
            raise KeyError("a bug") if self.bug else UserError(f"attack slow: it was told to fail in {where}")


class _Slow:
    def __init__(self, options: Slow, samples: int) -> None:
        self._options, self._samples = options, samples
        self._seen: list[str] = []
        self._versions: list[object] = []

    def observe(self, observation: Observation) -> None:
        time.sleep(self._options.seconds)
        if self._options.pid is not None:
            self._options.pid.write_text(str(os.getpid()))
        if self._options.fails == "killed" and observation.round == 3:
            os.kill(os.getpid(), 9)
        if observation.round == 3:
            self._options.fail("observe")
        if not any(one is observation.parameters for one in self._versions):
            self._versions.append(observation.parameters)
        self._seen.append(described(observation))

    def recover(self, progress: Progress) -> Recovery:
        self._options.fail("recover")
        progress("slow", 1, 1)
        priority = os.getpriority(os.PRIO_PROCESS, 0)
        notes = (*self._seen, f"{len(self._versions)} versions at priority {priority}")
        if self._options.threads:
            notes = (f"{torch.get_num_threads()} threads",)
        return Recovery(labels=torch.arange(self._samples) % 3, notes=notes)


def described(observation: Observation) -> str:
    """All of an observation, to the last bit, in a line."""
    tensors = [
        tensor
        for part in (observation.parameters, observation.gradients)
        for model in (*part.bottoms, part.top)
        for _, tensor in sorted(model.items())
    ]
    bits = [int(tensor.view(torch.int32).long().sum()) for tensor in tensors]
    return f"{observation.round} {observation.version} {observation.indices.tolist()} {bits}"
