"""A run's progress on standard error: a live view on a terminal, for which 80 by 24 suffice; plain lines in a log."""

import sys
import time
from collections import Counter, deque
from datetime import timedelta
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vfl.folder.journal import Line, Tail
from vfl.folder.lookout import Lookout
from vfl.folder.words import size, step_words

OTHER_LINES = 9
"""Lines of the screen that are not the workers'."""
WIDTH_OF_TWO = 80
"""Columns that two tables of workers need beside each other, whatever their numbers."""
PACE_SECONDS = 10.0
"""How far back the rounds a second look."""
DRAW_EVERY_SECONDS = 1.0
"""How often it is drawn while nothing happens: the clock goes on."""
STYLES = {"joined": "green", "rejoined": "green", "lost": "bold red", "withheld": "yellow", "done": "dim"}
EXPECTED = "expected"
LINE_EVERY_SECONDS = 5.0
"""How often a plain line says how far a step is."""


class RunProgress(Lookout):
    """Follows a run's journal, in a thread, for as long as the block lasts."""

    def __init__(self, out: Path, workers: int, quiet: bool = False) -> None:
        super().__init__()
        self._tail = Tail(out)
        console = Console(stderr=True, highlight=False)
        self.live = not quiet and sys.stderr.isatty() and not console.is_dumb_terminal
        """Whether a live view is on the user's terminal."""
        self._shown: Screen | _Lines | None = Screen(console, workers) if self.live else None if quiet else _Lines()

    def say(self, text: str) -> None:
        """Say something that is not in the journal."""
        if self._shown:
            self._shown.say(text)

    def look(self) -> None:
        """Show what is new in the journal."""
        if self._shown:
            for line in self._tail.read():
                self._shown.take(line)
            self._shown.draw()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._shown:
            self._shown.close()
        self._tail.close()


