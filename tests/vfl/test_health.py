"""`cafe health` and real gRPC servers: who is serving, who is not, and why."""

from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.integration.command_support import cafe
from vfl.net.certs import make_certificates
from vfl.net.health import NotServingError, check_serving
from vfl.net.tls import COORDINATOR, load_identity, worker_role

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("health") / "certs"
    make_certificates(folder, 2)
    return folder


@pytest.fixture
def listening():
    """Start servers that say a status, or have no health service."""
    servers = []

    def listen(status=SERVING, tls=None):
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
        if status is not None:
            servicer = health.HealthServicer()
            servicer.set("", status)
            health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        here = "127.0.0.1:0"
        port = server.add_secure_port(here, tls.server_credentials()) if tls else server.add_insecure_port(here)
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield listen
    for server in servers:
        server.stop(None).wait()


def test_the_command_says_it_in_a_sentence_and_an_exit_code(listening):
    address = listening()
    done = cafe("health", address)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{address} is serving\n", "")
    address = listening(NOT_SERVING)
    done = cafe("health", address)
    words = f"cafe: {address} is not serving: its health service says NOT_SERVING [E60]\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)


def test_nobody_there_is_not_serving():
    with pytest.raises(NotServingError, match=r"127\.0\.0\.1:9 is not serving: .*Connection refused"):
        check_serving("127.0.0.1:9", None)


def test_a_server_without_a_health_service_is_no_party(listening):
    with pytest.raises(NotServingError, match="something else than a party of a federation answers there"):
        check_serving(listening(status=None), None)


@pytest.mark.parametrize("asks", [COORDINATOR, worker_role(1)], ids=str)
def test_any_certificate_of_the_federation_may_ask(listening, certs, asks):
    check_serving(listening(tls=load_identity(certs, worker_role(0))), load_identity(certs, asks))


def test_plain_text_where_tls_is_spoken_is_told_what_to_do(listening, certs):
    with pytest.raises(NotServingError, match="it speaks TLS, give --tls DIR"):
        check_serving(listening(tls=load_identity(certs, worker_role(0))), None)


def test_another_authoritys_party_is_not_believed(listening, certs, tmp_path):
    make_certificates(tmp_path / "other", 1)
    with pytest.raises(NotServingError, match="CERTIFICATE_VERIFY_FAILED"):
        check_serving(
            listening(tls=load_identity(tmp_path / "other", worker_role(0))), load_identity(certs, COORDINATOR)
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["here"], "HOST:PORT here: expected HOST:PORT"),
        (["127.0.0.1:9", "--id", 1], "--id 1: says whose certificate to show, so give --tls DIR too"),
        (["127.0.0.1:9", "--tls", "nowhere"], "nowhere/ca.pem cannot be read"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, words):
    done = cafe("health", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
