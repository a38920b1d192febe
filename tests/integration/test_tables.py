"""Tables from end to end: a run on a CSV file, and parties whose own files are aligned over the wire."""

import csv
import json
import re
import socket
from pathlib import Path

import pytest

from tests.integration.command_support import cafe, start
from vfl.config import load_config
from vfl.launch import run_federation
from vfl.referee import score_run
from vfl.results import load_summary
from vfl.slices import load_data

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("data.samples=40", "federation.batch_size=4", "federation.epochs=6")
"""60 rounds; least squares needs 5 epochs."""
FILES = [ROOT / "examples" / "tables" / f"{name}.csv" for name in ("registry", "employer", "bank")]


def config_of(name, *changes):
    paths = (f"data.path={ROOT}/examples/tables/adult.csv",) if name == "adult" else ()
    return load_config(ROOT / "configs" / "tables" / f"{name}.yaml", [*paths, *changes])


@pytest.fixture(scope="module")
def adult(tmp_path_factory):
    """A run of the ready config in real processes."""
    out = tmp_path_factory.mktemp("adult")
    config = config_of("adult")
    data = load_data(config)
    run_federation(config, data, out, quiet=True)
    return out, score_run(out, config, data)


def test_exact_chooses_least_squares_by_itself_and_recovers_every_row(adult):
    _, summary = adult
    attack = summary["attack"]
    assert attack["notes"] == ["Steps I and II by least squares."]
    assert attack["share_exact"] == 1.0
    assert attack["label_accuracy"] == 1.0


def test_columns_are_scored_one_by_one(adult):
    _, summary = adult
    columns = {column["name"]: column for column in summary["attack"]["columns"]}
    assert columns["age"]["worker"] == 0
    assert columns["age"]["r2"] > 0.9999
    assert columns["capital_loss"]["worker"] == 2
    assert columns["occupation"] == {"name": "occupation", "worker": 1, "kind": "category", "accuracy": 1.0}


def test_recovered_rows_are_shown_in_the_units_of_the_file(adult):
    out, _ = adult
    with (ROOT / "examples" / "tables" / "adult.csv").open() as file:
        real = list(csv.DictReader(file))
    with (out / "rows.csv").open() as file:
        found = list(csv.DictReader(file))
    assert len(found) == len(real) - 40
    for got, row in zip(found, real, strict=False):
        assert got["id"] == row["person"]
        assert [got[name] for name in ("sex", "education", "income")] == [
            row[n] for n in ("sex", "education", "income")
        ]
        assert float(got["age"]) == pytest.approx(float(row["age"]), abs=0.05)
        assert float(got["capital_gain"]) == pytest.approx(float(row["capital_gain"]), abs=20)
    shown = json.loads((out / "rows.json").read_text())
    assert shown["columns"][:2] == ["age", "sex"]
    assert shown["columns"][-1] == "income"
    assert len(shown["real"]) == len(shown["recovered"]) == 20
    assert shown["real"][0] == shown["recovered"][0][:1] + shown["real"][0][1:]
    assert shown["real"][3][1] == shown["recovered"][3][1] == real[3]["sex"]


def test_too_few_epochs_are_refused_with_the_number_that_would_do(tmp_path):
    file = ROOT / "configs" / "tables" / "adult.yaml"
    narrow = ("--set", "federation.epochs=6", "--set", "model.output=4")  # no later layer holds a batch either
    done = cafe("run", file, *narrow, "--out", tmp_path, cwd=ROOT)
    assert done.returncode == 2
    assert re.search(
        r"do not fit worker 2's .* least squares: 200 samples in batches of 10 need 11 epochs", done.stderr
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def aligned(folder, files, *changes):
    """Let a coordinator and a worker for each file, in processes of their own, run to the end; return the summary."""
    key = folder / "key"
    key.write_bytes(b"everybody in a simulation may know this")
    file = ROOT / "configs" / "tables" / "adult_parties.yaml"
    address, tag = f"127.0.0.1:{free_port()}", str(folder)
    sets = [part for change in (*SMALL, *changes) for part in ("--set", change)]
    parties = [start("serve", file, *sets, "--listen", address, "--out", folder / "out", tag=tag, cwd=ROOT)]
    for number, path in enumerate(files):
        own = (*sets, "--id", number, "--data", path, "--align-key", key)
        parties.append(start("work", file, *own, "--coordinator", address, tag=tag, cwd=folder))
    try:
        said = [process.communicate(timeout=500)[1] for process in parties]
    finally:
        for process in parties:
            process.kill()
    assert [process.returncode for process in parties] == [0] * len(parties), said
    return load_summary(folder / "out")


def scored(out, files, *changes):
    """The coordinator knows no file: what it rebuilt is held against the files here."""
    config = config_of("adult_parties", *SMALL, *changes, f"data.files=[{', '.join(map(str, files))}]")
    return score_run(out, config, load_data(config))["attack"]


def test_parties_with_files_of_their_own_are_aligned_over_the_wire(tmp_path):
    """Three processes that hold one file each give the same recovery as one simulation that has all three."""
    assert aligned(tmp_path, FILES)["samples"] == 40
    assert scored(tmp_path / "out", FILES)["share_exact"] == 1.0


def test_a_label_holder_whose_file_has_ids_and_labels_alone_is_aligned_as_the_others_are(tmp_path):
    labels = tmp_path / "labels.csv"
    with FILES[2].open(encoding="utf-8") as file:
        rows = [f"{row['person']},{row['income']}" for row in csv.DictReader(file)]
    labels.write_text("\n".join(["person,income", *rows]) + "\n", encoding="utf-8")
    files, alone = [*FILES[:2], labels], "federation.label_holder_features=false"
    assert aligned(tmp_path, files, alone)["samples"] == 40
    found = scored(tmp_path / "out", files, alone)
    assert (found["share_exact"], found["label_accuracy"]) == (1.0, 1.0)
    assert {column["worker"] for column in found["columns"]} == {0, 1}


def test_a_table_without_its_key_gets_a_sentence():
    file = ROOT / "configs" / "tables" / "adult_parties.yaml"
    done = cafe("work", file, "--id", 0, "--coordinator", "127.0.0.1:1", "--data", FILES[0])
    assert done.returncode == 2
    assert "give --align-key FILE, a secret that all workers have and the coordinator has not" in done.stderr
