"""What a party holds and has room for: its certificate files, its slice, the model, memory and disk."""

import datetime
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import psutil
from cryptography import x509
from rich.filesize import decimal

from attacker.start import start_attack
from server.membership import Member
from server.session import setting_of
from vfl.config import RunConfig
from vfl.datasets.slices import WorkerData, data_facts, load_data, slice_for
from vfl.doctor.findings import Sheet
from vfl.errors import UserError
from vfl.limits import RESERVE_BYTES
from vfl.maths.loss import loss_of
from vfl.models import build_bottom
from vfl.models.whole import whole_model
from vfl.net.tls import Identity, Role, is_loopback, load_identity, read_certificate
from vfl.partition import Box, partition
from vfl.plan.workload import setting_of as planned_setting
from worker.alignment import SUFFIXES, table_facts
from worker.main import EVERYWHERE

MODEL_COPIES = 7
"""Copies of a model in memory: parameters, the observer's, Adam's two, gradients of two rounds, one to spare."""


def check_slice(sheet: Sheet, config: RunConfig, worker: int, path: Path | None) -> WorkerData | None:
    """Check what a worker holds against the config."""
    with sheet.trying("slice"):
        if path and path.suffix.lower() in SUFFIXES:
            rows, columns, doubts = table_facts(config, path, worker)
            _warn_of(sheet, doubts)
            sheet.ok("slice", f"{path}: {rows} rows, {columns} columns; a run will find which rows all workers have")
            return None
        if path:
            data = WorkerData.load(path)
        else:
            whole = load_data(config)
            _warn_of(sheet, whole.doubts)
            data = slice_for(whole, config, worker)
        source = str(path) if path else f"data set {config.data.name}"
        problem = _slice_problem(config, worker, data)
        if problem:
            raise UserError(f"{source}: {problem}")
        labels = f", labels of {data.classes} classes" if data.classes else ""
        sheet.ok("slice", f"{source}: {len(data.x)} samples, {data.box.start} to {data.box.stop}{labels}")
        return data
    return None


def _slice_problem(config: RunConfig, worker: int, data: WorkerData) -> str | None:
    federation, topology, samples = config.federation, config.topology, len(data.x)
    slices = federation.slices if len(data.box.sample_shape) > 1 else None
    boxes = dict(enumerate(partition(data.box.sample_shape, topology.bottoms, slices)))
    box = boxes.get(topology.bottom_of(worker), Box.nothing(data.box.sample_shape))
    wanted = None if topology.is_horizontal else config.data.options.get("samples")  # else of all workers together
    # A table's columns make any number of features: how they lie together is checked when all join.
    if len(data.box.sample_shape) > 1 and data.box != box:
        return (
            f"holds the features {data.box.start} to {data.box.stop}, worker {worker}'s are {box.start} to {box.stop}: "
            f"is this another worker's file, or federation.slices another?"
        )
    if wanted is not None and samples != wanted:
        return f"has {samples} samples, data.samples says {wanted}: cut it anew with `cafe slice`"
    if federation.batch_size > samples:
        return f"has {samples} samples, fewer than federation.batch_size, {federation.batch_size}"
    if (data.y is not None) != topology.holds_labels(worker):
        has = "labels" if data.y is not None else "no labels"
        if topology.is_horizontal:
            return f"has {has}, and in a horizontal federation each worker has some: cut it anew with `cafe slice`"
        return f"has {has}, and the label holder is worker {topology.label_holder}: cut it anew with `cafe slice`"
    if data.y is not None and (problem := loss_of(config.training).problem(data.classes)):
        return f"does not fit the config: {problem}"
    if config.training.evaluate_every and data.x_test is None and not topology.is_horizontal:
        return "has no test samples, and training.evaluate_every wants some (data.test_samples)"
    return None


def _warn_of(sheet: Sheet, doubts: Sequence[str]) -> None:
    for doubt in doubts:
        sheet.warn("data", doubt)


def check_bottom(sheet: Sheet, config: RunConfig, worker: int, data: WorkerData) -> None:
    """Check that a worker's model can be built, and that there is memory for it."""
    with sheet.trying("model"):
        bottom = build_bottom(config.model, data.box.shape, config.seed, config.topology.bottom_of(worker))
        size = sum(parameter.nbytes for parameter in bottom.parameters())
        _check_memory(sheet, f"{config.model.name} for slices of shape {data.box.shape}", size)


def check_whole(sheet: Sheet, config: RunConfig, members: Sequence[Member], out: Path) -> None:
    """Check that the coordinator has room for the model that the workers' slices make, and for what it records."""
    with sheet.trying("model"):
        classes = max(member.classes for member in members)
        shapes = [member.box.shape for member in members if not member.box.empty]
        horizontal = config.topology.is_horizontal
        whole = whole_model(
            config.model,
            shapes[:1] if horizontal else shapes,
            loss_of(config.training).outputs(classes),
            config.seed,
        )
        size = sum(parameter.nbytes for parameter in whole.parameters())
        _check_memory(sheet, f"{config.model.name} for {len(members)} workers", size)
        rounds = config.federation.planned_rounds(max(member.samples for member in members))
        uploads = size * (len(members) if horizontal else 1)
        recorded = rounds * (uploads + (0 if config.training.frozen else size)) if config.transcript else 0
        check_disk(sheet, out, recorded)


