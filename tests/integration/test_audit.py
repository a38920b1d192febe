"""`cafe audit` in real processes: one recording, attacks from every seat, and the reports."""

import json
import re
import shlex
import shutil
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import pytest
import yaml

from tests.bank import bank_config, write_files
from tests.integration.command_support import cafe
from vfl.audit.leaderboard import lines_of, submit
from vfl.folder.transcript import _checksum

PROJECT = Path(__file__).parents[2]
ATTACKS = ("--attack", "label_clusters", "--attack", "output_inversion", "--attack", "least_squares")


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """A federation of two parties, small enough that an audit takes seconds."""
    folder = tmp_path_factory.mktemp("bank")
    config = bank_config(
        write_files(folder, 60), federation={"workers": 2, "batch_size": 6, "epochs": 3, "label_holder": 1}
    )
    (folder / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def audited(bank):
    """An audit of it by three attacks, without defences."""
    out = bank / "audit"
    done = cafe(*_pipeline(), *ATTACKS, "--defence", "none", cwd=bank)
    return done, out


def _pipeline():
    """What the example of a build pipeline runs."""
    jobs = yaml.safe_load((PROJECT / "examples" / "audit_pipeline.yml").read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for step in jobs["audit"]["steps"] if "run" in step]
    program, *arguments = shlex.split(next(one for one in commands if one.startswith("cafe audit")))
    assert program == "cafe"
    return arguments


def test_an_audit_says_who_learns_what_and_fails_the_pipeline(audited):
    done, out = audited
    assert done.returncode == 1
    assert "cafe: --fail-if labels > 0.6: it is 1 " in done.stderr
    assert done.stderr.rstrip().endswith("[E83]")
    assert "Traceback" not in done.stderr
    found = json.loads((out / "audit.json").read_text(encoding="utf-8"))
    worker, coalition = {"worker": 0}, ["coordinator", "label_holder"]
    labels = next(one for one in found["findings"] if one["what"] == "labels")
    assert (labels["adversary"], labels["target"], labels["attack"]) == (worker, "worker 1", "label_clusters")
    assert labels["leaked"] == 1.0 > labels["guess"]
    columns = next(one for one in found["findings"] if one["what"] == "columns")
    assert (columns["adversary"], columns["target"]) == (coalition, "worker 0")
    assert columns["leaked"] > 0.9
    refused = next(one for one in found["attempts"] if one["attack"] == "least_squares")
    assert refused["outcome"] == "refused"
    assert "frozen parameters" in refused["sentence"]
    for name in ("audit.html", "audit.pdf"):
        assert (out / name).stat().st_size > 5000
    assert (out / columns["evidence"] / "report.html").exists()
    rows = found["examples"][0]["rows"]
    assert len(rows) == 5
    assert sum(row["real"] == row["found"] for row in rows) >= 4


def test_audit_json_is_as_the_published_schema_says(audited):
    _, out = audited
    schema = json.loads(cafe("audit", "--schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    found = json.loads((out / "audit.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, schema)
    asked = {"adversary", "target", "what", "leaked", "guess", "attack", "defence"}
    assert asked <= set(schema["$defs"]["Finding"]["required"])
    del found["findings"][0]["guess"]
    with pytest.raises(jsonschema.ValidationError, match="'guess' is a required property"):
        jsonschema.validate(found, schema)


def test_every_place_of_the_matrix_leads_to_what_shows_it_or_to_why_nothing_does(audited):
    _, out = audited
    page = (out / "audit.html").read_text(encoding="utf-8")
    matrix = page[page.index('id="matrix"') : page.index('id="basis"')]
    links = [unquote(link) for link in re.findall(r'<td[^>]*><a href="([^"]+)"', matrix)]
    done = [link for link in links if not link.startswith("#")]
    assert len(links) == len(json.loads((out / "audit.json").read_text(encoding="utf-8"))["attempts"])
    assert done
    assert all((out / link).is_file() if link in done else f'id="{link[1:]}"' in page for link in links)


def test_what_an_audit_recorded_is_audited_again_as_transcripts(audited, tmp_path):
    _, first = audited
    done = cafe("audit", first / "record", *ATTACKS[:2], "--budget", "2m", "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    before, again = (json.loads((out / "audit.json").read_text()) for out in (first, tmp_path / "again"))
    labels = [[one for one in found["findings"] if one["what"] == "labels"] for found in (before, again)]
    assert labels[0] == labels[1]


def test_what_an_audit_measured_goes_on_the_leaderboard_once(audited, tmp_path):
    _, out = audited
    assert submit([out, out], tmp_path) == 2 * len(list(lines_of(out)))
    board = json.loads((tmp_path / "leaderboard.json").read_text(encoding="utf-8"))["lines"]
    assert len(board) == len(list(lines_of(out))) == 2
    labels = next(line for line in board if line["attack"] == "label_clusters")
    assert (labels["data"], labels["seat"], labels["defence"]) == ("bank and shop", "worker 0", "none")
    assert labels["known"] == 1.0
    assert labels["config"]["adversary"] == {"worker": 0}
    table = json.loads((tmp_path / "tables" / "leaderboard.json").read_text(encoding="utf-8"))["table"]
    assert [len(row) for row in table] == [len(table[0])] * 3


def test_a_transcript_that_names_code_is_refused_before_anything_is_imported(audited, tmp_path):
    _, first = audited
    seats = [path.parent for path in (first / "record").glob("*/transcript")]
    kept = shutil.copytree(seats[0], tmp_path / "elsewhere")
    (tmp_path / "theirs.py").write_text("open('was imported', 'w')", encoding="utf-8")
    meta = kept / "transcript" / "meta.json"
    named = json.loads(meta.read_text(encoding="utf-8"))
    named["config"]["model"] = {"name": "theirs:network"}
    del named["sha256"]
    text = json.dumps(named | {"sha256": _checksum(named)})
    meta.write_text(text, encoding="utf-8")
    done = cafe("audit", "elsewhere", "--out", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert "names code of its own to be imported, model.name theirs:network" in done.stderr.splitlines()[-1]
    other = cafe("audit", seats[1], "elsewhere", "--out", "out", cwd=tmp_path)
    assert (other.returncode, "are of different runs" in other.stderr) == (2, True)
    assert not (tmp_path / "was imported").exists()
    assert not (tmp_path / "out").exists()


def test_a_malicious_coordinator_has_a_seat_and_a_run_of_its_own(tmp_path):
    config = {
        "seed": 0,
        "data": {"name": "breast_cancer", "samples": 64},
        "federation": {"workers": 2, "batch_size": 16, "rounds": 24, "checks": False},
        "model": {"name": "mlp", "hidden": [128]},
        "training": {"optimizer": "sgd", "lr": 0.05},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    asked = ("--attack", "isolate", "--defence", "none", "--budget", "5m", "--out", "audit")
    done = cafe("audit", "run.yaml", *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "audit" / "audit.json").read_text(encoding="utf-8"))
    assert found["headline"].startswith("The malicious coordinator: all 64 whole rows of workers 0 and 1")
    assert [one["adversary"] for one in found["attempts"]] == [{"coordinator": "malicious"}]
    assert (tmp_path / "audit" / found["findings"][0]["evidence"] / "report.html").is_file()
    assert "active (malicious)" in (tmp_path / "audit" / "audit.html").read_text(encoding="utf-8")
    jsonschema.validate(found, json.loads(cafe("audit", "--schema").stdout))


def test_a_wrong_option_ends_with_a_sentence(bank, tmp_path):
    asked = {
        "there is no attack called 'exakt'": ("--attack", "exakt"),
        "there is no defence called 'noize'": ("--defence", "noize"),
        "marvell acts on answers, not on uploads": ("--defence", "marvell"),
        "strength": ("--defence", "{answers: {name: marvell, strength: much}}"),
        "expected a time": ("--budget", "soon"),
        "holds no audit": ("--resume",),
    }
    for said, words in asked.items():
        done = cafe("audit", bank / "run.yaml", *words, "--out", tmp_path / "out")
        assert (done.returncode, said in done.stderr.splitlines()[-1]) == (2, True), done.stderr
        assert not (tmp_path / "out" / "record").exists()
    late = cafe("audit", bank / "run.yaml", "--budget", "0.1s", "--out", tmp_path / "late")
    assert (late.returncode, "give a larger --budget" in late.stderr.splitlines()[-1]) == (2, True), late.stderr
