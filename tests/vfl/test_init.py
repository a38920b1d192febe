"""`cafe init`: from a file or five questions to a config that runs."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import vfl.cli.init
from vfl.cli.app import app
from vfl.config import load_config
from vfl.errors import UserError

ADULT = Path(__file__).parents[2] / "examples" / "tables" / "adult.csv"


def init(*arguments: object, keys: str | None = None) -> str:
    done = CliRunner().invoke(app, ["init", *map(str, arguments)], input=keys, catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_a_table_gets_its_id_its_columns_and_an_attack_that_can_run(tmp_path):
    out = tmp_path / "adult.yaml"
    assert f"next: cafe run {out}" in init(ADULT, "--label", "income", "--workers", 3, "--out", out)
    config = load_config(out)
    assert config.data.options["id"] == "person"
    assert [len(part) for part in config.data.options["columns"]] == [3, 3, 3]
    assert config.attack.name == "exact"
    assert out.read_text().count("#") > 10


def test_a_curious_worker_gets_an_attack_of_its_own_seat(tmp_path):
    init("digits", "--adversary", 1, "--out", tmp_path / "run.yaml")
    assert load_config(tmp_path / "run.yaml").attack.name == "label_clusters"


def test_five_questions_are_asked_on_a_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vfl.cli.init, "_on_terminal", lambda: True)
    shown = init(keys=f"{ADULT}\nincome\n2\ncoordinator\nprune\n")
    assert shown.count("? ") == 5
    config = load_config(Path("run.yaml"))
    assert (config.federation.workers, config.defence_of(0)[0].name) == (2, "prune")


def test_an_answer_that_cannot_be_taken_is_asked_for_again_and_no_other_is_lost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vfl.cli.init, "_on_terminal", lambda: True)
    shown = init(keys=f"nowhere.csv\nnonsense\n{ADULT}\nwage\nincome\ntwo\n2\nme\ncoordinator\nmagic\nnone\n")
    assert shown.count("? ") == 11
    for reason in ("no file nowhere.csv", "'nonsense'", "--label wage", "two: expected", "--adversary me", "'magic'"):
        assert reason in shown
    assert load_config(Path("run.yaml")).data.options["label"] == "income"


def test_a_birthday_or_an_income_that_no_two_share_is_a_feature_and_no_id(tmp_path):
    table = tmp_path / "people.csv"
    rows = (f"{1950 + n}-05-01,{40_000 + 37 * n},K{n},{n % 2}" for n in range(30))
    table.write_text("\n".join(("born,income,person,stays", *rows)) + "\n")
    init(table, "--out", tmp_path / "run.yaml")
    options = load_config(tmp_path / "run.yaml").data.options
    assert (options["id"], options["columns"]) == ("person", [["born"], ["income"]])


def test_a_table_as_a_spreadsheet_writes_it_has_its_own_separator_and_its_price_is_a_number_to_predict(tmp_path):
    table = tmp_path / "flats.csv"
    rows = (f"{n};Köln, {n % 3};{20 + n % 7};{100_000 + 977 * n}" for n in range(40))
    table.write_text("\n".join(("Nr;Ort;m²;price", *rows)) + "\n", encoding="utf-8-sig")
    init(table, "--out", tmp_path / "run.yaml")
    config = load_config(tmp_path / "run.yaml")
    options = config.data.options
    assert (options["separator"], options["id"], options["columns"]) == (";", "Nr", [["Ort"], ["m²"]])
    assert (config.training.loss, config.attack.name) == ("squared", "exact")


def test_a_curious_label_holder_knows_some_samples_and_where_no_attack_can_run_that_is_said(tmp_path):
    out = tmp_path / "run.yaml"
    init("digits", "--adversary", "label_holder", "--out", out)
    assert (load_config(out).attack.name, load_config(out).auxiliary) == ("inverse_network", 50)
    assert "No attack can run" in init(ADULT, "--adversary", "label_holder", "--out", out, "--force")
    assert (load_config(out).attack.name, load_config(out).auxiliary) == ("none", 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("größe,b\n1,2\n".encode("latin-1"), "not written in UTF-8"),
        (b"a,b\n", "no rows below it"),
        (b"a\n1\n", "at least two columns"),
        (
            b"when,paid,stays\n" + b"".join(b'%02d.01.2020,"%d,50",%d\n' % (n, n, n % 2) for n in range(1, 29)),
            "'when' of .* holds dates",
        ),
    ],
)
def test_a_file_that_is_no_table_to_us_is_a_sentence(tmp_path, text, words):
    table = tmp_path / "table.csv"
    table.write_bytes(text)
    with pytest.raises(UserError, match=words):
        init(table, "--out", tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "questions are asked on a terminal only"),
        ((ADULT, "--label", "wage"), "--label wage: .* has the columns person, age"),
        ((ADULT, "--workers", 40), "--workers 40: .* has 9 columns to share"),
        (("nowhere.csv",), "there is no file nowhere.csv"),
        (("digits", "--label", "y"), "--label y: is for tables"),
        (("digits", "--adversary", "me"), "--adversary me: choose coordinator"),
        (("digits", "--defence", "magic"), "there is no defence called 'magic'"),
        (("nonsense",), "there is no data called 'nonsense'"),
    ],
)
def test_a_bad_answer_is_a_sentence(tmp_path, arguments, words):
    with pytest.raises(UserError, match=words):
        init(*arguments, "--out", tmp_path / "run.yaml")


def test_a_file_that_is_there_is_kept(tmp_path):
    out = tmp_path / "run.yaml"
    out.write_text("mine")
    line = [sys.executable, "-m", "vfl.cli", "init", "digits", "--out", str(out)]
    ended = subprocess.run(line, capture_output=True, text=True)
    assert (ended.returncode, out.read_text()) == (2, "mine")
    assert "--force writes over it" in ended.stderr
