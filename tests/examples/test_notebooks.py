"""The notebooks run from top to bottom, each in an empty folder (the first one in test_python.py)."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.integration.command_support import ENVIRONMENT

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
SHOWN = {
    "my_table": r"rebuilt \d+ of 60 rows",
    "my_attack": "the most frequent class is",
    "my_model": r"rebuilt \d+ of 40 images",
    "transcript": "rebuilt 24 of 24 images",
}


def test_every_notebook_is_run_by_a_test():
    there = {path.stem for path in FOLDER.glob("*.ipynb")}
    assert there == SHOWN.keys() | {"first_attack"}
    for name in there:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        nbformat.validate(notebook)
        assert not any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(tmp_path)}}).execute(env=ENVIRONMENT)
    shown = "".join(str(output) for cell in notebook.cells for output in cell.get("outputs", []))
    assert re.search(SHOWN[name], shown), shown
