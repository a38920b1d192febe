"""Arrays by name, as Flower's messages carry them."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message


def record(named: dict[str, np.ndarray]) -> ArrayRecord:
    """Put arrays into a record."""
    return ArrayRecord({name: Array(np.ascontiguousarray(one)) for name, one in named.items()})


def arrays(message: Message, name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a message's record."""
    return {key: one.numpy() for key, one in message.content[name].items()}
