"""Columns of dates, and of numbers that are not written as such."""

import numpy as np
import pytest

from vfl.datasets import datasets
from vfl.datasets.columns import Text
from vfl.datasets.tables.file import check_words
from vfl.errors import UserError
from vfl.registry import PluginSection


def words(*told):
    return Text(np.arange(len(told)), told)


@pytest.mark.parametrize(
    "told",
    [
        ("2024-01-31", "2024-02-31"),
        ("2024-01-31", "31.1.2024"),
        ("31.1.2024", "1.2.24"),
        ("1/31/2024", "2/1/2024"),
        ("2024-01-31T10:00:00Z", "2024-02-01 11:30"),
        ("2024/01/31 10:00:00.123+02:00",),
    ],
)
def test_dates_get_a_sentence(told):
    with pytest.raises(
        UserError, match=rf"column 'when' of a\.csv holds dates \('{told[0][:4]}.* write all of them as"
    ):
        check_words("when", words(*told), "a.csv")


@pytest.mark.parametrize(
    ("told", "strange"),
    [
        (("5", "$5"), r"\$5"),
        (("5%", "10 %", "2.5%"), "5%"),
        (("1,40", "-2,50"), "1,40"),
        (("12", "1,000", "12,000,000.5"), "1,000"),
        (("€ 3", "-€4", "5 €"), "€ 3"),
        (("EUR 3", "4 EUR"), "EUR 3"),
        (("1'000", "3"), "1'000"),
        (("1", "２"), "２"),
        (("٣", "٤"), "٣"),
    ],
)
def test_numbers_that_are_not_written_as_such_get_a_sentence(told, strange):
    with pytest.raises(UserError, match=rf"holds numbers, and .{strange}. is not written as one"):
        check_words("sum", words(*told), "a.csv")


def test_numbers_beside_words_that_are_empty_and_not_said_to_be_missing_get_a_sentence():
    with pytest.raises(
        UserError, match=r"column 'sum' of a\.csv holds numbers and empty words; put '' among data\.mis"
    ):
        check_words("sum", words("1", "", "3"), "a.csv")


@pytest.mark.parametrize(
    "told", [("5", "many"), ("rot", "2024-01-31"), ("<=50K", ">50K"), ("10-20", "20-30"), ("A12", "B3"), ("", "%"), ()]
)
def test_other_words_are_words(told):
    check_words("any", words(*told), "a.csv")


def test_a_table_with_such_a_column_says_so_unless_it_is_said_to_hold_categories(tmp_path):
    (tmp_path / "a.csv").write_text('joined,fee,y\n31.1.2024,"1,40",5%\n1.2.2024,"2,50",10%\n', encoding="utf-8")
    section = {"name": "csv", "path": str(tmp_path / "a.csv"), "label": "y"}
    for categorical, told in (([], "'joined' of .* holds dates"), (["joined"], "'fee' of .* holds numbers")):
        with pytest.raises(UserError, match=told):
            datasets.build(PluginSection(**section, categorical=categorical)).load()
    data = datasets.build(PluginSection(**section, categorical=["joined", "fee"])).load()
    assert data.class_names == ("10%", "5%")
    assert data.columns[0].categories == ("1.2.2024", "31.1.2024")


def test_dates_are_days_to_a_model_and_dates_to_a_reader(tmp_path):
    lines = ["since,y", "2024-02-28,a", "2024-03-01,b", "1969-12-31,a", ",b", "2031-07-09,a"]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    section = PluginSection(name="csv", path=str(tmp_path / "a.csv"), label="y", missing="indicator")
    data = datasets.build(section).load()
    (column,) = data.columns
    assert (column.kind, column.date, column.first[:3]) == ("number", True, (19781.0, 19783.0, -1.0))
    written = [line.partition(",")[0] or None for line in lines[1:]]
    assert column.decode(data.x) == column.as_read(data.x) == written
    data.x[0, 0] = 1e9  # as an attack may guess it
    assert isinstance(column.decode(data.x)[0], str)
