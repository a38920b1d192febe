"""The journal: what is held back, what never is, and how it is read while it is written."""

import json

import pytest

from vfl.folder import clear_run
from vfl.folder import journal as module
from vfl.folder.journal import NAME, Journal, Tail

NO_TRAFFIC = dict


def lines(out) -> list[dict]:
    return [json.loads(text) for text in (out / NAME).read_text().splitlines()]


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told to go on."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_of_many_rounds_the_first_the_last_and_a_few_are_written(tmp_path, clock):
    journal = Journal(tmp_path)
    for number in range(1, 101):
        journal.round(number, 100, loss=0.5, rate=0.1, traffic=NO_TRAFFIC)
        clock[0] += 0.01
    assert len(lines(tmp_path)) == 5  # one second, five lines
    journal.state("attacking")
    rounds = [line["round"] for line in lines(tmp_path) if line["kind"] == "round"]
    assert rounds[0] == 1
    assert rounds[-1] == 100
    assert lines(tmp_path)[-1]["state"] == "attacking"


def test_the_last_word_of_every_step_is_written(tmp_path, clock):
    journal = Journal(tmp_path)
    for name in ("one", "two"):
        for done in (1, 2, 3):
            journal.step(name, done, 3)
    journal.close()
    said = [(line["name"], line["done"]) for line in lines(tmp_path)]
    assert said == [("one", 1), ("one", 3), ("two", 1), ("two", 3)]


def test_bytes_are_those_of_when_the_line_is_written(tmp_path, clock):
    journal, count = Journal(tmp_path), {"bytes": 1}
    journal.round(1, 2, loss=0.5, rate=0.1, traffic=lambda: count)
    journal.round(2, 2, loss=0.5, rate=0.1, traffic=lambda: count)
    count["bytes"] = 7
    journal.close()
    assert [line["bytes"] for line in lines(tmp_path)] == [1, 7]


def test_numbers_that_json_has_no_word_for_become_null(tmp_path):
    Journal(tmp_path).evaluation(3, float("inf"), float("nan"))
    (line,) = lines(tmp_path)
    assert (line["loss"], line["accuracy"]) == (None, None)


def test_a_folder_that_is_gone_does_not_end_the_run(tmp_path):
    Journal(tmp_path / "nowhere").say("hello")
    assert not (tmp_path / "nowhere").exists()


def test_a_reader_sees_whole_lines_only_and_each_once(tmp_path):
    tail = Tail(tmp_path)
    assert tail.read() == []
    with (tmp_path / NAME).open("a") as file:
        file.write('{"kind": "say", "text": "one"}\n{"kind": "sa')
        file.flush()
        assert [line["text"] for line in tail.read()] == ["one"]
        file.write('y", "text": "two"}\nnonsense\n[1]\n')
        file.flush()
        assert [line["text"] for line in tail.read()] == ["two"]
    assert tail.read() == []


def test_a_reader_does_not_take_an_earlier_run_for_this_one(tmp_path):
    Journal(tmp_path).say("earlier")
    tail = Tail(tmp_path)
    assert tail.read() == []
    clear_run(tmp_path)
    Journal(tmp_path).say("now")
    assert [line["text"] for line in tail.read()] == ["now"]
    Journal(tmp_path).say("resumed")  # another writer of the same file
    assert [line["text"] for line in tail.read()] == ["resumed"]


def test_the_whole_of_a_journal_can_be_read_later(tmp_path):
    Journal(tmp_path).say("earlier")
    assert [line["text"] for line in Tail(tmp_path, from_start=True).read()] == ["earlier"]
