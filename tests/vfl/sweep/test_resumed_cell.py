"""A cell that was stopped after a checkpoint goes on from there when its sweep is started again."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.command_support import wait_for
from tests.vfl.sweep.fabricated import BASE
from vfl.config import RunConfig, parse_config
from vfl.errors import InterruptedRunError
from vfl.sweep.cell import run_cell


def run_and_stop(config: RunConfig, folder: Path, when: Callable[[], bool]) -> None:
    """Run a cell until something is so, and stop it then."""
    stop = threading.Event()

    def watch() -> None:
        wait_for(when)
        stop.set()

    watching = threading.Thread(target=watch)
    watching.start()
    with pytest.raises(InterruptedRunError):
        run_cell(config, folder, stop)
    watching.join()


def test_a_stopped_cell_goes_on_from_its_checkpoint(tmp_path):
    federation = {**BASE["federation"], "epochs": None, "rounds": 4000, "checkpoint_every": 10}
    attack = {"name": "cafe", "switch_one": None, "switch_two": None}
    config = parse_config({**BASE, "federation": federation, "attack": attack}, "the test")
    journal, words = tmp_path / "journal.jsonl", "going on from the checkpoint of round"
    run_and_stop(config, tmp_path, lambda: any((tmp_path / "attack").glob("state-*")))
    assert words not in journal.read_text()
    run_and_stop(config, tmp_path, lambda: words in journal.read_text())
