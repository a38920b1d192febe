import numpy as np
import pytest

from vfl.errors import UserError
from vfl.net.alignment import HASH_BYTES, check_ids, common_hashes, from_bytes, keyed_hashes, pieces, rows_of


def test_common_rows_are_found_whatever_the_order_and_only_with_the_same_key():
    draw = np.random.default_rng(0)
    ids = [[f"p{number}" for number in draw.permutation(900)[:700]] for _ in range(3)]
    hashes = [keyed_hashes(own, b"secret") for own in ids]
    common = common_hashes(hashes)
    rows = [rows_of(common, own) for own in hashes]
    named = [[own[row] for row in chosen] for own, chosen in zip(ids, rows, strict=True)]
    assert named[0] == named[1] == named[2]
    assert set(named[0]) == set.intersection(*map(set, ids))
    assert len(common_hashes([hashes[0], keyed_hashes(ids[0], b"another")])) == 0


def test_hashes_that_end_in_zeros_stay_whole():
    raw = bytes(15) + b"\x01" + b"\x01" + bytes(15) + bytes(16)
    hashes = from_bytes(raw)
    assert len(hashes) == 3
    assert rows_of(common_hashes([hashes, hashes[::-1]]), hashes).tolist() == [2, 0, 1]
    assert b"".join(pieces(hashes)) == raw
    assert len(raw) == 3 * HASH_BYTES


def test_what_was_never_sent_cannot_be_common():
    own = keyed_hashes(["a", "b"], b"k")
    with pytest.raises(UserError, match="this worker never sent"):
        rows_of(keyed_hashes(["c"], b"k"), own)


def test_repeated_ids_are_named():
    with pytest.raises(UserError, match=r"f\.csv has 1 ids more than once \('b' for one\)"):
        check_ids(["a", "b", "b"], "f.csv")
