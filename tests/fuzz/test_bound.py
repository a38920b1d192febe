"""The bound on memory that every fuzz target has is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.support import GROWTH_BYTES, fuzz


@fuzz
@given(st.just(2 * GROWTH_BYTES))
def grows(size):
    assert len(b"x" * size) == size


def test_a_target_that_takes_memory_fails_also_if_it_gives_it_back():
    with pytest.raises(AssertionError, match="MiB more than before"):
        grows()
