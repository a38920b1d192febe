"""What a process computes with: the torch device of a config, and memory that is kept from round to round."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vfl.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8


def keep_freed_memory() -> None:
    """Let glibc keep up to half a gigabyte of freed memory in this process; other C libraries stay as they are.

    Every round allocates and frees the same tensors of a few megabytes. By default glibc returns such blocks to the
    kernel and gets them back page by page, which shows in the rate of rounds (`cafe bench federation`).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc accepts
    mallopt(M_TRIM_THRESHOLD, 512 << 20)
    mallopt(M_TOP_PAD, 64 << 20)
    # gRPC starts threads for every call, and a new thread's own heap is fresh pages; one heap for all is reused.
    mallopt(M_ARENA_MAX, 1)


def resolve_device(name: str) -> str:
    """Return the torch device for a config's `device`: auto is cuda where there is one."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        full_precision()
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device: {name!r} is not to be had here ({str(error).splitlines()[0]}); use auto") from None
    return name


def full_precision() -> None:
    """Let GPUs multiply in float32: TF32 keeps ten bits, and attacks that solve equations live on the others.

    torch's own default has it on for convolutions.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def moved(tensor: "Tensor", device: "torch.device") -> "Tensor":
    """Return a tensor on a device; to a GPU it goes through pinned memory, without being waited for."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread in this block.

    For thousands of small decompositions: threads that wait for each other at every one cost more than they bring, and
    where cores are shared they made it tens of times slower.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
