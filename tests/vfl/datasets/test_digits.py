"""Whole numbers of many digits: two of them are never taken for one."""

import json

import numpy as np
import pytest

from vfl.datasets import datasets
from vfl.errors import UserError
from vfl.referee.rows import write_rows
from vfl.registry import PluginSection


@pytest.fixture
def csv(tmp_path):
    def make(text, **options):
        (tmp_path / "t.csv").write_text(text, encoding="utf-8")
        section = {"name": "csv", "path": str(tmp_path / "t.csv"), "label": "y"} | options
        return datasets.build(PluginSection(**section)).load()

    return make


@pytest.fixture
def npz(tmp_path):
    def make(x, **options):
        np.savez(tmp_path / "t.npz", x=x, y=np.arange(len(x)) % 2, feature_names=np.array(["account"]))
        return datasets.build(PluginSection(name="npz", path=str(tmp_path / "t.npz"), **options)).load()

    return make


@pytest.mark.parametrize("number", ["9007199254740993", "-9007199254740993", "9007199254740993.00", "9" * 500])
def test_numbers_in_a_text_beyond_2_to_the_53_are_refused(csv, number):
    for column, text in (("a", f"a,y\n{number},0\n1,1\n"), ("y", f"a,y\n1,{number}\n2,9007199254740992\n")):
        with pytest.raises(UserError, match=rf"column '{column}' of .* has whole numbers beyond 2\^53"):
            csv(text)
        assert csv(text, categorical=[column]).classes == 2


def test_numbers_that_are_not_written_with_all_their_digits_are_measurements(csv):
    data = csv("a,y\n9007199254740992,0\n1e16,1\n2.5e20,1\n")
    assert data.columns[0].first == (2.0**53, 1e16, 2.5e20)


def test_classes_of_many_digits_have_names_of_their_own(csv):
    data = csv("a,y\n1,1234567890123456\n2,1234567890123457\n3,0.5\n")
    assert data.class_names == ("0.5", "1234567890123456", "1234567890123457")


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_an_archive_s_numbers_beyond_2_to_the_53_are_refused_unless_they_are_names(npz, kind):
    x = np.array([[2**60], [2**60 + 1], [2**60 + 2]], kind)
    with pytest.raises(
        UserError, match=r"column 'account' has whole numbers beyond 2\^53, .* name it in data\.categor"
    ):
        npz(x)
    data = npz(x, categorical=["account"])
    assert data.columns[0].decode(data.x) == [str(2**60 + i) for i in range(3)]
    assert npz(np.array([[2**53], [1]], kind)).columns[0].first == (2.0**53, 1.0)


def test_real_rows_are_shown_as_they_were_read(csv, tmp_path):
    data = csv("a,same,word,y\n0.1,1e-7,x,0\n0.2,1e-7,z,1\n1000000,1e-7,x,0\n")
    write_rows(tmp_path, data, data.x, None)
    shown = json.loads((tmp_path / "rows.json").read_text())
    assert shown["real"] == [[0.1, 1e-7, "x"], [0.2, 1e-7, "z"], [1e6, 1e-7, "x"]]
    assert shown["recovered"] == [[0.0, 1e-7, "x"], [0.0, 1e-7, "z"], [1e6, 1e-7, "x"]]  # a feature has no more


def test_large_floats_that_are_names_stay_apart(npz):
    data = npz(np.array([[1e16], [1e16 + 2], [1e16 + 4]]), categorical=["account"])
    assert data.columns[0].width == 3


def test_an_archive_s_row_without_a_name_is_refused(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.eye(2), y=np.arange(2), ids=np.array(["a", ""]))
    with pytest.raises(UserError, match=r"ids in .* has an empty name, number 2"):
        datasets.build(PluginSection(name="npz", path=str(tmp_path / "t.npz"))).load()
