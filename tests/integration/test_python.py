"""Runs from Python: the example notebook, and the same results for TensorBoard, CSV and MLflow."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import vfl
from tests.integration.command_support import ENVIRONMENT, nothing_left, wait_for
from vfl.errors import UserError
from vfl.folder.journal import Tail
from vfl.report.export import export_csv, export_mlflow

PROJECT = Path(__file__).parents[2]
NOTEBOOK = PROJECT / "examples" / "notebooks" / "first_attack.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The example notebook after all its cells, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(folder)}}).execute(env=ENVIRONMENT)
    _, *cells = [cell for cell in notebook.cells if cell.cell_type == "code"]  # the first is Colab's
    return cells, folder


def shown(cell) -> dict:
    """What the last line of a cell shows."""
    (output,) = [output for output in cell.outputs if output.output_type == "execute_result"]
    return output.data


def test_a_notebook_shows_a_run_and_its_images(executed):
    (run, images, numbers, again, defended), _ = executed
    assert "The coordinator rebuilt 24 of 24 images" in shown(run)["text/html"]
    assert 'src="data:image/png;base64,' in shown(run)["text/html"]
    assert shown(images)["image/png"]
    assert shown(numbers)["text/plain"].startswith("((24, 8, 8, 1),")
    assert "rebuilt 24 of 24 images" in shown(again)["text/plain"]
    assert "rebuilt 24 of 24 images" not in shown(defended)["text/plain"]


def test_the_notebook_of_the_recorder_attacks_its_own_loop(tmp_path):
    notebook = nbformat.read(PROJECT / "examples" / "record.ipynb", as_version=4)
    NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(tmp_path)}}).execute(env=ENVIRONMENT)
    _, rounds, verdict, rows = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert shown(rounds)["text/plain"].startswith("(12, ")
    assert "rebuilt 48 of 48 rows exactly" in shown(verdict)["text/plain"]
    assert "array(" in shown(rows)["text/plain"]


def test_the_result_of_an_earlier_run_can_be_loaded(executed):
    _, folder = executed
    run = vfl.load(folder / "runs" / "notebook")
    arrays = np.load(run.folder / "recovered.npz")
    assert run.summary == json.loads((run.folder / "summary.json").read_text())
    assert run.losses == run.summary["train"]["losses"]
    images = run.images()
    np.testing.assert_allclose(images.real[..., 0], arrays["x_true"][:, 0])
    np.testing.assert_allclose(images.difference[..., 0], np.abs(arrays["x_true"] - arrays["x"].clip(0, 1))[:, 0])
    assert images.picture(most=3).size == (8 * (3 * 8 + 2 * 2), 8 * (3 * 8 + 2 * 2))


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run's folder"):
        vfl.load(tmp_path)


def test_bad_input_is_an_exception_with_the_commands_sentence(tmp_path, capfd):
    with pytest.raises(UserError, match="there is no attack called 'magic'"):
        vfl.run(PROJECT / "configs" / "digits.yaml", set={"attack": {"name": "magic"}}, out=tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_run_ends_with_the_program_that_started_it(tmp_path, number):
    tag = f"program-{os.getpid()}-{number}"
    changes = {"federation.epochs": 100_000, "attack.name": "none"}
    program = f"import vfl; vfl.run({str(PROJECT / 'configs' / 'digits.yaml')!r}, set={changes}, out='out')"
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env={**ENVIRONMENT, "CAFE_TEST_TAG": tag},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: any(line["kind"] == "round" for line in Tail(tmp_path / "out", from_start=True).read()))
    process.send_signal(number)
    _, words = process.communicate(timeout=500)
    assert nothing_left(tag)
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in words
        assert json.loads((tmp_path / "out" / "summary.json").read_text())["ended"] == "stopped before the end"


def test_importing_the_package_imports_nothing_heavy():
    program = "import sys, vfl; print([name for name in ('torch', 'numpy', 'grpc', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_tensorboard_finds_curves_and_images(executed):
    _, folder = executed
    run = vfl.load(folder / "runs" / "notebook")
    events = EventAccumulator(str(run.folder / "events"))
    events.Reload()
    losses = [event.value for event in events.Scalars("train/loss")]
    np.testing.assert_allclose(losses, run.losses, rtol=1e-6)
    (psnr,) = events.Scalars("attack/psnr_mean")
    assert (psnr.step, psnr.value) == (32, pytest.approx(run.summary["attack"]["psnr_mean"]))
    (pair,) = events.Images("attack/real_above_recovered")
    assert (pair.height, pair.width) == (2 * 8 + 2, 24 * 8 + 23 * 2)
    (alone,) = events.Images("attack/recovered")
    assert (alone.height, alone.width) == (8, 24 * 8 + 23 * 2)

    offline = EventAccumulator(str(folder / "runs" / "notebook-again" / "events"))
    offline.Reload()
    assert offline.Tags()["images"] == ["attack/recovered", "attack/real_above_recovered"]


def read(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_export_writes_what_the_summary_says(executed, tmp_path):
    _, folder = executed
    run = vfl.load(folder / "runs" / "notebook")
    paths = export_csv(run.folder, tmp_path / "csv")
    assert [path.name for path in paths] == ["rounds.csv", "scores.csv", "images.csv"]
    rounds, scores, images = map(read, paths)
    assert [float(row["loss"]) for row in rounds] == run.losses
    assert {row["learning_rate"] for row in rounds} == {"0.0"}
    numbers = {row["name"]: float(row["value"]) for row in scores}
    assert numbers["attack.psnr_mean"] == run.summary["attack"]["psnr_mean"]
    assert numbers["bytes.up"] == run.summary["bytes"]["up"]
    assert np.mean([float(row["psnr"]) for row in images]) == pytest.approx(run.summary["attack"]["psnr_mean"])
    assert [row["label_true"] for row in images] == [str(n) for n in run.arrays["labels_true"]]


def test_export_to_mlflow_makes_a_run_of_it(executed, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    _, folder = executed
    run = vfl.load(folder / "runs" / "notebook")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    said = export_mlflow(run.folder, uri)
    client = MlflowClient(tracking_uri=uri)
    (logged,) = client.search_runs([client.get_experiment_by_name("cafe").experiment_id])
    assert logged.info.run_id in said
    assert (logged.info.run_name, logged.info.status) == ("notebook", "FINISHED")
    assert logged.data.params["federation.workers"] == "2"
    assert logged.data.metrics["attack.psnr_mean"] == run.summary["attack"]["psnr_mean"]
    assert [point.value for point in client.get_metric_history(logged.info.run_id, "loss")] == run.losses
    assert {"summary.json", "recovered.png"} <= {file.path for file in client.list_artifacts(logged.info.run_id)}


def test_without_mlflow_a_sentence_says_how_to_get_it(executed, monkeypatch):
    _, folder = executed
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"pip install 'cafe-vfl\[mlflow\]'"):
        export_mlflow(folder / "runs" / "notebook", None)
