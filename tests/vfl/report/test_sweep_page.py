"""A sweep's report: the table in colours, each place with the report of its run."""

import pytest

from tests.vfl.report.made import Page, config_of, images, write_run
from tests.vfl.sweep.fabricated import planned, row
from vfl.errors import UserError
from vfl.report.main import write_report
from vfl.sweep.cell import Row
from vfl.sweep.plan import cell_folder
from vfl.sweep.results.write import write_results

AXES = {
    "defence": {"none": {}, "noise <b>": {"defence": {"name": "noise"}}},
    "attack": {"exact": {"attack": {"name": "exact"}}, "squares": {"attack": {"name": "least_squares"}}},
}


@pytest.fixture
def swept(tmp_path):
    """Four cells: two with their numbers, one that failed, one that was not run; the first has a run's folder."""
    plan = planned(tmp_path, axes=AXES)
    first, second, third, _ = plan.cells
    rows = {first.name: row(psnr=95.25), second.name: row(psnr=12.5), third.name: Row("the <i>worker</i> left")}
    write_results(tmp_path, plan, rows)
    write_run(cell_folder(tmp_path, first), config_of(), images(12))
    return tmp_path, plan


def test_every_place_has_its_number_and_leads_to_its_run(swept):
    folder, plan = swept
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "2 of 4 runs are done" in page.text
    assert "95.2" in page.text
    assert "12.5" in page.text
    assert "not run" in page.text
    assert "the <i>worker</i> left" in page.text
    links = {link["href"] for link in page.all("a") if not link["href"].startswith("#")}
    assert links == {f"cells/{plan.cells[0].folder}/report.html"}
    assert all((folder / link).is_file() for link in links)
    shown = {data["data-cell"]: float(data["value"]) for data in page.all("data")}
    assert shown == {plan.cells[0].name: 95.25, plan.cells[1].name: 12.5}


def test_higher_values_are_brighter(swept):
    folder, _ = swept
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    painted = [cell["style"] for cell in page.all("td") if "background" in cell.get("style", "")]
    colours = [style.split("#")[1][:6] for style in painted]
    brightness = [sum(int(colour[at : at + 2], 16) for at in (0, 2, 4)) for colour in colours]
    assert len(brightness) == 2
    assert brightness[0] > brightness[1]


def test_a_cell_without_a_report_gets_one(swept):
    folder, plan = swept
    report = cell_folder(folder, plan.cells[0]) / "report.html"
    assert not report.exists()
    write_report(folder)
    assert "All 12 rebuilt images" in report.read_text(encoding="utf-8")


def test_results_that_are_none_are_refused_with_a_sentence(tmp_path):
    (tmp_path / "results.json").write_text('{"sweep": "x"}')
    with pytest.raises(UserError, match="written by an older version"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("value", "numbers", "sentence"),
    [
        (
            "attack.gain",
            (0.415, 0.0),
            "where exact gets 0.415 (values right beyond a guess, mean over the columns); least with noise",
        ),
        ("attack.representation_error", (1e-6, 0.5), "Most leaks with defence none, where exact gets 1.0e-06"),
        ("attack.psnr_mean", (None, None), "none of them with PSNR, mean: name another number as table.value"),
        ("seconds.total", (3.0, 4.0), "2 of 2 runs are done."),
    ],
)
def test_the_headline_is_about_the_number_of_the_table(tmp_path, value, numbers, sentence):
    axes = {
        "defence": {"none": {}, "noise": {"defence": {"name": "noise"}}},
        "attack": {"exact": AXES["attack"]["exact"]},
    }
    plan = planned(tmp_path, axes=axes, table={"value": value})
    write_results(tmp_path, plan, {c.name: row(**{value: n}) for c, n in zip(plan.cells, numbers, strict=True)})
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert sentence in page.text
