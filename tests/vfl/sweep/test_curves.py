"""The points of the curves, against numbers, and the picture that is drawn of them."""

import math

import pytest
from matplotlib.figure import Figure

from tests.vfl.sweep.fabricated import planned, row
from vfl.sweep.cell import Row
from vfl.sweep.results import pictures
from vfl.sweep.results.pictures import panels_of, save_curves
from vfl.sweep.results.table import pivot

AXES = {
    "optimiser": {"SGD": {}, "Adam": {"training.optimizer": "adam"}},
    "rate": {"1e-1": {"training.lr": 0.1}, "1e-3": {"training.lr": 0.001}, "1e-5": {"training.lr": 0.00001}},
    "attacker": {name: {"attack": {"name": "least_squares"}} for name in ("one", "two", "never")},
}
TABLE = {"rows": ["optimiser", "rate"], "columns": "attacker", "along": "rate"}
ROWS = {
    "SGD, 1e-5, one": row(psnr=50.0),
    "SGD, 1e-1, one": row(psnr=20.0),
    "SGD, 1e-5, two": row(psnr=9.0),
    "SGD, 1e-3, two": Row(error="it broke"),
    "Adam, 1e-3, one": row(psnr=33.0),
}


@pytest.fixture
def table(tmp_path):
    plan = planned(tmp_path, axes=AXES, table=TABLE, skip=[{"attacker": "two", "rate": "1e-1"}])
    return pivot(plan, ROWS)


def told(points):
    """NaN is not equal to itself; None is."""
    return [(x, None if math.isnan(y) else y) for x, y in points]


def test_points_go_from_left_to_right_with_gaps_where_no_cell_was_run(table):
    found = panels_of(table)
    assert list(found) == ["SGD", "Adam"]
    assert {column: told(points) for column, points in found["SGD"].items()} == {
        "one": [(1e-5, 50.0), (1e-3, None), (0.1, 20.0)],
        "two": [(1e-5, 9.0), (1e-3, None)],  # the third place is left out of the sweep, so nothing is missing there
    }
    assert {column: told(points) for column, points in found["Adam"].items()} == {
        "one": [(1e-5, None), (1e-3, 33.0), (0.1, None)]
    }


@pytest.fixture
def drawn(table, tmp_path, monkeypatch):
    """The figure that the picture was printed from."""
    figures = []

    def keep(*given, **options):
        figures.append(Figure(*given, **options))
        return figures[-1]

    monkeypatch.setattr(pictures, "Figure", keep)
    save_curves(tmp_path / "curves.png", "a sweep", table)
    assert (tmp_path / "curves.png").stat().st_size > 0
    return figures[0]


def test_a_lone_point_is_a_marker_and_what_has_no_point_is_not_in_the_legend(drawn):
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]
    (lone,) = drawn.axes[1].lines
    assert lone.get_marker() not in ("", "None", None)
    assert lone.get_color() == drawn.axes[0].lines[0].get_color()


def test_a_column_that_is_run_once_for_all_lines_is_a_level_line_in_every_panel(tmp_path, monkeypatch):
    once = [{"attacker": "two", "optimiser": "SGD", "rate": "1e-5"}]
    plan = planned(tmp_path, axes=AXES, table=TABLE, only=once)
    table = pivot(plan, ROWS)
    assert pictures.levels_of(table) == {"two": 9.0}
    drawn = []
    monkeypatch.setattr(pictures, "_draw", lambda axes, table, points, levels: drawn.append((set(points), levels)))
    save_curves(tmp_path / "curves.png", "a sweep", table)
    assert drawn == [({"one"}, {"two": 9.0}), ({"one"}, {"two": 9.0})]


def test_panels_share_the_whole_axis_also_where_nothing_was_run(drawn):
    ranges = [axes.get_xlim() for axes in drawn.axes]
    assert ranges[0] == ranges[1]
    assert ranges[0][0] < 1e-5
    assert ranges[0][1] > 0.1
    assert [axes.get_xscale() for axes in drawn.axes] == ["log", "log"]
