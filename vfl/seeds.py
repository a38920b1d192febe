"""Random numbers that depend on the seed and their purpose alone, never on the process or the order."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, purpose: str, number: int = 0) -> int:
    """Return a seed of its own for one purpose."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, purpose: str, number: int = 0) -> torch.Generator:
    """Return a generator of its own for one purpose."""
    return torch.Generator().manual_seed(derive(seed, purpose, number))


@contextmanager
def seeded(seed: int, purpose: str, number: int = 0) -> Iterator[None]:
    """Run a block under torch's global generator seeded for one purpose; the generator is as before afterwards."""
    # Not torch.manual_seed: it also queues a call with a stack trace for every kind of device, which costs a
    # worker a millisecond a round.
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    states = [one.get_state() for one in generators]
    try:
        for one in generators:
            one.manual_seed(derive(seed, purpose, number))
        yield
    finally:
        for one, state in zip(generators, states, strict=True):
            one.set_state(state)


@contextmanager
def seeded_everywhere(seed: int, purpose: str, number: int = 0) -> Iterator[None]:
    """Do as `seeded` with NumPy's and Python's global generators too: a user's model may draw from any of them."""
    drawn = derive(seed, purpose, number)
    before = random.getstate(), np.random.get_state()
    try:
        random.seed(drawn)
        np.random.seed([drawn & 0xFFFFFFFF, drawn >> 32])
        with seeded(seed, purpose, number):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
