"""`cafe health`: ask a party's gRPC health service whether it is serving.

Containers ask every few seconds, so nothing here imports torch.
"""

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from vfl.errors import CafeError
from vfl.limits import ANSWER_SECONDS
from vfl.net.handshake import tls_at
from vfl.net.tls import Identity


class NotServingError(CafeError):
    """A party that does not answer, or says that it is not serving."""


def check_serving(address: str, tls: Identity | None, timeout: float = ANSWER_SECONDS) -> None:
    """Return if the party at an address says that it is serving; NotServingError if not.

    Any certificate of the federation may ask, and any party may answer: authority and host name are checked, no role.
    """
    with _channel(address, tls) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError as error:
            raise NotServingError(f"{address} is not serving: {_reason(error, address, tls)}") from None
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        raise NotServingError(f"{address} is not serving: its health service says {status}")


def _channel(address: str, tls: Identity | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(address)
    credentials = grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    return grpc.secure_channel(address, credentials)


def _reason(error: grpc.RpcError, address: str, tls: Identity | None) -> str:
    if tls is None and tls_at(address):
        return "it speaks TLS, give --tls DIR"
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return "something else than a party of a federation answers there"
    return error.details() or error.code().name
