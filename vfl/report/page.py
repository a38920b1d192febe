"""The page of a run: everything that its folder tells, in the order of what people ask first."""

import base64
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from vfl.folder.show import defence_lines, size, untested, verdict
from vfl.report import facts, leaks, training
from vfl.report.drawing import Plot
from vfl.report.folder import RunFolder, read_run
from vfl.report.images import BRIGHT, Album
from vfl.report.level import level
from vfl.report.tables import column_scores, rows_beside
from vfl.report.workers import worker_table

TRAINING = (training.losses, training.accuracies, training.rates)

FEW = 160
"""A wall of so many images is open from the start."""


def run_page(folder: Path) -> str:
    """Return the report of a run's folder."""
    run = read_run(folder)
    album = Album(run)
    photographs, examples, wall = album.photographs(), album.examples(), album.wall()
    config = yaml.safe_dump(run.summary["config"], sort_keys=False, allow_unicode=True)
    return render(
        "run.html",
        run=run,
        verdict=verdict(run.summary),
        level=level(run.summary),
        failed=failure(run.summary),
        untested=untested(run.summary),
        tiles=facts.tiles(run),
        setting=facts.setting_line(run.summary),
        examples=examples,
        bright=BRIGHT,
        wall=wall,
        few=FEW,
        photographs=photographs,
        leak_plots=_there(leaks.psnr_over_rounds(run), leaks.psnr_histogram(run), leaks.certificate_histogram(run)),
        places=_there(leaks.leak_map(run), leaks.column_bars(column_scores(run))),
        workers=worker_table(run),
        rows=rows_beside(run),
        training=_there(*(plot(run.summary["train"]) for plot in TRAINING)),
        training_words=training.in_words(run.summary),
        used=ledger_words(run),
        defence=facts.defence_words(run.summary["config"].get("defence")),
        defences=defence_lines(run.summary.get("defence") or []),
        phases=facts.phases(run.summary),
        value=lambda key: facts.value_at(run.summary, key),
        number=lambda key, form, unit="": facts.number(run.summary, key, form, unit),
        config=config,
        config_file="data:text/yaml;base64," + base64.b64encode(config.encode()).decode("ascii"),
    )


def render(template: str, **values: Any) -> str:
    """Fill in a template; whatever the values hold, it is text."""
    return environment().get_template(template).render(**values)


@cache
def environment() -> Environment:
    """Return where the templates are, and how they are filled in."""
    made = Environment(
        loader=PackageLoader("vfl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["size"] = size
    return made


def failure(summary: dict[str, Any]) -> str:
    """Return why the run did not come to its end, if it did not."""
    ended = summary.get("ended", "complete")
    return "" if ended == "complete" else str(ended or "nobody knows why")


def ledger_words(run: RunFolder) -> str:
    """Say what the recovery rests on."""
    ledger = run.attack.get("ledger") or {}
    return str(ledger.get("sentence") or ", ".join(map(str, run.attack["used"])))


def _there(*plots: Plot | None) -> list[Plot]:
    return [plot for plot in plots if plot is not None]
