"""Which rows all parties have, in an order that all agree on: keyed hashes of their ids are compared, never the ids."""

import hmac
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from protos.alignment_pb2 import PassHeader, PassPart
from vfl.errors import UserError
from vfl.limits import CHUNK_BYTES
from vfl.net.network import PROTOCOL_VERSION

HASH_BYTES = 16
"""Of an HMAC-SHA-256: among 100 million ids two are alike with a chance of about 1e-23."""


def keyed_hashes(ids: Sequence[str], key: bytes) -> np.ndarray:
    """Return HMAC-SHA-256 of each id, cut to 16 bytes: without the key they do not give the ids away."""
    return from_bytes(b"".join(hmac.digest(key, name.encode(), "sha256")[:HASH_BYTES] for name in ids))


def from_bytes(hashes: bytes | bytearray) -> np.ndarray:
    """Return hashes that lie one after the other as an array."""
    return np.frombuffer(hashes, dtype=f"S{HASH_BYTES}")


def pieces(hashes: np.ndarray) -> Iterator[bytes]:
    """Cut hashes into pieces that fit a message."""
    size = CHUNK_BYTES // HASH_BYTES
    for first in range(0, len(hashes), size):
        yield hashes[first : first + size].tobytes()


def pass_parts(worker: int, step: int, data: bytes) -> Iterator[PassPart]:
    """Cut a message of a private intersection into parts that fit."""
    yield PassPart(header=PassHeader(protocol_version=PROTOCOL_VERSION, worker=worker, step=step, bytes=len(data)))
    for first in range(0, len(data), CHUNK_BYTES):
        yield PassPart(data=data[first : first + CHUNK_BYTES])


def common_hashes(parties: Sequence[np.ndarray]) -> np.ndarray:
    """Return the hashes that every party has, in ascending order, which gives away nothing of the order in any file."""
    common = np.sort(parties[0])
    for hashes in parties[1:]:
        common = np.intersect1d(common, hashes, assume_unique=True)
    return common


def rows_of(common: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return for each common hash the row that has it here."""
    order = np.argsort(own)
    rows: np.ndarray = order[np.searchsorted(own, common, sorter=order).clip(max=len(own) - 1)]
    if (own[rows] != common).any():
        raise UserError("the coordinator names ids as common to all that this worker never sent")
    return rows


def check_ids(ids: Sequence[str], source: str) -> None:
    """Refuse ids that name more than one row."""
    repeated = [name for name, count in Counter(ids).items() if count > 1]
    if repeated:
        raise UserError(
            f"data.id: {source} has {len(repeated)} ids more than once ({repeated[0]!r} for one); each names one row"
        )
