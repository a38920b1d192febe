"""Keep freed memory instead of giving it back to the system after every round.

Every round allocates and frees the same tensors of a few megabytes. By default glibc returns such blocks to the kernel
and gets them back page by page, which shows in the rate of rounds (`cafe bench federation`).
"""

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8


def keep_freed_memory() -> None:
    """Let glibc keep up to half a gigabyte of freed memory in this process; other C libraries stay as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc accepts
    mallopt(M_TRIM_THRESHOLD, 512 << 20)
    mallopt(M_TOP_PAD, 64 << 20)
    # gRPC starts threads for every call, and a new thread's own heap is fresh pages; one heap for all is reused.
    mallopt(M_ARENA_MAX, 1)
