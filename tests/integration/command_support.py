"""The `cafe` command in processes of its own, each marked with a tag so that what is left of them can be found."""

import os
import subprocess
import sys
import time

import psutil

CAFE = [sys.executable, "-m", "vfl.cli"]

# What the test's own imports put into the environment must not reach the command.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}


def cafe(*arguments, timeout=500, **options) -> subprocess.CompletedProcess:
    command = [*CAFE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT, **options)


def ours(tag: str) -> list[psutil.Process]:
    """All processes that carry the tag in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CAFE_TEST_TAG") == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def nothing_left(tag: str, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not ours(tag):
            return True
        time.sleep(0.1)
    return False


def start(*arguments, tag: str, environment=None, **options) -> subprocess.Popen:
    environment = {**ENVIRONMENT, "CAFE_TEST_TAG": tag, **(environment or {})}
    command = [*CAFE, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, **options)


def wait_for(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def long_run(config, out, tag, **options):
    """A run that goes on for long, once its first round is on disk."""
    process = start(
        "run", config, "--out", out, "--set", "federation.epochs=100000", "--set", "transcript=true", tag=tag, **options
    )
    third = out / "transcript" / "round-0000003.safetensors"
    wait_for(lambda: third.exists() or process.poll() is not None)
    assert third.exists(), process.communicate()[1]
    return process
