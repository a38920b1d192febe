"""Who is who: the roles that certificates name, a party's own files, and what a caller's certificate allows."""

import datetime
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from vfl.errors import UserError
from vfl.files import read_bounded, warn_if_others_read
from vfl.limits import PEM_BYTES

_PREFIX = "urn:cafe:"


@dataclass(frozen=True)
class Role:
    """The coordinator (no number), or a worker."""

    worker: int | None = None

    @property
    def urn(self) -> str:
        """Return how a certificate names the role: a URI among its alternative names."""
        return f"{_PREFIX}coordinator" if self.worker is None else f"{_PREFIX}worker:{self.worker}"

    @property
    def stem(self) -> str:
        """Return how the role's files are called, without .pem or .key."""
        return "coordinator" if self.worker is None else f"worker-{self.worker}"

    def __str__(self) -> str:
        return "the coordinator" if self.worker is None else f"worker {self.worker}"


COORDINATOR = Role()


def worker_role(worker: int) -> Role:
    """Return the role of a worker."""
    return Role(worker)


class ImpostorError(Exception):
    """A caller whose certificate does not let it speak for whom it claims to be."""


@dataclass(frozen=True)
class Identity:
    """What a party proves itself with, and the authority by which it judges the others."""

    role: Role
    folder: Path
    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    @property
    def authority_file(self) -> Path:
        """Return the file with the authority whose certificates this party accepts."""
        return self.folder / "ca.pem"

    @property
    def certificate_file(self) -> Path:
        """Return the file with this party's certificate."""
        return self.folder / f"{self.role.stem}.pem"

    @property
    def key_file(self) -> Path:
        """Return the file with this party's key."""
        return self.folder / f"{self.role.stem}.key"

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return how to listen: callers must have a certificate of the authority too."""
        return grpc.ssl_server_credentials([(self.key, self.certificate)], self.authority, require_client_auth=True)


def identity_for(tls: Path | None, insecure: bool, role: Role, addresses: Mapping[str, str]) -> Identity | None:
    """Return what a party proves itself with; without that, plain text stays on this machine unless `insecure`.

    `addresses` are those that the party uses, by the option that named each.
    """
    if tls is not None and insecure:
        raise UserError("--insecure: with --tls nothing is sent in plain text; leave one of the two out")
    if tls is not None:
        return load_identity(tls, role)
    for option, address in addresses.items():
        if not insecure:
            refuse_plain(address, option)
    return None


def load_identity(folder: Path, role: Role) -> Identity:
    """Read and check a role's own files: `ca.pem`, its `.pem` and its `.key`."""
    authority, own = folder / "ca.pem", folder / f"{role.stem}.pem"
    signer, certificate = read_certificate(authority), read_certificate(own)
    key_file = folder / f"{role.stem}.key"
    key = read_key(key_file)
    now = datetime.datetime.now(datetime.UTC)
    problem = file_problem(authority, signer, None, now) or file_problem(own, certificate, key, now)
    if problem:
        raise UserError(problem)
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        raise UserError(f"{own} was not signed by {authority}: take both from one folder of `cafe certs`") from None
    found = role_of(certificate)
    if found != role:
        whose = "no party of a federation" if found is None else str(found)
        raise UserError(f"{own} is the certificate of {whose}, not of {role}: a certificate fixes who its holder is")
    warn_if_others_read(key_file)
    return Identity(role, folder, _read(authority), _read(own), _read(key_file))


def role_of(certificate: x509.Certificate) -> Role | None:
    """Return the role that a certificate names; None when it names none, or more than one."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    urns = [uri for uri in uris if uri.lower().startswith(_PREFIX)]  # spelled otherwise it counts, and names no role
    if urns == [COORDINATOR.urn]:
        return COORDINATOR
    # One spelling, so no zeros in front. Nine digits: int() refuses thousands of them with an error of its own.
    worker = re.fullmatch(rf"{_PREFIX}worker:(0|[1-9][0-9]{{0,8}})", urns[0]) if len(urns) == 1 else None
    return worker_role(int(worker[1])) if worker else None


def check_caller(context: Any, worker: int) -> None:
    """Make sure that a call over TLS comes from a worker; what its messages say does not count."""
    (pem,) = context.auth_context().get("x509_pem_cert") or (b"",)
    caller = role_of(x509.load_pem_x509_certificate(pem)) if pem else None
    if caller != worker_role(worker):
        whose = "of no party" if caller is None else f"that of {caller}"
        raise ImpostorError(f"the caller's certificate is {whose}, it cannot speak for worker {worker}")


def is_loopback(address: str) -> bool:
    """Return whether HOST:PORT stays on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_plain(address: str, what: str) -> None:
    """End with a sentence where plain text would leave this machine."""
    if not is_loopback(address):
        raise UserError(
            f"{what} {address}: without --tls DIR only this machine's own addresses are used; make certificates with "
            f"`cafe certs DIR --workers M`, or say --insecure if all others on that network may read and change what "
            f"is sent"
        )


def file_problem(
    path: Path, certificate: x509.Certificate, key: PrivateKeyTypes | None, now: datetime.datetime
) -> str | None:
    """Return what is wrong with a certificate's time and key; None when nothing is."""
    if now < certificate.not_valid_before_utc:
        return f"{path} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: is the clock right?"
    if now > certificate.not_valid_after_utc:
        when = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        return f"{path} expired on {when}: make a new one with `cafe certs`"
    try:
        matches = key is None or key.public_key() == certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return f"{path} holds a key that cannot be read: make a new one with `cafe certs`"
    if not matches:
        return f"{path.with_suffix('.key')} is not the key of {path}: take both from one folder of `cafe certs`"
    return None


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate from a PEM file."""
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise UserError(f"{path} is not a certificate in PEM") from None


def read_key(path: Path) -> PrivateKeyTypes:
    """Read a private key without a password from a PEM file."""
    try:
        return serialization.load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UserError(f"{path} is not a private key in PEM without a password") from None


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, PEM_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror} (docs/tls.md says who needs which files)") from None
