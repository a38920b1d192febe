"""Meeting another party over TLS: wait for it, make sure that it is the right one, say in a sentence why not."""

import socket
import ssl
import time
from collections.abc import Callable

import grpc
from cryptography import x509

from vfl.errors import UserError
from vfl.limits import ANSWER_SECONDS
from vfl.net.tls import Identity, Role, role_of

RETRY_SECONDS = 0.2
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The first bytes that an HTTP/2 client sends."""
_NOT_YET_VALID, _EXPIRED, _WRONG_NAME, _WRONG_ADDRESS = 9, 10, 62, 64
"""OpenSSL's X509_V_ERR codes."""


HUNG_UP = "it hung up"


class HungUpError(UserError):
    """The other party hung up after the handshake: it refused our certificate, or it was just ending."""


def meet(
    address: str, role: Role, own: Identity, timeout: float, *, stopped: Callable[[], bool] = lambda: False
) -> grpc.ChannelCredentials:
    """Wait until `role` answers and proves itself; TimeoutError when none answers, UserError when it is another."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=own.authority.decode("ascii"))
    context.load_cert_chain(own.certificate_file, own.key_file)
    deadline = time.monotonic() + timeout
    while True:
        try:
            seen = _look(address, role, own, context)
            # gRPC checks authority and name but no role: so the channel accepts only the certificate just checked.
            return grpc.ssl_channel_credentials(seen.encode(), own.key, own.certificate)
        except OSError:  # nothing listens yet, or only a forwarder does
            if time.monotonic() > deadline or stopped():
                raise TimeoutError from None
            time.sleep(RETRY_SECONDS)


def tls_at(address: str) -> str | None:
    """Return the TLS version and cipher of the party at an address, without checking who it is; None without TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _connect(address, context) as connection:
            cipher = connection.cipher()
            return f"{connection.version()} with {cipher[0] if cipher else 'no cipher'}"
    except OSError:
        return None


def _look(address: str, role: Role, own: Identity, context: ssl.SSLContext) -> str:
    """Return the certificate (PEM) with which `role` proved itself at an address."""
    try:
        with _connect(address, context) as connection:
            der = connection.getpeercert(binary_form=True)
            assert der is not None
            found = role_of(x509.load_der_x509_certificate(der))
            if found != role:
                whose = "of no party of a federation" if found is None else f"of {found}"
                raise UserError(f"{role} was expected at {address}, but the certificate there is that {whose}")
            _check_welcome(connection, address, role, own)
            return ssl.DER_cert_to_PEM_cert(der)
    except ssl.SSLCertVerificationError as error:
        raise UserError(_distrust(error, address, role, own)) from None
    except ssl.SSLEOFError:
        raise
    except ssl.SSLError as error:
        raise UserError(
            f"{role} at {address} does not speak TLS as expected ({error.reason}): was it started with --tls?"
        ) from None


def _connect(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context.set_alpn_protocols(["h2"])
    try:
        # wrap_socket takes the connection over, and closes it when the handshake fails
        connection = socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS)
        return context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError:  # Python makes it a ValueError too
        raise
    except ValueError:
        raise UserError(f"{address}: expected HOST:PORT") from None


def _check_welcome(connection: ssl.SSLSocket, address: str, role: Role, own: Identity) -> None:
    """Wait for the first bytes: in TLS 1.3 a server that refuses our certificate hangs up only after the handshake."""
    try:
        connection.sendall(PREFACE)
        reason = None if connection.recv(1) else HUNG_UP
    except ssl.SSLError as error:
        reason = str(error.reason)
    except ConnectionError:
        reason = HUNG_UP
    if reason:
        raise (HungUpError if reason == HUNG_UP else UserError)(
            f"{role} at {address} refused {own.certificate_file} ({reason}): does it use the same ca.pem as "
            f"{own.authority_file}, and is its clock right?"
        )


def _distrust(error: ssl.SSLCertVerificationError, address: str, role: Role, own: Identity) -> str:
    host = address.rpartition(":")[0].strip("[]")
    who = f"the certificate of {role} at {address}"
    if error.verify_code in (_WRONG_NAME, _WRONG_ADDRESS):
        option = f"--coordinator-name {host}" if role.worker is None else f"--worker-name {role.worker}={host}"
        return (
            f"{who} ({role.stem}.pem there) is not made out to {host}: make one with `cafe certs … {option}`, or use "
            f"a name that it has"
        )
    if error.verify_code == _EXPIRED:
        return f"{who} has expired: renew {role.stem}.pem there with `cafe certs`"
    if error.verify_code == _NOT_YET_VALID:
        return f"{who} is not valid yet: are the clocks right, there and here?"
    return f"{who} was not signed by {own.authority_file}: do both sides have the same ca.pem?"
