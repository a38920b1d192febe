"""`cafe certs`: a private authority, and a certificate for each role that says which role it is."""

import ipaddress
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vfl.errors import UserError
from vfl.net.tls import COORDINATOR, Role, file_problem, read_certificate, read_key, worker_role

AUTHORITY_DAYS = 3650
"""How long an authority is good for; a certificate ends with its authority at the latest."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""Names that every certificate has, so that all roles can be tried on one machine."""
CLOCKS_DIFFER = timedelta(hours=1)
_HOST = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*", re.IGNORECASE)

_USAGES = [
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
]


@dataclass(frozen=True)
class _Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(
    folder: Path,
    workers: int,
    names: Mapping[Role, Sequence[str]] | None = None,
    *,
    days: int = 365,
    now: datetime | None = None,
) -> list[Path]:
    """Make what is missing of an authority and its roles' certificates; return the files made, overwrite none."""
    names = names or {}
    now = now or datetime.now(UTC)
    roles = [COORDINATOR, *map(worker_role, range(workers))]
    for role in names:
        if role not in roles:
            raise UserError(f"--worker-name: there is no {role} among {workers} workers, 0 to {workers - 1}")
    hosts = {role: [_general_name(host) for host in (*LOCAL_NAMES, *names.get(role, ()))] for role in roles}
    missing = [role for role in roles if not _there(folder, role.stem)]
    for role in names:
        if role not in missing:
            anew = f"to make it anew, remove it and {role.stem}.key first"
            raise UserError(f"{folder / role.stem}.pem is there already and keeps its names: {anew}")
    old = _there(folder, "ca")
    if not missing:
        raise UserError(
            f"{folder} has all certificates for {workers} workers already, and none is overwritten: to renew one, "
            f"remove its .pem and .key first, or make a new folder"
        )
    if not old and len(missing) < len(roles):
        raise UserError(f"{folder} has certificates but no ca.pem and ca.key that could sign more: make a new folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: the folder cannot be made: {error.strerror}") from None
    authority = _load(folder, now) if old else _authority(now, max(days, AUTHORITY_DAYS))
    made = [] if old else _write(folder, "ca", authority)
    for role in missing:
        made += _write(folder, role.stem, _issue(authority, role, hosts[role], now=now, days=days))
    return made


def worker_names(texts: Sequence[str]) -> dict[Role, list[str]]:
    """Read what --worker-name says: M=HOST each."""
    names: dict[Role, list[str]] = {}
    for text in texts:
        worker, _, host = text.partition("=")
        if not (worker.isascii() and worker.isdigit() and host):
            raise UserError(f"--worker-name {text}: expected M=HOST, for example 0=192.0.2.10")
        names.setdefault(worker_role(int(worker)), []).append(host)
    return names


def _there(folder: Path, stem: str) -> bool:
    """Return whether both files of a pair exist; one without the other is an error."""
    pem, key = (folder / f"{stem}{end}" for end in (".pem", ".key"))
    if pem.exists() != key.exists():
        lone, other = (pem, key) if pem.exists() else (key, pem)
        raise UserError(f"{lone} is there without {other.name}: put that beside it, or make a new folder")
    return pem.exists()


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise UserError(f"{host!r} is no host name or address: expected HOST without a port") from None
        return x509.DNSName(host)


def _authority(now: datetime, days: int) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # A random part: two authorities that a user mixes up then have different names.
    name = _common_name(f"cafe authority {secrets.token_hex(4)}")
    builder = (
        _builder(name, name, key, now=now, end=now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    return _Pair(builder.sign(key, hashes.SHA256()), key)


def _issue(authority: _Pair, role: Role, hosts: Sequence[x509.GeneralName], *, now: datetime, days: int) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    end = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    names = [x509.UniformResourceIdentifier(role.urn), *dict.fromkeys(hosts)]
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_common_name(f"cafe {role.stem}"), issuer.subject, key, now=now, end=end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(signer, critical=False)
    )
    return _Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _USAGES})


def _load(folder: Path, now: datetime) -> _Pair:
    certificate, key = read_certificate(folder / "ca.pem"), read_key(folder / "ca.key")
    problem = file_problem(folder / "ca.pem", certificate, key, now)
    if problem:
        raise UserError(problem)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{folder / 'ca.key'}: only an authority that `cafe certs` made can sign more certificates")
    return _Pair(certificate, key)


def _write(folder: Path, stem: str, pair: _Pair) -> list[Path]:
    private = pair.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = pair.certificate.public_bytes(serialization.Encoding.PEM)
    files = [(folder / f"{stem}.key", private, 0o600), (folder / f"{stem}.pem", public, 0o644)]
    for path, content, mode in files:
        # O_EXCL: a file that appeared meanwhile is not overwritten, and the mode is right from the first moment.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    return [path for path, _, _ in files]
