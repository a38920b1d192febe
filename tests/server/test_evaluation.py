import math

import pytest

from vfl.optimisers.training import EarlyStop


@pytest.mark.parametrize(
    ("losses", "patience", "min_delta", "stops"),
    [
        ([], 1, 0.0, False),
        ([3, 2, 1], 1, 0.0, False),
        ([3, 2, 2], 1, 0.0, True),
        ([3, 1, 2, 2], 3, 0.0, False),
        ([3, 1, 2, 2, 1], 3, 0.0, True),
        ([3, 1, 2, 2, 0.9], 3, 0.0, False),
        ([3, 2.9, 2.8, 2.7], 3, 0.5, True),  # every single step is too small
        ([3, 2.8, 2.6, 2.4], 3, 0.5, False),  # together they are not
        ([math.nan, math.nan], 2, 0.0, True),
        ([math.nan, 3], 2, 0.0, False),
    ],
)
def test_it_stops_once_patience_is_spent(losses, patience, min_delta, stops):
    assert EarlyStop(patience=patience, min_delta=min_delta).is_due(losses) is stops
