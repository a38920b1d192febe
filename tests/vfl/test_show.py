"""A run's result on the terminal."""

from vfl.cli.ending import show_summary
from vfl.folder.summary import Summary

SUMMARY = {
    "config": {"federation": {"workers": 2}},
    "workers": 2,
    "samples": 10,
    "rounds": 3,
    "batch_size": 5,
    "seconds": {"federation": 1.0, "attack": 1.0},
    "bytes": {"up": 1, "down": 1, "peer": 1},
    "train": {"loss_first": None},
    "attack": {"name": "exact", "used": ["gradients"], "share_exact": 1.0, "r2": 1.0},
}


def test_the_closing_line_of_a_table_names_its_rows(tmp_path, capsys):
    for name in ("summary.json", "rows.csv", "rows.json", "report.html"):
        (tmp_path / name).touch()
    show_summary(Summary.model_validate(SUMMARY), tmp_path)
    printed = capsys.readouterr().out
    assert "rebuilt 10 of 10 rows exactly" in printed
    assert printed.endswith(f"Everything is in {tmp_path}: report.html, rows.csv, summary.json\n")


def printed_rows(tmp_path, capsys, rows, *files):
    keys = ("source", "rows", "unlabelled", "incomplete")
    tables = {"rows": rows, "files": [dict(zip(keys, file, strict=True)) for file in files]}
    show_summary(Summary.model_validate(SUMMARY | {"tables": tables}), tmp_path)
    return " ".join(capsys.readouterr().out.split())


def test_how_many_rows_each_party_brought_is_said_once(tmp_path, capsys):
    joined = printed_rows(tmp_path, capsys, 2, ("p0.csv", 4, 0, 0), ("p1.csv", 5, 1, 2))
    told = "2 rows are in all files; p0.csv has 4 rows, p1.csv has 5 rows (1 without a label and 2 with missing values "
    assert joined.count(f"joined by id {told}left out)") == 1
    assert "rows p.csv has 5 rows (1 without a label left out)" in printed_rows(tmp_path, capsys, 4, ("p.csv", 5, 1, 0))
    assert "p.csv" not in printed_rows(tmp_path, capsys, 5, ("p.csv", 5, 0, 0))