def check_attack(sheet: Sheet, config: RunConfig, members: Sequence[Member]) -> None:
    """Check that the attack can run: on what all workers hold or, before they are here, on the config's data set."""
    if members:
        setting = setting_of(config, members)
    else:
        try:
            facts = data_facts(config)
            _warn_of(sheet, facts.doubts)
            setting = planned_setting(config, facts)
        except UserError as error:
            text = f"cannot be loaded here, so the attack is checked once workers with data of their own join: {error}"
            sheet.warn("data", text)
            return
    if config.attack.name != "none":
        with sheet.trying("attack"):
            start_attack(config.attack, setting.seen_by(config))
            sheet.ok("attack", f"{config.attack.name} can run on these {setting.samples} samples")


def _check_memory(sheet: Sheet, what: str, size: int) -> None:
    free, needed = psutil.virtual_memory().available, MODEL_COPIES * size
    text = f"{what}: {decimal(size)} of parameters, {decimal(free)} of memory free"
    if needed > free:
        sheet.fail("model", f"{text}, and about {decimal(needed)} are needed: free some, or use a smaller model")
    else:
        sheet.ok("model", text)


def check_disk(sheet: Sheet, out: Path, recorded: int = 0) -> None:
    """Check that there is room for a run's folder, and the transcript if one is kept."""
    there = next(folder for folder in (out, *out.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    text = f"{decimal(free)} free at {there}"
    if recorded > free:
        sheet.fail("disk", f"{text}, the transcript takes {decimal(recorded)}: choose another --out")
    elif free - recorded < RESERVE_BYTES:
        sheet.warn("disk", f"{text}: rounds would wait for a slow attack; choose another --out")
    else:
        sheet.ok("disk", text)


SOON_DAYS = 14
"""A certificate that ends sooner gets a warning."""


def check_files(sheet: Sheet, folder: Path, role: Role, called: str | None) -> Identity | None:
    """Check a party's certificate files; `called` is the HOST:PORT at which others call it, if they do."""
    with sheet.trying("certificate"):
        own = load_identity(folder, role)
        sheet.ok(
            "certificate", f"{own.certificate_file} is that of {role}, signed by {own.authority_file}; its key fits"
        )
        _check_time_left(sheet, own)
        _check_secrecy(sheet, own)
        if called is not None:
            _check_names(sheet, own, called)
        return own
    return None


def _check_time_left(sheet: Sheet, own: Identity) -> None:
    now = datetime.datetime.now(datetime.UTC)
    files = (own.certificate_file, own.authority_file)
    days = {path: (read_certificate(path).not_valid_after_utc - now).days for path in files}
    ending = [path for path in files if days[path] < SOON_DAYS]
    if ending:
        text = f"{ending[0]} ends in {days[ending[0]]} days: renew it with `cafe certs` before a long run"
        sheet.warn("time left", text)
    else:
        sheet.ok("time left", f"{files[0].name} {days[files[0]]} days, {files[1].name} {days[files[1]]} days")


def _check_secrecy(sheet: Sheet, own: Identity) -> None:
    mode = stat.S_IMODE(own.key_file.stat().st_mode)
    text = f"{own.key_file} has mode {mode:04o}"
    if mode & 0o007:
        sheet.fail("key", f"{text}, every user of this machine can take this party's place: chmod 600 {own.key_file}")
    elif mode & 0o070:
        sheet.warn(
            "key", f"{text}, its group can take this party's place: chmod 600 {own.key_file} if that is not meant"
        )
    else:
        sheet.ok("key", text)
    authority_key = own.folder / "ca.key"
    if authority_key.exists():
        sheet.warn("ca.key", f"{authority_key} is here, and makes new parties: keep it off the machines that take part")


def _check_names(sheet: Sheet, own: Identity, called: str) -> None:
    names = _names(read_certificate(own.certificate_file))
    host = called.rpartition(":")[0].strip("[]")
    option = "--coordinator-name HOST" if own.role.worker is None else f"--worker-name {own.role.worker}=HOST"
    listed = ", ".join(names)
    if called.rpartition(":")[0] in EVERYWHERE:
        if all(is_loopback(f"{name}:0") for name in names):
            sheet.warn(
                "names",
                f"{own.certificate_file} has only names of this machine itself ({listed}), others will refuse it: "
                f"make it anew with `cafe certs … {option}`",
            )
        else:
            sheet.ok("names", f"other parties can call it {listed}")
    elif host.lower() in names or f"*.{host.lower().partition('.')[2]}" in names:
        sheet.ok("names", f"{own.certificate_file.name} is made out to {host}")
    else:
        sheet.fail(
            "names",
            f"{own.certificate_file} is not made out to {host} but to {listed}: make it anew with "
            f"`cafe certs … {option.replace('HOST', host)}`",
        )


def _names(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
    return hosts + [str(address) for address in names.get_values_for_type(x509.IPAddress)]
