"""Folders of runs and sweeps that tests change afterwards, as somebody else would."""

import json
import signal
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.support import seeds
from tests.fuzz.test_recordings import signed, transcript

QUIETLY = ("--attack", "none", "--no-score", "--quiet")


@contextmanager
def soon(seconds=20):
    """Fail where something waits for ever."""

    def give_up(_number, _frame):
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def recorded(here: Path, **sections) -> Path:
    """A run's folder with a transcript, whose config has other sections where there are some."""
    folder = here / "run" / "transcript"
    folder.mkdir(parents=True)
    tree = json.loads(seeds("meta")[0])
    tree["config"] |= sections
    return transcript(folder, signed(tree))


def held(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
