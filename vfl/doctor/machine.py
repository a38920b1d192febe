"""`cafe doctor` without a config: whether this machine alone is fit for a federation."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from vfl.datasets import datasets
from vfl.device import resolve_device
from vfl.doctor.findings import Sheet
from vfl.errors import UserError
from vfl.folder.versions import versions
from vfl.plan.machine import this_machine

MEMORY, DISK = 3e9, 1e9
"""What `make demo` needs of each, generously."""


def examine_machine(folder: Path) -> list[Sheet]:
    """Check what needs no config: what is installed, what there is to compute with, and where data would be found."""
    here = Sheet("here")
    here.ok("versions", ", ".join(f"{name} {version}" for name, version in versions().items()))
    with here.trying("device"):
        here.ok("device", f"computing goes to {resolve_device('auto')}")
    machine = this_machine(folder)
    here.ok("cores", f"{machine.cores}, which all parties of `cafe run` share")
    for what, there, wanted in (("memory", machine.memory, MEMORY), ("disk", machine.disk, DISK)):
        enough = there >= wanted
        note = "" if enough else f"; a small federation of four needs about {wanted / 1e9:g} GB"
        (here.ok if enough else here.warn)(what, f"{there / 1e9:.1f} GB are free{note}")
    _check_loopback(here)
    _check_torchvision(here)
    _check_data(here)
    here.later("federation", "give a config file to check one: cafe doctor FILE")
    return [here]


def _check_loopback(here: Sheet) -> None:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        here.fail("sockets", f"this machine does not reach itself at 127.0.0.1 ({error}): a federation cannot run here")
    else:
        here.ok("sockets", "processes here reach each other at 127.0.0.1")


def _check_torchvision(here: Sheet) -> None:
    try:
        from vfl import torchvision_ops  # noqa: F401  (makes the next import work beside CPU torch)
        import torchvision  # isort: skip
    except (ImportError, RuntimeError) as error:
        here.fail("torchvision", f"cannot be imported ({error}): `make setup` installs versions that fit")
    else:
        here.ok("torchvision", str(torchvision.__version__))


def _check_data(here: Sheet) -> None:
    root = os.environ.get("CAFE_DATA")
    if root is None:
        here.ok("data", "CAFE_DATA is not set; photos, digits, breast_cancer and synthetic need none")
    elif not Path(root).is_dir():
        here.fail("data", f"CAFE_DATA names {root}, which is no folder: correct or unset it")
    else:
        found = ", ".join(_data_sets_below(Path(root)))
        here.ok("data", f"CAFE_DATA has {found or 'none of the data sets that docs/configuration.md names'}")


def _data_sets_below(root: Path) -> Iterator[str]:
    """Yield each data set by name that is there, and where it is read from."""
    for name in datasets.names():
        try:
            places = datasets.find(name).places()
        except UserError:  # of a package that cannot be imported, as `cafe list` says
            continue
        there = next((place for place in places if (root / place).exists()), None)
        if there:
            yield f"{name} ({there})"