class _Lines:
    """Plain lines, for a pipe or a log."""

    def __init__(self) -> None:
        self._last, self._said = 0.0, ("", 0)

    def take(self, line: Line) -> None:
        """Write a line if it is time for one, or the last of its kind."""
        if line["kind"] == "say":
            self.say(line["text"])
        elif line["kind"] == "round":
            self._step("rounds", line["round"], line["total"], f"  loss {line['loss']:.4f}")
        elif line["kind"] == "step":
            self._step(step_words(line["name"]), line["done"], line["total"])

    def draw(self) -> None:
        """Do nothing: lines are written as they come."""

    def say(self, text: str) -> None:
        """Write a sentence."""
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing: the terminal is as it was."""

    def _step(self, name: str, done: int, total: int, extra: str = "") -> None:
        due = done >= total or time.monotonic() - self._last >= LINE_EVERY_SECONDS
        if due and (name, done) != self._said:
            self._last, self._said = time.monotonic(), (name, done)
            self.say(f"{name}: {done} of {total}{extra}")


class Screen:
    """Draws the run as its journal's lines come in."""

    def __init__(self, console: Console, workers: int) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._console = console
        self._state = "starting"
        self._about = ""
        self._workers = Workers(workers)
        self._notes: dict[str, str] = {}
        self._bars = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left  {task.fields[extra]}"),
            console=console,
            expand=True,
        )
        self._tasks: dict[str, tuple[TaskID, str]] = {}
        self._began = time.monotonic()
        self._changed, self._drawn = False, 0.0

    def take(self, line: Line) -> None:
        """Take in a line of the journal."""
        match line["kind"]:
            case "run":
                about = f"{line['workers']} workers, {line['samples']} samples, batches of {line['batch_size']}"
                self._about = about
            case "state":
                self._state = line["state"]
            case "worker":
                self._workers.states[line["id"]] = line["state"]
            case "round":
                self._workers.take_round(line)
                self._bar("rounds", "rounds", done=line["round"], total=line["total"], extra=f"loss {line['loss']:.4f}")
            case "evaluation":
                loss = [] if line["loss"] is None else [f"loss {line['loss']:.4f}"]  # a diverged model's has no number
                right = [] if line["accuracy"] is None else [f"accuracy {line['accuracy']:.1%}"]
                self._notes["on test samples"] = ", ".join([*right, *loss, f"after round {line['round']}"])
            case "step":
                self._bar("attack", step_words(line["name"]), done=line["done"], total=line["total"])
            case "estimate" if line["psnr_mean"] is not None:
                share = f"{line['share_30db']:.0%} of the images at 30 dB or better"
                self._notes["the attack has"] = f"PSNR {line['psnr_mean']:.1f} dB on average, {share}"
            case "say":
                self.say(line["text"])
            case _:
                return
        self._changed = True

    def draw(self) -> None:
        """Draw, if there is something new; bad input ends a run before there is anything to see."""
        idle = time.monotonic() - self._drawn < DRAW_EVERY_SECONDS or not self._live.is_started
        if idle and not self._changed:
            return
        self._changed, self._drawn = False, time.monotonic()
        if not self._live.is_started:
            self._live.start()
        self._live.update(self._picture(), refresh=True)

    def say(self, text: str) -> None:
        """Write a sentence above the view."""
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Leave the last picture, and give the cursor back."""
        self._live.stop()

    def _bar(self, slot: str, name: str, *, done: int, total: int, extra: str = "") -> None:
        """Move a bar; a step with another name gets a new one in the same place, with a clock of its own."""
        task, shown = self._tasks.get(slot, (None, ""))
        if task is not None and shown != name:
            self._bars.remove_task(task)
            task = None
        if task is None:
            task = self._bars.add_task(name, total=total, extra=extra)
            self._tasks[slot] = (task, name)
        self._bars.update(task, completed=done, total=total, extra=extra)

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = [self._headline(), self._bars]
        notes = Table.grid(padding=(0, 2))
        for name, text in self._notes.items():
            notes.add_row(Text(name, style="dim"), Text(text))
        if self._notes:
            parts.append(notes)
        if self._workers.states:
            parts += ["", self._workers.picture(self._console)]
        return Group(*parts)

    def _headline(self) -> RenderableType:
        line = Table.grid(expand=True)
        line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        line.add_column(justify="right", no_wrap=True)
        state = Text(self._state, style="bold")
        if self._about:
            state.append(f"  {self._about}", style="not bold")
        line.add_row(state, str(timedelta(seconds=int(time.monotonic() - self._began))))
        return line


class Workers:
    """What the screen shows of the workers: their states, rounds and bytes."""

    def __init__(self, count: int) -> None:
        self.states: dict[int, str] = dict.fromkeys(range(count), EXPECTED)
        self._rounds = dict.fromkeys(range(count), 0)
        self._bytes: dict[int, tuple[int, int]] = {}
        self._ends: deque[tuple[float, int]] = deque()

    def take_round(self, line: Line) -> None:
        """Take in a round's end."""
        self._ends.append((line["t"], line["round"]))
        while self._ends[-1][0] - self._ends[0][0] > PACE_SECONDS and len(self._ends) > 2:
            self._ends.popleft()
        for worker in line["workers"]:
            self._bytes[worker["id"]] = (worker["up"], worker["down"])
            if self.states.get(worker["id"]) in ("joined", "rejoined"):
                self._rounds[worker["id"]] = line["round"]

    def picture(self, console: Console) -> RenderableType:
        """Return a line a worker if there is room, else two beside each other, else how many are in which state."""
        room = max(2, console.height - OTHER_LINES)
        numbers = sorted(self.states)
        if len(numbers) <= room:
            return self._table(numbers, wide=True)
        half = -(-len(numbers) // 2)
        if half <= room and console.width >= WIDTH_OF_TWO:
            beside = Table.grid(padding=(0, 2))
            beside.add_row(self._table(numbers[:half]), self._table(numbers[half:]))
            return beside
        return self._crowd()

    def _table(self, numbers: list[int], wide: bool = False) -> Table:
        table = Table(box=None, padding=(0, 1 + wide, 0, 0), pad_edge=False, header_style="dim")
        for name in ("worker" if wide else "#", "state", "rounds", *(("a second",) if wide else ()), "up", "down"):
            table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
        pace = (f"{self._pace:.1f}",) if wide else ()
        for worker in numbers:
            state = self.states[worker]
            up, down = self._bytes.get(worker, (0, 0))
            shown = Text(state, style=STYLES.get(state, ""))
            table.add_row(str(worker), shown, str(self._rounds.get(worker, 0)), *pace, size(up), size(down))
        return table

    def _crowd(self) -> RenderableType:
        """Return all workers in a few lines: how many are in which state, and which are not as they should be."""
        states = Counter(self.states.values())
        up, down = (sum(both[i] for both in self._bytes.values()) for i in (0, 1))
        lines = [
            Text(", ".join(f"{count} workers {state}" for state, count in states.most_common())),
            Text(f"{self._pace:.1f} rounds a second, {size(up)} up, {size(down)} down"),
        ]
        for state in ("lost", "withheld", EXPECTED):
            which = [str(worker) for worker, own in sorted(self.states.items()) if own == state]
            if which and len(which) < len(self.states):
                lines.append(Text(f"{state}: {', '.join(which)}", style=STYLES.get(state, "")))
        return Group(*lines)

    @property
    def _pace(self) -> float:
        """Return the rounds a second of late."""
        if len(self._ends) < 2:
            return 0.0
        (began, first), (ended, last) = self._ends[0], self._ends[-1]
        return (last - first) / max(ended - began, 1e-9)
