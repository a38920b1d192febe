"""Estimates on the way: an attack offers them, whoever wants them takes them, and they lead to the result."""

import numpy as np
import pytest
import torch

from attacker.driver import follow
from attacker.driver.follow import LiveProgress
from attacker.exact import Exact
from attacker.interface import Recovery, share, silent
from attacker.inversion import InversionOptions
from tests.attacker.test_exact_attack import images, setting_for
from vfl.folder.recovered import PARTIAL
from vfl.local.one_process import observations
from vfl.optimisers.training import TrainingConfig


class Watching:
    """A progress whose owner looks at every estimate."""

    def __init__(self) -> None:
        self.estimates: list[Recovery] = []

    def __call__(self, step: str, done: int, total: int) -> None:
        pass

    def estimate(self, make) -> None:
        self.estimates.append(make())


def test_nothing_is_made_for_a_progress_that_wants_no_estimates():
    share(silent, lambda: pytest.fail("it was made"))


def test_exact_shows_slices_as_they_are_inverted():
    x, y = images(6)
    setting = setting_for(x, 3, 4, workers=2)
    attack = Exact(inversion=InversionOptions(attempts=1, chunk=3)).start(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        attack.observe(observation)
    watching = Watching()
    recovery = attack.recover(watching)
    first, last = watching.estimates[0], watching.estimates[-1]
    known = [int(part.isfinite().all(dim=(1, 2, 3)).sum()) for part in first.slices]
    assert known in ([3, 0], [6, 0])  # a chunk of worker 0's, or two that ended at the same moment
    assert last.cells == recovery.cells
    for shown, final in zip(last.slices, recovery.slices, strict=True):
        assert torch.equal(shown, final)


def test_an_estimate_is_written_every_couple_of_seconds_at_most(tmp_path, monkeypatch):
    x, _ = images(6)
    setting, now = setting_for(x, 3, 4, workers=2), [0.0]
    monkeypatch.setattr(follow.time, "monotonic", lambda: now[0])
    progress = LiveProgress(lambda step: None, tmp_path, setting, estimates=True)

    def offer(value: float) -> None:
        slices = tuple(torch.full((6, *box.shape), value) for box in setting.boxes)
        share(progress, lambda: Recovery(slices=slices))

    written = []
    for second in range(7):
        now[0] = second
        offer(second / 10)
        written.append(float(np.load(tmp_path / PARTIAL)["x"].max()) if (tmp_path / PARTIAL).exists() else None)
    assert written == pytest.approx([None, None, 0.2, 0.2, 0.4, 0.4, 0.6])
