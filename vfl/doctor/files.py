"""A party's certificate files: whose they are, how long they are good, who can read the key, which names they have."""

import datetime
import stat
from pathlib import Path

from cryptography import x509

from vfl.doctor.findings import Sheet
from vfl.net.tls import Identity, Role, is_loopback, load_identity, read_certificate
from worker.main import EVERYWHERE

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
