"""One torch thread in every process: there are several at any moment, and threads that wait for each other spin."""

import atexit
import os
import shutil
import signal
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it

import pytest
import torch

torch.set_num_threads(1)

# gRPC's handlers for forks start its poller again in a process that is just about to become another program, where it
# finds its descriptors closed and aborts (grpc/grpc#43055).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Workers keep their secrets here, and not in the developer's home.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="cafe-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Tests run in a shell's background begin with Ctrl-C ignored, and would pass that on to what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = ("sweep/test_experiments", "integration/test_rejoin", "integration/test_command", "integration/test_ray")
"""Files that take minutes. They begin first: whoever takes one last would have the others wait for it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((at for at, name in enumerate(LONG) if f"{name}.py" in item.nodeid), len(LONG)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests measured (`record_property`), also those that ran in another process."""
    for report in terminalreporter.getreports("passed"):
        if report.user_properties:
            measured = ", ".join(f"{name}: {value}" for name, value in report.user_properties)
            terminalreporter.write_line(f"{report.nodeid}: {measured}")
