"""Files written past the kernel's cache hold what the others hold."""

import errno
import os
import stat

import pytest
import torch

from vfl.files import tensor_file
from vfl.files.tensor_file import BLOCK, STAGE, read_tensors, write_directly, write_tensors


@pytest.fixture
def direct_disk(tmp_path):
    if not write_directly(tmp_path / "probe", [b"x"]):
        pytest.skip("the disk of the temporary folder cannot be written past the cache")


@pytest.mark.usefixtures("direct_disk")
@pytest.mark.parametrize("size", [0, 1, BLOCK, BLOCK + 1, STAGE - 7, STAGE, 2 * STAGE + 3])
def test_a_file_of_any_size_holds_its_parts_and_nothing_of_what_it_held_before(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3 * STAGE)
    parts = [b"head", memoryview(os.urandom(size)), b"tail"]
    assert write_directly(path, parts)
    assert path.read_bytes() == b"".join(parts)


def test_tensors_are_the_same_either_way_and_their_owner_s_alone(tmp_path):
    tensors = {"a": torch.rand(700, 999), "b": torch.arange(5), "none": torch.empty(0)}
    for way in (False, True):
        write_tensors(tmp_path / str(way), tensors, {"round": "3"}, checked=True, direct=way)
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()
    assert stat.S_IMODE((tmp_path / "True").stat().st_mode) == 0o600
    found, about = read_tensors(tmp_path / "True", checked=True)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert about["round"] == "3"


@pytest.mark.parametrize("size", [10, STAGE + 10])
@pytest.mark.parametrize("taken", [0, BLOCK])
def test_where_a_disk_cannot_do_it_the_file_is_written_as_usual(tmp_path, monkeypatch, size, taken):
    monkeypatch.setattr(tensor_file.os, "write", failing(errno.EINVAL, taken))
    assert not write_directly(tmp_path / "file", [bytes(size)])
    tensor = torch.arange(size)
    write_tensors(tmp_path / "file", {"a": tensor}, {}, direct=True)
    assert torch.equal(read_tensors(tmp_path / "file", checked=False)[0]["a"], tensor)


@pytest.mark.usefixtures("direct_disk")
@pytest.mark.parametrize("size", [10, STAGE + 10])
@pytest.mark.parametrize("taken", [0, BLOCK])
def test_a_full_disk_is_an_error_and_no_reason_to_try_otherwise(tmp_path, monkeypatch, size, taken):
    monkeypatch.setattr(tensor_file.os, "write", failing(errno.ENOSPC, taken))
    with pytest.raises(OSError, match="fails"):
        write_directly(tmp_path / "file", [bytes(size)])


def failing(number, taken):
    """What writes, takes the first so many bytes if it is asked for more, and then fails."""
    left = [taken] if taken else []

    def write(_file, block):
        if left and len(block) > left[0]:
            return left.pop()
        raise OSError(number, "fails")

    return write
