"""Tables that may be anybody's: read, or refused with a sentence, and never larger than they say."""

import pytest
import torch
from hypothesis import given

from tests.fuzz.support import CORPUS, fuzz, little_memory, mutated, outcome, written
from vfl import limits
from vfl.datasets.npz import Archive
from vfl.datasets.tables import Csv, Parquet
from vfl.errors import UserError
from vfl.files import archive

READERS = {"csv": Csv, "parquet": Parquet}
GOOD = {"csv/good", "csv/quotes", "parquet/good"}
FILES = sorted(f"{kind}/{path.name}" for kind in READERS for path in (CORPUS / kind).iterdir())


def load(kind, path):
    return READERS[kind](path=path, label="y", id="person", missing="indicator").load()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(limits, "TABLE_BYTES", 16 << 20)
    monkeypatch.setattr(limits, "TABLE_COLUMNS", 1_000)
    load("parquet", CORPUS / "parquet" / "good")  # what pyarrow itself takes is not the file's


@pytest.mark.parametrize("name", FILES)
def test_tables_of_the_corpus(name):
    kind, _, _ = name.partition("/")
    with little_memory():
        _, refusal = outcome(lambda: load(kind, CORPUS / name), UserError)
    assert (refusal is None) == (name in GOOD), refusal
    if name in ("parquet/many_rows", "parquet/long_word", "parquet/long_large_string"):
        assert "when it is read, the limit is 16777216" in refusal


@fuzz
@given(mutated("csv"))
def test_any_csv(tmp_path, data):
    loaded, refusal = outcome(lambda: load("csv", written(tmp_path, data)), UserError)
    assert refusal or bool(torch.isfinite(loaded.x).all())


@fuzz
@given(mutated("parquet"))
def test_any_parquet(tmp_path, data):
    loaded, refusal = outcome(lambda: load("parquet", written(tmp_path, data)), UserError)
    assert refusal or bool(torch.isfinite(loaded.x).all())


@fuzz
@given(mutated("npz"))
def test_any_archive_as_a_table(tmp_path, monkeypatch, data):
    monkeypatch.setattr(archive, "ARCHIVE_BYTES", 16 << 20)
    path = written(tmp_path, data)
    loaded, refusal = outcome(lambda: Archive(path=path, label="y", missing="indicator").load(), UserError)
    assert refusal or bool(torch.isfinite(loaded.x).all())
    assert list(tmp_path.iterdir()) == [path]


def test_a_csv_beyond_the_limits_is_not_read(tmp_path):
    long = written(tmp_path, b"person,a,y\n" + b"p,1,0\n" * (3 << 20), "long")
    with little_memory():
        _, refusal = outcome(lambda: load("csv", long), UserError)
    assert "takes 18874379 bytes when it is read, the limit is 16777216" in refusal
    wide = written(tmp_path, ",".join(map(str, range(1_001))).encode() + b"\n", "wide")
    assert "has 1001 columns, the limit is 1000" in outcome(lambda: load("csv", wide), UserError)[1]
