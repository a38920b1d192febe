"""Curves and images of a sweep's runs are kept with its rows, and the paper's figures are drawn from them."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.vfl.sweep.fabricated import summary_of
from vfl.files.archive import save_arrays
from vfl.sweep.cell import Row
from vfl.sweep.plan import cell_folder, load_plan
from vfl.sweep.results.curves import curves_of, value_at
from vfl.sweep.results.docs import keep
from vfl.sweep.results.figures import IMAGES, draw_figures, figure_lines
from vfl.sweep.results.kept import read_results, rows_of
from vfl.sweep.results.page import page_text
from vfl.sweep.results.write import write_results

TREE = {
    "base": {
        "data": {"name": "digits"},
        "federation": {"workers": 2, "batch_size": 5, "rounds": 40},
        "model": {"name": "mlp"},
    },
    "axes": {"attacker": {"CAFE": {"attack": {"name": "cafe"}}, "exact": {"attack": {"name": "exact"}}}},
    "table": {"rows": "attacker"},
    "paper": {
        "table": "Table 99",
        "title": "Of everything",
        "numbers": {"20": {"PSNR, mean (dB)": 20.5}},
        "figures": [
            {"name": "figure99", "title": "Figure 99", "rows": "attacker"},
            {
                "name": "figure98",
                "title": "Figure 98",
                "rows": "attacker",
                "number": "train.loss_end",
                "panels": "attacker",
            },
        ],
    },
    "sizes": {"paper": {"rounds": [0, 20]}, "small": {}},
}


@pytest.fixture
def places(tmp_path):
    files, docs, kept, swept = (tmp_path / name for name in ("files", "docs", "kept", "swept"))
    for folder in (files, docs, kept, swept):
        folder.mkdir()
    (files / "table99.yaml").write_text(json.dumps(TREE))
    return files, docs, kept, swept


def test_a_figure_shows_the_runs_that_are_kept_and_says_which_were_not_made(places, tmp_path):
    files, docs, kept, swept = places
    page, plan = tmp_path / "RESULTS.md", load_plan(files / "table99.yaml", size="paper")
    assert draw_figures(files, kept, docs) == []
    assert figure_lines(files / "table99.yaml", docs, page) == ["Figure 99: not run.\n", "Figure 98: not run.\n"]
    exact = next(cell for cell in plan.cells if cell.name == "exact")
    truth = np.random.default_rng(0).random((20, 1, 8, 8), dtype=np.float32)
    folder = cell_folder(swept, exact)
    folder.mkdir(parents=True)
    save_arrays(folder / "recovered.npz", {"x": 1 - truth, "x_true": truth})
    curves = {"train.loss_end": [(0, 2.3), (20, 1.5), (40, 1.0)], "attack.psnr_mean": [(0, 5.1), (20, 21.25)]}
    write_results(swept, plan, {"exact": Row(numbers={"attack.psnr_mean": 30.0}, curves=curves)})
    keep(swept, docs, files, kept)
    strip = np.asarray(Image.open(kept / "images" / "table99-paper" / f"{exact.folder}.png")) / 255
    assert strip.shape == (16, 8 * IMAGES)
    np.testing.assert_allclose(strip[:8, :8], truth[0, 0], atol=1 / 255)
    np.testing.assert_allclose(strip[8:, -8:], 1 - truth[-1, 0], atol=1 / 255)
    assert [path.name for path in draw_figures(files, kept, docs)] == ["figure99.png", "figure98.png"]
    assert figure_lines(files / "table99.yaml", docs, page)[0] == "![Figure 99](docs/images/figure99.png)\n"
    assert Image.open(docs / "images" / "figure99.png").width > 200
    rows = rows_of(plan, read_results(kept / "table99-paper.json"))
    assert value_at(rows["exact"].curves, "attack.psnr_mean", 20) == 21.25
    # the table of rounds takes them from the curves of the first line's run, which was not made here
    assert "| 20 | not run (20.5) |" in page_text(files, kept, page)


def test_a_runs_curves_are_thinned_and_begin_before_the_first_step():
    summary = summary_of(losses=[2.0 - 0.001 * number for number in range(1000)])
    curve = dict(curves_of(summary)["train.loss_end"])
    assert curve[0] == 2.0
    assert len(curve) == 201
    assert curve[1000] == pytest.approx(sum(2.0 - 0.001 * number for number in range(950, 1000)) / 50)


def test_rounds_to_a_threshold_are_those_of_the_first_snapshot_above_it():
    steps = [
        {"round": number, "psnr_mean": value} for number, value in ((0, 5.0), (100, 26.9), (200, 27.1), (300, 31.0))
    ]
    attack = summary_of(over_rounds=steps).attack
    assert (attack.rounds_to_27db, attack.rounds_to_30db, attack.rounds_to_38db) == (200, 300, None)
