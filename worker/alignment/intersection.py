"""Private set intersection: two workers learn which ids both have; the coordinator learns none.

The library is OpenMined's (ECDH: every id becomes a point of a curve, blinded by both sides' secrets). Each worker is
client once and server once. The rows are ordered by hashes under a secret that the two agree on over the same messages
(X25519), so that the order gives nothing of the ids away to the coordinator, which passes the messages on.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from vfl.errors import RunFailedError, UserError
from vfl.limits import PRIVATE_IDS
from vfl.net.alignment import keyed_hashes

KEY_BYTES = 32
Swap = Callable[[int, bytes], bytes]
"""Takes a step's number and our message, returns the other worker's."""


def intersect(ids: Sequence[str], swap: Swap) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of the common ids under the workers' secret, ascending, and those of all our own."""
    library = load_library()
    if len(ids) > PRIVATE_IDS:
        raise UserError(f"--psi: {len(ids)} ids are more than the {PRIVATE_IDS} that are intersected in private")
    client, server = library.client.CreateWithNewKey(True), library.server.CreateWithNewKey(True)
    secret = X25519PrivateKey.generate()
    ours = secret.public_key().public_bytes_raw() + client.CreateRequest(list(ids)).SerializeToString()
    try:
        theirs = swap(0, ours)
        key = secret.exchange(X25519PublicKey.from_public_bytes(theirs[:KEY_BYTES]))
        asked = _parsed(library.Request(), theirs[KEY_BYTES:])
        answer = _parsed(library.Response(), swap(1, server.ProcessRequest(asked).SerializeToString()))
        # RAW: blinded ids one by one. The library's smaller filters would take some ids of one side for common ones.
        setup = server.CreateSetupMessage(0.0, len(ids), list(ids), library.DataStructure.RAW)
        common = client.GetIntersection(_parsed(library.ServerSetup(), swap(2, setup.SerializeToString())), answer)
    except (ValueError, RuntimeError) as error:
        raise RunFailedError(f"the other worker's message is not one of a private intersection: {error}") from None
    if not common:
        raise RunFailedError("no id is known to both workers: is data.id the same thing in both files?")
    hashes = keyed_hashes(ids, key)
    return np.sort(hashes[np.array(sorted(common))]), hashes


def load_library() -> Any:
    """Return OpenMined's library, or say how to get it."""
    try:
        return import_module("private_set_intersection.python")
    except ImportError:
        raise UserError("--psi: needs a library; pip install 'cafe-vfl[psi]'") from None


def _parsed(message: Any, data: bytes) -> Any:
    try:
        message.ParseFromString(data)
    except Exception as error:  # protobuf's own class of error differs from release to release
        raise ValueError(str(error)) from None
    return message
