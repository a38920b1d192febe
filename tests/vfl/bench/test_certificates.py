"""`cafe bench certificates --short`: what is certified is held against the truth, and the rate is printed."""

import json
from types import SimpleNamespace

import numpy as np

from vfl.bench.certificates import bench_certificates, right_samples
from vfl.partition import partition


def test_samples_are_counted_by_what_they_are_and_what_is_said_of_them(tmp_path, capsys):
    out = tmp_path / "certificates.json"
    bench_certificates(out, short=True)
    found = json.loads(out.read_text())
    assert [row["samples"] for row in found["cases"]] == [40, 24]
    for row in (*found["cases"], found["total"]):
        assert (
            sum(row[key] for key in ("certified_right", "certified_wrong", "open_right", "open_wrong"))
            == row["samples"]
        )
    assert found["total"]["certified_wrong"] == 0
    assert found["total"]["certified_right"] >= 40
    assert f"0 of {found['total']['certified_right']} certified samples are wrong." in capsys.readouterr().out
    assert found["table"][0][0] == "data"  # what the docs show


def test_one_wrong_slice_or_value_or_label_makes_a_sample_wrong():
    draw = np.random.default_rng(0)
    truth, labels = draw.random((4, 1, 8, 8), dtype=np.float32), np.arange(4)
    x, read = truth.copy(), labels.copy()
    x[1, 0, :4, :4] += 0.05  # one slice of four, at 26 dB: the whole image has 32
    read[2] = 0
    images = SimpleNamespace(
        arrays={"x": x, "x_true": truth, "labels": read, "labels_true": labels},
        setting=SimpleNamespace(boxes=partition((1, 8, 8), 4)),
    )
    assert right_samples(images).tolist() == [True, False, False, True]
    rows = truth.reshape(4, -1).copy()
    rows[3, 7] += 0.01
    table = {"x": rows, "x_true": truth.reshape(4, -1), "labels": labels, "labels_true": labels}
    assert right_samples(SimpleNamespace(arrays=table, setting=None)).tolist() == [True, True, True, False]
