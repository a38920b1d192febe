"""The leaderboard: what runs, sweeps and audits measured, kept as JSON and shown as one table in the docs."""

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from vfl.audit.defending.defences import defence_words
from vfl.audit.judgement import who
from vfl.audit.plan import attack_words
from vfl.audit.schema import FILE as AUDIT
from vfl.audit.schema import Attempt, Audit, digest_of, load_audit
from vfl.errors import UserError
from vfl.files import read_plain, write_text
from vfl.folder.schema import Measure, checked
from vfl.folder.summary import Summary, load_summary
from vfl.folder.sweep_results import RESULTS, load_results
from vfl.limits import JSON_BYTES
from vfl.registry import PluginSection

NAME = "leaderboard"
HEAD = ["data", "seat", "attack", "defence", "known", "accuracy", "rounds", "seed", "config", "version"]


class Line(BaseModel):
    """One attack from one seat against one defence on one data set."""

    model_config = ConfigDict(extra="forbid")

    data: str
    seat: str
    attack: str
    defence: str
    known: float
    """Privacy: of what a guess leaves open, the share that the attack knows; 0 is a guess, 1 is all."""
    accuracy: Measure = None
    """Utility: of the trained model, on test samples; none where parameters are frozen or nothing is tested."""
    rounds: int
    seed: int | None
    digest: str
    """SHA-256 of the config."""
    config: dict[str, Any]
    version: str
    date: str = Field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    @property
    def place(self) -> tuple[str, ...]:
        """Return what makes it one and the same measurement: a newer one takes its place."""
        return self.data, self.seat, self.attack, self.defence, self.digest


class Board(BaseModel):
    """All lines that are kept."""

    lines: list[Line] = Field(default_factory=list)


def submit(folders: Iterable[Path], kept: Path) -> int:
    """Add what folders of runs, sweeps and audits hold to the board that is kept; return how many lines that is."""
    board = _load(kept)
    lines = {line.place: line for line in board.lines}
    found = [line for folder in folders for line in lines_of(folder)]
    lines |= {line.place: line for line in found}
    board.lines = sorted(
        lines.values(), key=lambda line: (line.data, line.seat, line.defence != "none", line.defence, -line.known)
    )
    write_text(kept / f"{NAME}.json", board.model_dump_json(indent=1) + "\n")
    write_text(kept / "tables" / f"{NAME}.json", json.dumps(_table(board), indent=1, ensure_ascii=False) + "\n")
    return len(found)


def lines_of(folder: Path) -> Iterator[Line]:
    """Yield what a run's, a sweep's or an audit's folder measured; a run without a scored attack says nothing."""
    if (folder / AUDIT).exists():
        yield from _of_audit(load_audit(folder))
    elif (folder / RESULTS).exists() and not (folder / "summary.json").exists():
        for row in load_results(folder).rows:
            if (folder / row.folder / "summary.json").exists():
                yield from _of_run(load_summary(folder / row.folder))
    else:
        found = list(_of_run(load_summary(folder)))
        if not found:
            raise UserError(f"{folder}: no attack was scored in this run, so there is nothing to add")
        yield from found


def _of_run(summary: Summary) -> Iterator[Line]:
    known, config = summary.attack.known, summary.config.whole
    if known is None or not summary.complete:
        return
    yield Line(
        data=_data(config["data"]),
        seat=who(summary.attack.adversary),
        attack=attack_words(PluginSection.model_validate(config["attack"])),
        defence=_defence(config.get("defence")),
        known=known,
        accuracy=summary.train.test_accuracy,
        rounds=summary.rounds,
        seed=config.get("seed"),
        digest=digest_of(config),
        config=config,
        version=_version(summary.versions),
    )


def _of_audit(audit: Audit) -> Iterator[Line]:
    trained = {audit.base: (audit.training, audit.config)}
    trained |= {one.defence: (one.training, audit.config | {"defence": one.section}) for one in audit.trials}
    for attempt in audit.attempts:
        if attempt.findings and attempt.defence in trained:
            training, config = trained[attempt.defence]
            config = config | {"adversary": _form(attempt), "attack": {"name": attempt.attack, **attempt.options}}
            yield Line(
                data=_data(config["data"]),
                seat=who(attempt.adversary),
                attack=attack_words(PluginSection.model_validate(config["attack"])),
                defence=attempt.defence,
                known=max(one.beyond for one in attempt.findings),
                accuracy=training.accuracy,
                rounds=training.rounds,
                seed=audit.seed,
                digest=digest_of(config),
                config=config,
                version=_version(audit.versions),
            )


def _data(section: dict[str, Any]) -> str:
    """Name a data set; files by their own names."""
    files = section.get("files") or ([section["path"]] if section.get("path") else [])
    return " and ".join(Path(file).stem for file in files) or str(section["name"])


def _form(attempt: Attempt) -> Any:
    return attempt.model_dump(mode="json")["adversary"]


def _defence(tree: Any) -> str:
    if tree is None or tree == {"name": "none"}:
        return "none"
    places = {place: part for place, part in tree.items() if part != {"name": "none"}} if isinstance(tree, dict) else {}
    by_place = {place: part for place, part in places.items() if place in ("uploads", "outputs", "answers")}
    return defence_words(by_place or {"uploads": tree})


def _version(versions: dict[str, Any]) -> str:
    commit = str(versions.get("commit") or "")
    return f"{versions.get('cafe-vfl', '?')} {commit}".strip()


def _table(board: Board) -> dict[str, Any]:
    rows = [
        [
            line.data, line.seat, f"`{line.attack}`", line.defence, f"{line.known:.2f}",
            "–" if line.accuracy is None else f"{line.accuracy:.1%}", str(line.rounds), str(line.seed),
            f"`{line.digest[:8]}`", line.version,
        ]
        for line in board.lines
    ]  # fmt: skip
    commits = sorted({line.version.partition(" ")[2] for line in board.lines} - {""})
    date = max((line.date for line in board.lines), default=None)
    return {"command": "`cafe submit`", "commit": ", ".join(commits) or None, "date": date, "table": [HEAD, *rows]}


def _load(kept: Path) -> Board:
    path = kept / f"{NAME}.json"
    if not path.exists():
        return Board()
    try:
        found = json.loads(read_plain(path, JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return checked(Board, found, path)
