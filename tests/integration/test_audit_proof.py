"""The audit of what a new user brings, checked against the files themselves; and one that is stopped and goes on."""

import csv
import json
import signal
import time

import numpy as np
import pytest

from tests.integration.audit_support import write_project
from tests.integration.command_support import cafe, nothing_left, start, wait_for
from vfl.audit.judgement import attacker
from vfl.audit.schema import Attempt

WITHIN = 1e-3


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_with_nothing_else_set_an_audit_says_who_learns_what_and_it_is_true(tmp_path):
    write_project(tmp_path)
    done = cafe("audit", "run.yaml", "--out", "audit", cwd=tmp_path, timeout=2400)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "audit" / "audit.json").read_text(encoding="utf-8"))
    assert found["verdict"] == "leaked"
    assert found["recommendation"]["defence"], found["recommendation"]["sentence"]
    assert "Price: accuracy" in found["recommendation"]["sentence"]
    _recommended_on_all(found)
    truth = _joined(tmp_path)
    undefended = [one for one in found["findings"] if one["defence"] == "none"]
    checked = 0
    for one in undefended:
        folder = tmp_path / "audit" / one["evidence"]
        if one["what"] == "rows" and one["adversary"] == "coordinator" and one["target"] == "worker 0":
            right = _right_rows(folder / "rows.csv", truth, ("income €", "debt", "opened", "city", "job"))
            assert right.sum() >= round(one["leaked"] * found["samples"]), one["evidence"]
        if one["what"] == "rows" and one["adversary"] == "coordinator" and one["target"] == "workers 0 and 1":
            whole = _whole_rows(folder / "recovered.npz")
            assert whole.sum() == round(one["leaked"] * found["samples"]), one["evidence"]
            assert _right_rows(folder / "rows.csv", truth)[whole].all(), one["evidence"]
            checked += bool(whole.any())
    assert checked
    ids = [row["id"] for row in _read(tmp_path / "audit" / "attempts" / "coordinator_exact" / "rows.csv")]
    labels = next(one for one in undefended if one["what"] == "labels" and one["attack"] == "label_clusters")
    own = _labels(tmp_path / "audit" / labels["evidence"], [truth[customer]["bought again"] for customer in ids])
    assert labels["leaked"] == own > 0.9
    for trial in found["trials"]:
        if trial["outcome"] == "done" and not trial["broken_by"]:
            assert trial["held_against"] or trial["unclear"] or trial["undecided"], trial["defence"]
    for one in found["attempts"]:
        assert one["outcome"] == "done" or not one["findings"]
    for name in ("audit.html", "audit.pdf"):
        assert (tmp_path / "audit" / name).stat().st_size > 20_000
    print(f"{found['seconds']:.0f} s. {found['headline']} {found['recommendation']['sentence']}")


def _recommended_on_all(found):
    """Every attacker that knows too much without the defence met it, or is named beside it."""
    advice, limit = found["recommendation"], found["limit"]
    above = {_attacker(one) for one in found["attempts"] if _most(one, "none") > limit}
    assert len(above) > 2
    unmet = {name.rpartition(" (")[0] for name in advice["unmet"]}
    assert above <= {*advice["held_against"], *unmet}
    assert all(name in advice["sentence"] for name in advice["unmet"])
    for one in found["attempts"]:
        if _attacker(one) in advice["held_against"] and one["outcome"] == "done":
            assert _most(one, advice["defence"]) <= limit


def _most(attempt, defence):
    clear = [one["beyond"] for one in attempt["findings"] if defence != "none" or one["state"] != "guess"]
    return max(clear, default=0.0) if attempt["defence"] == defence else 0.0


def _attacker(attempt):
    return attacker(Attempt.model_validate(attempt))


def _joined(folder):
    """The rows of both files, by customer, as a spreadsheet would join them."""
    joined = {}
    for name in ("bank.csv", "shop.csv"):
        for row in _read(folder / name):
            joined.setdefault(row["customer"], {}).update(row)
    return joined


def _read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _whole_rows(path):
    """Which rows are right in every feature, those that stand for categories and missing values too."""
    with np.load(path) as found:
        x, real = found["x"], found["x_true"]
    span = real.max(0) - real.min(0)
    return (np.abs(x - real) <= WITHIN * np.where(span > 0, span, np.maximum(1.0, np.abs(real).max(0)))).all(1)


def _right_rows(path, truth, columns=()):
    """Which rows are right in every value, or in these, as the files have it, to a thousandth of the column's range."""
    rows = _read(path)
    own = [truth[row["id"]] for row in rows]
    right = np.ones(len(rows), dtype=bool)
    for column in columns or (name for name in rows[0] if name not in ("id", "bought again")):
        real, recovered = [row[column] for row in own], [row[column] for row in rows]
        numbers = [value for value in real if _is_number(value)]
        if column != "opened" and len(numbers) > len(real) / 2:
            spread = max(map(float, numbers)) - min(map(float, numbers))
            right &= [_near(a, b, spread) for a, b in zip(real, recovered, strict=True)]
        else:
            right &= [a in (b, "", "?") and (a == b or b == "(missing)") for a, b in zip(real, recovered, strict=True)]
    return right


def _near(real, recovered, spread):
    if real == "":
        return recovered == ""
    return recovered != "" and abs(float(real) - float(recovered)) <= WITHIN * spread


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def _labels(folder, truth):
    """The share of labels that are right under the better naming of the two classes."""
    found = np.load(folder / "recovered.npz")["labels"]
    right = float((found == (np.array(truth) == "ja")).mean())
    return max(right, 1 - right)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_audit_that_is_stopped_keeps_what_is_done_and_goes_on(tmp_path):
    write_project(tmp_path, customers=60)
    asked = [
        "audit",
        "run.yaml",
        "--out",
        "audit",
        "--defence",
        "none",
        "--attack",
        "label_clusters",
        "--attack",
        "exact",
    ]
    process = start(*asked, "--attack", "output_inversion", tag="stopped audit", cwd=tmp_path)
    file = tmp_path / "audit" / "audit.json"

    def done():
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"attempts": []}
        return sum(one["outcome"] == "done" for one in kept["attempts"])

    wait_for(lambda: done() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "--resume goes on from there" in said
    assert nothing_left("stopped audit")
    assert (tmp_path / "audit" / "audit.html").exists()
    before = {path: path.stat().st_mtime for path in (tmp_path / "audit" / "record").glob("summary.json")}
    time.sleep(0.01)
    assert cafe(*asked, cwd=tmp_path).returncode == 2  # neither --resume nor --fresh
    again = cafe(*asked, "--attack", "output_inversion", "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime for path in before} == before
    assert {one["attack"] for one in json.loads(file.read_text(encoding="utf-8"))["attempts"] if one["findings"]} == {
        "label_clusters",
        "exact",
        "output_inversion",
    }
