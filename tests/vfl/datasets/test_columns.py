"""Columns as features and back."""

import numpy as np
import pytest

from vfl.datasets.columns import Text, as_words, fit_column
from vfl.errors import UserError


@pytest.mark.parametrize("values", [[1e300, 1.0, 2.0], [1.7e308, 1.7e308, 1.0], [1.7e308] * 3, [-1e200, 1e200, 0.0]])
def test_numbers_too_large_to_be_scaled_get_a_sentence(values):
    with pytest.raises(UserError, match=r"column 'debt' has values up to 1(\.7)?e\+\d+, too large for a mean"):
        fit_column("debt", np.array(values), 1)


@pytest.mark.parametrize("value", [1e300, -1.7e308, 4e38])
def test_a_test_row_that_no_feature_holds_gets_a_sentence(value):
    column = fit_column("debt", np.array([1.0, 2.0, 3.0]), 1)
    with pytest.raises(
        UserError, match=r"column 'debt' has the value -?[14][.e].* so far from the training rows' mean, 2"
    ):
        column.encode(np.array([2.0, value, np.nan]))


def test_large_numbers_that_fit_are_scaled():
    values = np.array([1e100, 2e100, 4e100])
    column = fit_column("debt", values, 1)
    assert column.decode(column.encode(values)) == pytest.approx(values.tolist(), rel=1e-5)


@pytest.mark.parametrize("value", [1e-7, 0.0, 123456.789, -3e20])
def test_a_number_that_is_the_same_in_every_row_is_read_back_as_it_is(value):
    values = np.full(3, value)
    column = fit_column("fee", values, 1)
    assert column.decode(column.encode(values)) == [value] * 3
    assert column.decode(column.encode(values) + 0.25) == [value + 0.25] * 3  # not recovered: that is to be seen


@pytest.mark.parametrize(
    "values", [4e15 + 40.0 * np.arange(9), np.array([0.3, 0.1 + 0.2, 0.3]), np.array([0.0, 5e-324, 1e-323])]
)
def test_numbers_that_differ_at_all_are_no_constant(values):
    column = fit_column("account", values, 1)
    assert not column.constant
    features = column.encode(values)
    assert features.isfinite().all()
    assert features.std(correction=0) == pytest.approx(1.0, rel=0.5)
    assert column.decode(features) == pytest.approx(values.tolist(), rel=1e-12, abs=1e-12)


def test_the_first_rows_are_shown_with_digits_that_no_feature_has_room_for():
    values = np.array([0.1, 0.2, np.nan, 1e6])
    column = fit_column("debt", values, 1)
    assert column.decode(column.encode(values)) == [0.0, 0.0, None, 1e6]
    assert column.as_read(column.encode(values)) == [0.1, 0.2, None, 1e6]
    assert column.as_read(column.encode(values[::-1])) == [1e6, None, 0.0, 0.0]  # others than the first rows


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.array([3.0, 1234567890123456.0, 1234567890123457.0]), ("3", "1234567890123456", "1234567890123457")),
        (np.array([0.3, 0.1 + 0.2, np.nan]), ("0.3", "0.30000000000000004")),
        (np.array([2**60, 2**60 + 1]), (str(2**60), str(2**60 + 1))),
        (np.array([0.1, -0.0], np.float32), ("0", "0.1")),
    ],
)
def test_numbers_that_are_names_are_never_written_alike(values, words):
    named = as_words(values)
    assert named.words == words
    assert [words[code] if code >= 0 else None for code in named.codes] == [
        next((word for word in words if values.dtype.type(word) == one), None) for one in values
    ]


def test_the_word_missing_is_not_what_is_missing():
    values = Text(np.array([0, 1, -1]), ("(missing)", "red"))
    column = fit_column("colour", values, 5)
    assert column.categories == ("(missing)", "red", "((missing))")
    assert column.encode(values).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert column.decode(column.encode(values)) == ["(missing)", "red", "((missing))"]
    trained = fit_column("colour", values[1:], 5)  # the word was not there when fitted
    assert trained.encode(values).tolist() == [[0, 0], [1, 0], [0, 1]]
