"""Tables from end to end: a run on a CSV file, and parties whose own files are aligned over the wire."""

import csv
import json
import re
import socket
from pathlib import Path

import numpy as np
import pytest

from tests.integration.command_support import cafe, start
from vfl.config import load_config
from vfl.datasets.slices import load_data
from vfl.datasets.tables.file import is_number
from vfl.errors import UserError
from vfl.folder.schema import as_json
from vfl.folder.summary import load_summary
from vfl.local.launch import run_federation
from vfl.referee import score_run
from worker.alignment import hold
from worker.session import WorkerOptions

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
    run_federation(config, data, out)
    return out, as_json(score_run(out, config, data))


def test_exact_chooses_least_squares_by_itself_and_recovers_every_row(adult):
    _, summary = adult
    attack = summary["attack"]
    assert attack["notes"] == ["The attack split each batch's gradients into those of its samples, by least squares."]
    assert attack["share_exact"] == 1.0
    assert attack["label_accuracy"] == 1.0


def test_columns_are_scored_one_by_one(adult):
    _, summary = adult
    columns = {column["name"]: column for column in summary["attack"]["columns"]}
    assert columns["age"]["worker"] == 0
    assert columns["age"]["r2"] > 0.9999
    assert columns["capital_loss"]["worker"] == 2
    occupation = columns["occupation"]
    assert (occupation["worker"], occupation["kind"], occupation["accuracy"]) == (1, "category", 1.0)
    assert occupation["exact"]["guess"] + occupation["exact"]["gain"] == pytest.approx(1.0)
    assert [party["values"]["right"] for party in summary["attack"]["parties"]] == [1.0, 1.0, 1.0]


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
    narrow = ("--set", "federation.epochs=5", "--set", "model.output=4")  # no later layer holds a batch either
    done = cafe("run", file, *narrow, "--out", tmp_path, cwd=ROOT)
    assert done.returncode == 2
    assert re.search(
        r"holds the batches .*, and worker 2's first .* by least squares it needs 11 epochs .* in batches of 10",
        done.stderr,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def aligned(folder, files, *changes):
    """Let a coordinator and a worker for each file, in processes of their own, run to the end.

    Return the summary, and what each said.
    """
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
    return as_json(load_summary(folder / "out")), said


def scored(out, files, *changes):
    """The coordinator knows no file: what it rebuilt is held against the files here."""
    config = config_of("adult_parties", *SMALL, *changes, f"data.files=[{', '.join(map(str, files))}]")
    return as_json(score_run(out, config, load_data(config)).attack)


def test_parties_with_files_of_their_own_are_aligned_over_the_wire(tmp_path):
    """Three processes that hold one file each give the same recovery as one simulation that has all three."""
    summary, said = aligned(tmp_path, FILES)
    assert summary["samples"] == 40
    for number, (path, told) in enumerate(zip(FILES, said[1:], strict=True)):
        rows = len(path.read_text(encoding="utf-8").splitlines()) - 1
        assert re.search(rf"worker {number}: joined by id: \d+ rows are at all workers; {path} has {rows} rows\n", told)
    assert scored(tmp_path / "out", FILES)["share_exact"] == 1.0


def test_a_label_holder_whose_file_has_ids_and_labels_alone_is_aligned_as_the_others_are(tmp_path):
    labels = tmp_path / "labels.csv"
    with FILES[2].open(encoding="utf-8") as file:
        rows = [f"{row['person']},{row['income']}" for row in csv.DictReader(file)]
    labels.write_text("\n".join(["person,income", *rows]) + "\n", encoding="utf-8")
    files, alone = [*FILES[:2], labels], "federation.label_holder_features=false"
    assert aligned(tmp_path, files, alone)[0]["samples"] == 40
    found = scored(tmp_path / "out", files, alone)
    assert (found["share_exact"], found["label_accuracy"]) == (1.0, 1.0)
    assert {column["worker"] for column in found["columns"]} == {0, 1}


def as_archive(path, folder):
    """Write a CSV file as an archive with an array for each column; numbers as such."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    numbers = {name: own.astype(float) for name, own in columns.items() if all(map(is_number, own))}
    np.savez(folder / f"{path.stem}.npz", **columns | numbers)
    return folder / f"{path.stem}.npz"


def test_parties_with_archives_of_their_own_are_aligned_too(tmp_path):
    files = [as_archive(path, tmp_path) for path in FILES]
    summary, said = aligned(tmp_path, files, "data.name=npz")
    assert summary["samples"] == 40
    assert all("joined by id" in told for told in said[1:])
    assert scored(tmp_path / "out", files, "data.name=npz")["share_exact"] == 1.0


def test_a_run_says_and_records_how_many_rows_each_party_brought(tmp_path):
    ids = [f"{number}.0" if number < 9 else str(number) for number in range(1, 17)]
    rows = {
        "bank": ["who,debt", *(f"{who},{number}" for number, who in enumerate(ids))],
        "shop": ["who,buys,good", *(f"{who},{who * who},{who % 2}" for who in range(4, 20))],
    }
    for name, lines in rows.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = {
        "data": {"name": "csv", "files": ["bank.csv", "shop.csv"], "label": "good", "id": "who", "samples": 12},
        "federation": {"workers": 2, "batch_size": 3, "rounds": 2, "label_holder": 1},
        "model": {"name": "mlp"},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config), encoding="utf-8")
    done = cafe("run", "run.yaml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = " ".join((done.stdout + done.stderr).split())
    assert words.count("13 rows are in all files; bank.csv has 16 rows, shop.csv has 16 rows") == 1
    files = [{"source": f"{name}.csv", "rows": 16, "unlabelled": 0, "incomplete": 0} for name in rows]
    assert as_json(load_summary(tmp_path / "out").tables) == {"rows": 13, "files": files, "doubts": []}


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "npz", "NPZ"])
def test_tables_of_all_kinds_are_taken_for_such(suffix, tmp_path):
    config = load_config(ROOT / "configs" / "tables" / "adult_parties.yaml")
    with pytest.raises(UserError, match="a table is aligned with the other workers' by keyed hashes of its ids"):
        hold(config, tmp_path / f"own.{suffix}", WorkerOptions(0, "127.0.0.1:1"), key_file=None)


def test_a_table_without_its_key_gets_a_sentence():
    file = ROOT / "configs" / "tables" / "adult_parties.yaml"
    done = cafe("work", file, "--id", 0, "--coordinator", "127.0.0.1:1", "--data", FILES[0])
    assert done.returncode == 2
    assert "give --align-key FILE, a secret that all workers have and the coordinator has not" in done.stderr
