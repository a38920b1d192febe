"""The live view, as a terminal of 80 by 24 shows it."""

import io

import pyte
import pytest
from rich.console import Console

from vfl.cli.progress import Screen

WIDTH, HEIGHT = 80, 24


def run_of(workers: int) -> list[dict]:
    """The journal of a run that is in the middle of its attack."""
    return [
        {"kind": "state", "state": "waiting"},
        *({"kind": "worker", "id": worker, "state": "joined"} for worker in range(workers)),
        {"kind": "run", "workers": workers, "samples": 800, "batch_size": 40},
        {"kind": "state", "state": "running"},
        *(round_of(workers, number, 100.0 + number) for number in (1, 2, 3)),
        {"kind": "evaluation", "round": 3, "loss": 0.5, "accuracy": 0.75},
        {"kind": "state", "state": "attacking"},
        {"kind": "step", "name": "step III", "done": 30, "total": 1600},
        {"kind": "estimate", "round": None, "psnr_mean": 41.27, "share_30db": 0.25},
    ]


def round_of(workers: int, number: int, when: float) -> dict:
    each = [{"id": worker, "up": number * 72_300_000, "down": 999} for worker in range(workers)]
    return {"kind": "round", "t": when, "round": number, "total": 100_000, "loss": 0.6826, "workers": each}


def shown(lines, workers, **options) -> list[str]:
    """What is on the screen when the lines have been taken in."""
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, height=HEIGHT, force_terminal=True, highlight=False, **options)
    screen = Screen(console, workers)
    for line in lines:
        screen.take(line)
        screen.draw()
    terminal = pyte.Screen(WIDTH, HEIGHT)
    pyte.Stream(terminal).feed(file.getvalue().replace("\n", "\r\n"))
    assert terminal.cursor.hidden
    pyte.Stream(terminal).feed(_closing(screen, file).replace("\n", "\r\n"))
    assert not terminal.cursor.hidden
    return [text.rstrip() for text in terminal.display]


def _closing(screen: Screen, file: io.StringIO) -> str:
    before = len(file.getvalue())
    screen.close()
    return file.getvalue()[before:]


@pytest.mark.parametrize("workers", [4, 16, 64])
def test_a_run_fits_the_screen_with_any_number_of_workers(workers):
    text = shown(run_of(workers), workers)
    whole = "\n".join(text)
    assert text[0].startswith(f"attacking  {workers} workers, 800 samples, batches of 40")
    assert "3/100000" in whole
    assert "loss 0.6826" in whole
    assert "30/1600" in whole
    assert "PSNR 41.3 dB on average, 25% of the images at 30 dB or better" in whole
    assert "accuracy 75.0%" in whole
    assert "…" not in whole


def test_a_few_workers_have_a_line_each():
    rows = [line.split() for line in shown(run_of(4), 4) if line.strip().startswith(tuple("0123"))]
    assert rows == [[str(worker), "joined", "3", "1.0", "217", "MB", "999", "bytes"] for worker in range(4)]


def test_sixteen_workers_are_beside_each_other():
    withheld = {"kind": "worker", "id": 15, "state": "withheld"}
    row = next(line.split() for line in shown([*run_of(16), withheld], 16) if line.strip().startswith("7 "))
    numbers = ["3", "217", "MB", "999", "bytes"]
    assert row == ["7", "joined", *numbers, "15", "withheld", *numbers]


def test_of_a_crowd_those_that_need_looking_after_are_named():
    lost = [{"kind": "worker", "id": worker, "state": "lost"} for worker in (7, 41)]
    text = shown([*run_of(64), *lost], 64)
    assert "62 workers joined, 2 workers lost" in text
    assert "lost: 7, 41" in text
    assert "1.0 rounds a second, 13.9 GB up, 63.9 KB down" in text


def test_workers_that_have_not_come_yet_are_expected():
    text = shown([{"kind": "state", "state": "waiting"}, {"kind": "worker", "id": 1, "state": "joined"}], 2)
    assert [line.split()[:2] for line in text[3:5]] == [["0", "expected"], ["1", "joined"]]


def test_a_test_loss_without_a_number_is_left_out():
    text = shown([{"kind": "evaluation", "round": 3, "loss": None, "accuracy": 0.1}], 2)
    assert "on test samples  accuracy 10.0%, after round 3" in text


def test_what_is_said_stays_above_the_view():
    text = shown([*run_of(2), {"kind": "say", "text": "worker 1 left in round 4"}], 2)
    assert text[0] == "worker 1 left in round 4"
    assert text[1].startswith("attacking")
