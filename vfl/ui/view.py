"""What the page shows of a run: the lines of its journal, put together."""

import math
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from vfl.folder.words import step_words
from vfl.ui.curious import curious

POINTS = 600
"""A curve longer than this loses every other point: no screen shows more."""
SENTENCES = 6
RATE_OVER = 40
"""How many lines of rounds the time left is guessed from."""
MOST_WORKERS = 1025
"""What a config can ask for, and the coordinator's own label holder."""
WAYS = ("up", "down", "peer")

Point = tuple[int, float]


@dataclass
class Worker:
    """A worker as the page draws it."""

    id: int
    state: str = "missing"
    up: int = 0
    down: int = 0


@dataclass
class Estimate:
    """The attack's newest estimate; `number` counts them."""

    number: int
    round: int | None
    file: str
    samples_done: int | None
    psnr_mean: float | None
    share_30db: float | None


@dataclass
class View:
    """A run so far; `add` takes one line of the journal."""

    state: str = "waiting"
    reason: str | None = None
    run: dict[str, Any] | None = None
    workers: list[Worker] = field(default_factory=list)
    round: int = 0
    rounds: int | None = None
    rounds_per_second: float | None = None
    seconds_left: float | None = None
    bytes: dict[str, int] = field(default_factory=dict)
    losses: list[Point] = field(default_factory=list)
    test_losses: list[Point] = field(default_factory=list)
    accuracy: float | None = None
    step: dict[str, Any] | None = None
    estimate: Estimate | None = None
    psnr: list[Point] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    final: bool = False
    """Whether summary.json is final."""
    _times: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_OVER), repr=False)

    def add(self, line: dict[str, Any]) -> None:
        """Take in one line; a kind that this version does not know changes nothing."""
        match line.get("kind"):
            case "run":
                self._take_run(line)
            case "state":
                self.state, self.reason = str(line["state"]), single(line.get("reason"))
                self._times.clear()
                self.seconds_left = self.rounds_per_second = None
            case "worker":
                self._know(int(line["id"])).state = str(line["state"])
            case "round":
                self._take_round(line)
            case "evaluation":
                _append(self.test_losses, int(line["round"]), line["loss"])
                self.accuracy = number(line["accuracy"])
            case "step":
                name = step_words(str(line["name"]))
                self.step = {"name": name, "done": int(line["done"]), "total": int(line["total"])}
            case "estimate":
                count = self.estimate.number + 1 if self.estimate else 1
                values = {key: number(line.get(key)) for key in ("samples_done", "psnr_mean", "share_30db")}
                self.estimate = Estimate(count, number(line["round"]), str(line["file"]), **values)
                _append(self.psnr, count, self.estimate.psnr_mean)
            case "say":
                self.said = [*self.said, str(line["text"])][-SENTENCES:]
            case "summary":
                self.final = True

    def as_json(self) -> dict[str, Any]:
        """Return everything but what only this class needs."""
        return {key: value for key, value in asdict(self).items() if not key.startswith("_")}

    def _take_run(self, line: dict[str, Any]) -> None:
        config = line["config"]
        self.run = {key: single(line[key]) for key in ("seed", "samples", "batch_size", "label_holder")}
        self.run |= {key: single(config[key]["name"]) for key in ("data", "model", "attack")}
        self.run["defence"] = _defence(config["defence"])
        looks_on = self.run["attack"] != "none"
        self.run["curious"] = curious(config["adversary"], self.run["label_holder"]) if looks_on else None
        self.rounds = int(line["planned_rounds"])
        self._know(int(line["workers"]) - 1)

    def _take_round(self, line: dict[str, Any]) -> None:
        self.round, self.rounds = int(line["round"]), int(line["total"])
        self.bytes = {way: number(line["bytes"].get(way)) for way in WAYS}
        for one in line["workers"]:
            worker = self._know(int(one["id"]))
            worker.up, worker.down = int(one["up"]), int(one["down"])
        _append(self.losses, self.round, line["loss"])
        self._times.append((float(line["t"]), self.round))
        (first, at), (last, now) = self._times[0], self._times[-1]
        if last > first and now > at:
            self.rounds_per_second = (now - at) / (last - first)
            self.seconds_left = (self.rounds - self.round) / self.rounds_per_second

    def _know(self, worker: int) -> Worker:
        """Return a worker; those with smaller numbers exist too."""
        if not 0 <= worker < MOST_WORKERS:
            raise ValueError(f"no federation has a worker {worker}")
        self.workers += [Worker(id) for id in range(len(self.workers), worker + 1)]
        return self.workers[worker]


def single(value: Any) -> Any:
    """Return a number, a word or nothing as it is; the page shows nothing else, and no number that JSON has not."""
    if not isinstance(value, str | int | float | None):
        raise TypeError(f"{type(value).__name__} where a number or a word belongs")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: Any) -> Any:
    """Return a number as it is, or nothing."""
    if isinstance(value, str):
        raise TypeError("a word where a number belongs")
    return single(value)


def _append(curve: list[Point], x: int, y: float | None) -> None:
    if y is None or not math.isfinite(y):
        return
    curve.append((x, y))
    if len(curve) > POINTS:
        del curve[1:-1:2]


def _defence(section: Any) -> str:
    """Name the defence, a chain of them, or say that workers differ."""
    if isinstance(section, dict) and "name" in section:
        return str(section["name"])
    if isinstance(section, list):
        return " + ".join(_defence(one) for one in section)
    return "by worker"
