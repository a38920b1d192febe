"""Columns as features and back."""

import numpy as np
import pytest

from vfl.datasets.encoding import Text, fit
from vfl.errors import UserError


@pytest.mark.parametrize("values", [[1e300, 1.0, 2.0], [1.7e308, 1.7e308, 1.0], [1.7e308] * 3, [-1e200, 1e200, 0.0]])
def test_numbers_too_large_to_be_scaled_get_a_sentence(values):
    with pytest.raises(UserError, match=r"column 'debt' has values up to 1(\.7)?e\+\d+, too large for a mean"):
        fit("debt", np.array(values), 1)


@pytest.mark.parametrize("value", [1e300, -1.7e308, 4e38])
def test_a_test_row_that_no_feature_holds_gets_a_sentence(value):
    column = fit("debt", np.array([1.0, 2.0, 3.0]), 1)
    with pytest.raises(
        UserError, match=r"column 'debt' has the value -?[14][.e].* so far from the training rows' mean, 2"
    ):
        column.encode(np.array([2.0, value, np.nan]))


def test_large_numbers_that_fit_are_scaled():
    values = np.array([1e100, 2e100, 4e100])
    column = fit("debt", values, 1)
    assert column.decode(column.encode(values)) == pytest.approx(values.tolist(), rel=1e-5)


def test_the_word_missing_is_not_what_is_missing():
    values = Text(np.array([0, 1, -1]), ("(missing)", "red"))
    column = fit("colour", values, 5)
    assert column.categories == ("(missing)", "red", "((missing))")
    assert column.encode(values).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert column.decode(column.encode(values)) == ["(missing)", "red", "((missing))"]
    trained = fit("colour", values[1:], 5)  # the word was not there when fitted
    assert trained.encode(values).tolist() == [[0, 0], [1, 0], [0, 1]]
