"""A run's result on the terminal."""

from vfl.show import show_summary

SUMMARY = {
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
    show_summary(SUMMARY, tmp_path)
    printed = capsys.readouterr().out
    assert "rebuilt 10 of 10 rows exactly" in printed
    assert printed.endswith(f"Everything is in {tmp_path}: report.html, rows.csv, summary.json\n")
