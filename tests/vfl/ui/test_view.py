"""What the page makes of a journal's lines."""

import json
import time

import numpy as np
import pytest

from tests.vfl.ui.folder_support import ROUNDS, SAMPLES, begin, estimate, traffic
from vfl.folder.journal import Mark
from vfl.ui.view import POINTS, View
from vfl.ui.watch import Watch, load_gallery


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def watched(folder):
    watch = Watch(folder)
    watch.refresh()
    return watch


def shown(watch):
    return json.loads(watch.text)


def test_a_run_under_way(folder):
    begin(folder).close()
    run = shown(watched(folder))
    assert (run["state"], run["round"], run["rounds"]) == ("running", 2, ROUNDS)
    assert [worker["state"] for worker in run["workers"]] == ["joined"] * 3
    assert [worker["up"] for worker in run["workers"]] == [200, 201, 202]
    assert run["bytes"] == traffic(2)["bytes"]
    assert run["losses"] == [[1, 2.5], [2, 1.25]]
    assert run["run"]["label_holder"] == 1
    assert run["run"]["attack"] == "least_squares"
    assert run["said"] == ["worker 2 is slow"]
    assert run["result"] is None


def test_the_time_left_comes_from_the_rounds_since_the_run_last_went_on():
    view = View()
    lines = [(0.0, 1), (1.0, 11)]
    for t, number in lines:
        view.add({"t": t, "kind": "round", "round": number, "total": 61, "loss": 1.0, **traffic(number)})
    assert (view.rounds_per_second, view.seconds_left) == (10.0, 5.0)
    view.add({"t": 2.0, "kind": "state", "state": "paused"})
    assert view.seconds_left is None
    view.add({"t": 100.0, "kind": "state", "state": "running"})
    for t, number in [(100.0, 12), (101.0, 13)]:
        view.add({"t": t, "kind": "round", "round": number, "total": 61, "loss": 1.0, **traffic(number)})
    assert (view.rounds_per_second, view.seconds_left) == (1.0, 48.0)


def test_a_long_curve_keeps_its_shape_and_its_ends():
    view = View()
    for number in range(1, 10_001):
        line = {"t": number, "kind": "round", "round": number, "total": 10_000, "loss": 1 / number, **traffic(number)}
        view.add(line)
    assert len(view.losses) <= POINTS
    assert (view.losses[0], view.losses[-1]) == ((1, 1.0), (10_000, 1e-4))
    assert all(y == 1 / x for x, y in view.losses)


def test_the_newest_estimate_is_shown_and_some_before_can_still_be_asked_for(folder):
    journal = begin(folder)
    estimate(journal, folder, 10)
    watch = watched(folder)
    assert shown(watch)["pictures"] == {"number": 1, "samples": list(chosen()), "real": False}
    before = watch.galleries[1].recovered
    for number in range(2, 11):
        estimate(journal, folder, 10 * number)
        watch.refresh()
    assert shown(watch)["estimate"]["round"] == 100
    assert sorted(watch.galleries) == list(range(3, 11))
    assert watch.galleries[3].recovered != before


def chosen():
    return np.linspace(0, SAMPLES - 1, 24).round().astype(int).tolist()


def test_samples_that_the_adversary_knew_from_elsewhere_are_not_shown_as_rebuilt(folder):
    begin(folder).close()
    told = np.arange(SAMPLES) < SAMPLES - 4
    np.savez(folder / "recovered.npz", x=np.zeros((SAMPLES, 1, 8, 8), dtype=np.float32), told=told)
    assert load_gallery(folder, "recovered.npz").samples == tuple(range(SAMPLES - 4, SAMPLES))


def test_the_journal_cannot_name_a_file_outside_of_the_folder(folder):
    journal = begin(folder)
    np.savez(folder.parent / "secret.npz", x=np.ones((4, 1, 8, 8)))
    for file in ("../secret.npz", str(folder.parent / "secret.npz"), "snapshots/../../secret.npz"):
        journal.estimate(1, file, samples_done=4, psnr_mean=None, share_30db=None)
    journal.close()
    assert shown(watched(folder))["pictures"]["number"] == 0


@pytest.mark.parametrize("x", [np.ones((4, 7)), np.ones((4, 2, 8, 8)), np.array(["a"])], ids=["rows", "planes", "text"])
def test_what_is_no_image_is_not_shown(folder, x):
    journal = begin(folder)
    (folder / "snapshots").mkdir()
    np.savez(folder / "snapshots" / "00000001.npz", x=x)
    journal.estimate(1, "snapshots/00000001.npz", samples_done=4, psnr_mean=None, share_30db=None)
    assert shown(watched(folder))["pictures"]["number"] == 0


def test_lines_that_make_no_sense_are_passed_over(folder):
    begin(folder).close()
    with (folder / "journal.jsonl").open("a") as file:
        file.write(
            '{"t": 1, "kind": "round"}\n{"t": "x", "kind": "worker", "id": 0, "state": "lost"}\n[]\n{"kind": "new"}\n'
        )
        file.write('{"t": 1, "kind": "state", "state": "attacking"}\n{"t": 1, "kind": "sta')
    assert shown(watched(folder))["state"] == "attacking"


def test_what_an_earlier_run_left_is_not_taken_for_this_run_whatever_the_clock_says(folder, monkeypatch):
    journal = begin(folder)
    journal.state("ended")
    journal.close()
    watch = Watch(folder, after=Mark.now(folder))
    watch.refresh()
    assert (shown(watch)["state"], shown(watch)["round"]) == ("waiting", 0)
    yesterday = time.time() - 86_400
    monkeypatch.setattr("time.time", lambda: yesterday)  # a clock that was set back shows a run all the same
    begin(folder).close()
    watch.refresh()
    assert (shown(watch)["state"], shown(watch)["round"]) == ("running", 2)


def test_another_run_in_the_same_folder_begins_anew(folder):
    journal = begin(folder)
    estimate(journal, folder, 10)
    journal.state("ended", "stopped before the end")
    journal.close()
    watch = watched(folder)
    assert shown(watch)["reason"] == "stopped before the end"
    assert shown(watch)["pictures"]["number"] == 1
    (folder / "journal.jsonl").unlink()
    again = begin(folder)
    watch.refresh()
    assert (shown(watch)["state"], shown(watch)["reason"]) == ("running", None)
    assert shown(watch)["pictures"] == {"number": 0, "samples": [], "real": False}
    again.close()
