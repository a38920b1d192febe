"""The page of a run: everything that its folder tells, in the order of what people ask first."""

import base64
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from vfl.folder.verdict import adversary_words, seen_words, untested, verdict
from vfl.folder.words import defence_lines, size, used_words
from vfl.maths.metrics import EXACT, NEAR
from vfl.report import facts, leaks, training
from vfl.report.figures import Plot
from vfl.report.folder import read_run
from vfl.report.images import BRIGHT, Album
from vfl.report.tables import column_lines, rows_beside
from vfl.report.workers import worker_table

TRAINING = (training.losses, training.accuracies, training.rates)
MOST_COLUMNS = 60
"""How many columns the table of columns has."""
FEW = 160
"""A wall of so many images is open from the start."""


def run_page(folder: Path) -> str:
    """Return the report of a run's folder."""
    run = read_run(folder)
    album = Album(run)
    columns = column_lines(run.summary.attack.columns)
    photographs, examples, wall = album.photographs(), album.examples(), album.wall()
    config = yaml.safe_dump(run.summary.config.whole, sort_keys=False, allow_unicode=True)
    return render(
        "run.html",
        run=run,
        summary=run.summary,
        verdict=verdict(run.summary),
        adversary=adversary_words(run.summary),
        several=isinstance(run.summary.attack.adversary, tuple),
        seen=seen_words(run.summary),
        failed="" if run.summary.complete else run.summary.ended or "it is not known why",
        untested=untested(run.summary),
        tiles=facts.tiles(run.summary),
        setting=facts.setting_line(run.summary),
        examples=examples,
        bright=BRIGHT,
        wall=wall,
        few=FEW,
        photographs=photographs,
        leak_plots=_there(leaks.psnr_over_rounds(run), leaks.psnr_histogram(run), leaks.certificate_histogram(run)),
        places=_there(leaks.leak_map(run), leaks.column_bars(run.summary.attack.columns)),
        workers=worker_table(run),
        columns=columns[:MOST_COLUMNS],
        hidden_columns=max(0, len(columns) - MOST_COLUMNS),
        exact=EXACT,
        near=NEAR,
        rows=rows_beside(run),
        training=_there(*(plot(run.summary.train) for plot in TRAINING)),
        training_words=training.in_words(run.summary),
        used=used_words(run.summary.attack),
        defence=facts.defence_words(run.summary.config.defence),
        defences=defence_lines(run.summary.defence),
        phases=facts.phases(run.summary),
        number=partial(facts.number, run.summary),
        config=config,
        config_file="data:text/yaml;base64," + base64.b64encode(config.encode()).decode("ascii"),
    )


def render(template: str, **values: Any) -> str:
    """Fill in a template; whatever the values hold, it is text."""
    return environment().get_template(template).render(**values)


@cache
def environment() -> Environment:
    """Return where the templates are, and how they are filled in."""
    templates = PackageLoader("vfl.report")
    made = Environment(
        loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["size"] = size
    return made


def _there(*plots: Plot | None) -> list[Plot]:
    return [plot for plot in plots if plot is not None]
