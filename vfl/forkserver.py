"""The process that all roles of `cafe run` are forked from: it imports torch and gRPC once, and initialises neither."""

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

PRELOAD = ["vfl.launch", "vfl.cli"]


def context() -> ForkServerContext:
    """Return the way to start processes."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOAD)
    return found


def warm_up() -> None:
    """Start the fork server now, so that it imports while this process does something else."""
    context()
    forkserver.ensure_running()
