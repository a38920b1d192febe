"""Thousands of small decompositions: threads that wait for each other at every one cost more than they bring."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run a block on one torch thread; where cores are shared, more of them made it tens of times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
