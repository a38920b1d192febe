"""`cafe doctor` from its first check to its last, at the coordinator and at a worker."""

import os
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from attacker.interface import attacks
from vfl.datasets import datasets
from vfl.device import resolve_device
from vfl.doctor.findings import Finding, Level, Sheet
from vfl.doctor.holdings import check_attack, check_bottom, check_disk, check_files, check_slice, check_whole
from vfl.doctor.listener import Listener
from vfl.doctor.party import Setup
from vfl.doctor.system import check_extras, check_system
from vfl.doctor.visits import Visits
from vfl.errors import UserError
from vfl.folder.versions import versions
from vfl.models import models
from vfl.net.tls import Identity, identity_for, is_loopback, worker_role
from vfl.plan.machine import this_machine
from worker.defences.places import Defences
from worker.main import EVERYWHERE, defence_plan, join_request
from worker.session import WorkerOptions


def examine_setup(setup: Setup) -> list[Sheet]:
    """Check all that can be checked from here; the sheets have one line a check."""
    here, identity = Sheet("here"), None
    _check_config(here, setup)
    if setup.tls is None or setup.insecure:
        addresses = {"--listen": setup.listen} | ({"--coordinator": setup.coordinator} if setup.coordinator else {})
        identity_for(setup.tls, setup.insecure, setup.role, addresses)
    else:
        identity = check_files(here, setup.tls, setup.role, setup.called)
    if setup.worker is None:
        return _examine_coordinator(here, setup, identity)
    return _examine_worker(here, setup, setup.worker, identity)


def _examine_coordinator(here: Sheet, setup: Setup, identity: Identity | None) -> list[Sheet]:
    if setup.tls is not None and setup.config.topology.labels_at_coordinator:
        check_files(here, setup.tls, worker_role(setup.config.topology.label_holder), None)
    if setup.tls is not None and identity is None:
        check_disk(here, setup.out)
        return [here]
    listener = Listener(setup.config, setup.role, identity, setup.clock)
    address = _take_address(here, setup, listener)
    if not setup.wait:
        here.later("workers", "are compared if this and their `cafe doctor` are started with --wait")
    elif address:
        _gather(here, setup, listener, address)
    listener.stop()
    if setup.config.topology.labels_at_coordinator:
        here.later("labels", "of the coordinator, and the port of its label holder, are looked at by `cafe serve`")
        check_disk(here, setup.out)
        check_attack(here, setup.config, ())
    elif len(listener.members) == setup.config.federation.workers:
        check_whole(here, setup.config, listener.members, setup.out)
        check_attack(here, setup.config, listener.members)
    else:
        check_disk(here, setup.out)
        check_attack(here, setup.config, ())
    return [here, *_reported(listener)]


def _examine_worker(here: Sheet, setup: Setup, worker: int, identity: Identity | None) -> list[Sheet]:
    data = check_slice(here, setup.config, worker, setup.data)
    if data is not None:
        check_bottom(here, setup.config, worker, data)
        with here.trying("defence"):
            plan = defence_plan(setup.config, worker, len(data.x), most=data.most)
            Defences(setup.config, plan)
    if setup.tls is not None and identity is None:
        here.later("coordinator", "is looked at once this worker's own certificate is in order")
        return [here]
    listener = Listener(setup.config, setup.role, identity, setup.clock)
    address = _take_address(here, setup, listener)
    waits = bool(address) and setup.holds_labels and setup.wait
    options = WorkerOptions(worker=worker, coordinator=setup.coordinator)
    join = None if data is None else join_request(data, options, address)
    visits = Visits(setup, worker, identity)
    visits.make(here, join, address if waits else "")
    if waits and visits.checked_in:
        _gather(here, setup, listener, address)
    listener.stop()
    return [here, visits.coordinator, visits.label_holder, *_reported(listener)]


def _check_config(here: Sheet, setup: Setup) -> None:
    config, federation = setup.config, setup.config.federation
    topology = config.topology
    holder = "the coordinator" if topology.labels_at_coordinator else f"worker {topology.label_holder}"
    labels = f"{holder} has the labels"
    if topology.is_horizontal:
        labels = "each with its own samples and their labels"
    with here.trying("config"):
        for name in {config.device.attack, config.device.workers}:
            resolve_device(name)
        models.build(config.model)
        if setup.worker is None:
            attacks.build(config.attack)
        here.ok("config", f"{federation.workers} workers, {labels}, data {config.data.name}, model {config.model.name}")


def _take_address(here: Sheet, setup: Setup, listener: Listener) -> str:
    """Return the address at which other parties reach this one; empty if there is none."""
    host = setup.listen.rpartition(":")[0]
    with here.trying("address"):
        bound = listener.listen(setup.listen)
        if setup.holds_labels and host in EVERYWHERE and setup.advertise is None:
            here.fail(
                "address", f"--listen {setup.listen}: say with --advertise HOST:PORT how the other workers reach it"
            )
            return ""
        address = setup.advertise or bound
        if setup.holds_labels and is_loopback(address) and not is_loopback(setup.coordinator):
            here.warn("address", f"other machines cannot reach the label holder at {address}: give --listen HOST:PORT")
        else:
            here.ok("address", f"{bound} can be listened at")
        return address
    return ""


def _gather(here: Sheet, setup: Setup, listener: Listener, address: str) -> None:
    """Answer the workers' doctors until all have checked in, time is up, or Ctrl-C."""
    waited_for = ", ".join(map(str, listener.missing))
    try:
        if waited_for:
            print(f"doctor listening on {address}, waiting for workers {waited_for}", file=sys.stderr, flush=True)
        listener.wait(setup.patience)
        limit = f"within {setup.patience:g} s (federation.join_timeout)"
    except KeyboardInterrupt:
        limit = "before this was stopped"
    for worker in listener.missing:
        here.fail(
            "workers", f"worker {worker} did not check in {limit}: does `cafe doctor … --id {worker}` fail there?"
        )
    if not listener.missing:
        here.ok("workers", "all have checked in")


def _reported(listener: Listener) -> list[Sheet]:
    """Return what the workers reported, with all that is ok in one line each."""
    sheets = []
    for worker, findings in sorted(listener.reports.items()):
        well = sum(finding.level == Level.OK for finding in findings)
        summary = Finding("checks", Level.OK, f"{well} are ok")
        sheets.append(Sheet(f"worker {worker}", [summary, *(one for one in findings if one.level != Level.OK)]))
    return sheets


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
    check_system(here)
    _check_loopback(here)
    check_extras(here)
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
    if find_spec("torchvision") is None:
        return
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
