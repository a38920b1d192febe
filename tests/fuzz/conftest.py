"""What the fuzz targets of files share."""

import pytest

from tests.vfl.report.made import config_of, images, write_run
from tests.vfl.sweep.fabricated import planned, row
from vfl.sweep.results.write import write_results


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to read from and, as it is the current one, to leave traces in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(here):
    """A run's folder with everything in it."""
    write_run(here / "run", config_of(), images(6))
    return here / "run"


@pytest.fixture
def home(here):
    """A folder of somebody's own, with files that have a run's names."""
    home = here / "home"
    for name in ("own", "a.png", "model.pt", "1.npz", "meta.json", "c.safetensors", "events/kept"):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return home


@pytest.fixture
def swept(here):
    """A sweep of one cell, with its run."""
    folder = here / "sweep"
    folder.mkdir()
    plan = planned(folder, axes={"attack": {"exact": {"attack": {"name": "exact"}}}})
    write_results(folder, plan, {plan.cells[0].name: row(psnr=95.25)})
    write_run(folder / "cells" / plan.cells[0].folder, config_of(), images(6))
    return folder
