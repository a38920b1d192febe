"""The bound on memory that every fuzz target has is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure

from tests.fuzz.support import GROWTH_BYTES, fuzz


@fuzz
@given(st.just(2 * GROWTH_BYTES))
def grows(size):
    assert len(b"x" * size) == size


def test_a_target_that_takes_memory_fails_also_if_it_gives_it_back():
    # Hypothesis looks twice, and a system that pages this process out meanwhile hides the growth from the second look
    with pytest.raises((AssertionError, FlakyFailure)) as failed:
        grows()
    error = failed.value.exceptions[0] if isinstance(failed.value, FlakyFailure) else failed.value
    assert "MiB more than before" in str(error)
