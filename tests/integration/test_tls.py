"""Mutual TLS between real processes: the same numbers, and everybody with the wrong certificate stays outside."""

import contextlib
import datetime
import re
import shutil
import socket
import ssl
import threading
from dataclasses import replace
from types import SimpleNamespace

import grpc
import pytest
import torch

from protos.coordinator_pb2 import Evaluation, Trouble
from protos.wire import COORDINATOR_SERVICE, EXCHANGE_SERVICE
from tests.integration.command_support import cafe, start
from tests.integration.protocol_support import RawCoordinator, RawWorker, finish, join_request, refused
from tests.plain_rpc import PlainStub
from tests.support import assert_same, small_config
from vfl.errors import UserError
from vfl.folder.transcript import Transcript
from vfl.net import network
from vfl.net.certs import make_certificates
from vfl.net.handshake import meet
from vfl.net.network import reach
from vfl.net.tls import COORDINATOR, Identity, load_identity, worker_role
from worker.exchange import Peer, WorkerServer
from worker.rendezvous import Rendezvous, swap_parts

SMALL = ["--set", "federation={workers: 2, batch_size: 20, rounds: 3}", "--set", "attack.name=none"]
SMALL += ["--set", "transcript=true"]


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls") / "certs"
    make_certificates(folder, 3)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another authority's."""
    folder = tmp_path_factory.mktemp("tls") / "other"
    make_certificates(folder, 3)
    return folder


@pytest.fixture(scope="module")
def aged(tmp_path_factory):
    """Worker 0's certificate, and the coordinator's in `old/`, have expired; the others have not."""
    folder = tmp_path_factory.mktemp("tls") / "aged"
    make_certificates(folder, 1, days=5, now=datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=9))
    shutil.copytree(folder, folder / "old")
    for end in (".pem", ".key"):
        (folder / f"coordinator{end}").unlink()
    make_certificates(folder, 2)
    return folder


@pytest.fixture(scope="module")
def coordinator(certs, tmp_path_factory):
    """A real coordinator that nobody ever joins, on all addresses of this machine."""
    arguments = ["--listen", "0.0.0.0:0", "--tls", certs, "--set", "federation.join_timeout=900"]
    raw = RawCoordinator(tmp_path_factory.mktemp("serve"), arguments=arguments)
    yield raw
    raw.close()


@pytest.fixture(scope="module")
def address(coordinator):
    return coordinator.address.replace("0.0.0.0", "127.0.0.1")


def unchecked(folder, role) -> Identity:
    """What somebody proves itself with who does not care whether it will do."""
    files = [folder / name for name in ("ca.pem", f"{role.stem}.pem", f"{role.stem}.key")]
    return Identity(role, folder, *(file.read_bytes() for file in files))


def channel_as(folder, role, address):
    own = unchecked(folder, role)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(own.authority, own.key, own.certificate))


@pytest.fixture
def listening():
    """Start workers' servers that prove themselves with any certificate."""
    servers = []

    def listen(own, worker=0):
        rendezvous = Rendezvous()
        server = WorkerServer(small_config(), worker, rendezvous, listen="127.0.0.1:0", tls=own)
        servers.append(server)
        rendezvous.open("run", {1: 3, 2: 2})
        return rendezvous, f"127.0.0.1:{server.port}"

    yield listen
    for server in servers:
        server.stop()


def test_by_hand_over_tls_gives_the_numbers_of_a_run(config, certs, tmp_path):
    for stem in ("coordinator", "worker-0", "worker-1"):  # each machine has its own files only
        (tmp_path / stem).mkdir()
        for name in ("ca.pem", f"{stem}.pem", f"{stem}.key"):
            shutil.copy(certs / name, tmp_path / stem)
    out = ["--out", tmp_path / "tls"]
    serve = start(
        "serve", config, "--listen", "127.0.0.1:0", "--tls", tmp_path / "coordinator", *out, *SMALL, tag="tls"
    )
    address = re.search(r"listening on (\S+),", serve.stderr.readline()).group(1)
    line = ["--coordinator", address, "--threads", 1, *SMALL]
    processes = [serve] + [
        start("work", config, "--id", m, "--tls", tmp_path / f"worker-{m}", *line, tag="tls") for m in (1, 0)
    ]
    for process in processes:
        _, words = process.communicate(timeout=500)
        assert process.returncode == 0, words
    assert cafe("run", config, "--out", tmp_path / "plain", *SMALL).returncode == 0
    tls, plain = (list(Transcript(tmp_path / name / "transcript")) for name in ("tls", "plain"))
    assert len(tls) == 3
    assert_same(tls, plain)


def test_a_coordinator_and_a_worker_speak_tls_1_3_and_nothing_older(certs, address):
    own = unchecked(certs, worker_role(1))
    host, _, port = address.rpartition(":")
    for version, spoken in ((ssl.TLSVersion.TLSv1_2, None), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        context = ssl.create_default_context(cafile=own.authority_file)
        context.load_cert_chain(own.certificate_file, own.key_file)
        context.set_alpn_protocols(["h2"])
        context.minimum_version = context.maximum_version = version
        with socket.create_connection((host, int(port)), timeout=20) as line:
            try:
                with context.wrap_socket(line, server_hostname=host) as connection:
                    found = connection.version()
            except OSError:
                found = None
        assert found == spoken


def test_a_worker_hangs_up_on_a_coordinator_that_speaks_an_older_tls(certs):
    theirs = unchecked(certs, COORDINATOR)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(theirs.certificate_file, theirs.key_file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def answer(server):
        with contextlib.suppress(OSError), server.accept()[0] as line:
            context.wrap_socket(line, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match="does not speak TLS as expected"):
            meet(address, COORDINATOR, unchecked(certs, worker_role(1)), 20)


def test_a_worker_of_another_authority_ends_with_one_sentence(config, other, address):
    done = cafe("work", config, "--id", 1, "--coordinator", address, "--tls", other, *SMALL)
    assert done.returncode == 2
    assert done.stderr == (
        f"cafe: the certificate of the coordinator at {address} was not signed by {other / 'ca.pem'}: "
        f"do both sides have the same ca.pem? [E61]\n"
    )


def test_a_worker_without_a_certificate_is_told_what_to_do(config, address):
    done = cafe("work", config, "--id", 1, "--coordinator", address, *SMALL)
    assert done.returncode == 2
    assert done.stderr == f"cafe: the coordinator at {address} speaks TLS: give --tls DIR here too [E61]\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["work", "--id", 2, "--coordinator", "127.0.0.1:1", "--tls", "CERTS"], "not of worker 2"),
        (["serve", "--listen", "0.0.0.0:0"], "--listen 0.0.0.0:0: without --tls DIR"),
        (["work", "--id", 1, "--coordinator", "192.0.2.1:1"], "--coordinator 192.0.2.1:1: without --tls DIR"),
        (
            ["work", "--id", 1, "--coordinator", "127.0.0.1:1", "--listen", "192.0.2.1:1"],
            "--listen 192.0.2.1:1: without",
        ),
        (["serve", "--tls", "CERTS", "--insecure"], "leave one of the two out"),
        (["serve", "--tls", "nowhere"], "nowhere/ca.pem cannot be read"),
    ],
)
def test_what_is_wrong_before_connecting_gets_one_sentence(config, certs, tmp_path, command, words):
    mixed = shutil.copytree(certs, tmp_path / "mixed")
    for end in (".pem", ".key"):
        shutil.copy(certs / f"worker-1{end}", mixed / f"worker-2{end}")
    first, *rest = [str(mixed) if word == "CERTS" else word for word in command]
    done = cafe(first, config, *rest, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_coordinator_under_another_name_is_not_believed(certs, address):
    elsewhere = address.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(
        UserError,
        match=r"coordinator.pem there\) is not made out to 127.0.0.2: make one with .*--coordinator-name 127.0.0.2",
    ):
        reach(elsewhere, COORDINATOR, load_identity(certs, worker_role(1)), 30)


def test_the_coordinator_refuses_certificates_of_another_authority(certs, other, address):
    mixed = replace(unchecked(other, worker_role(1)), authority=(certs / "ca.pem").read_bytes())
    with pytest.raises(UserError, match=r"the coordinator at \S+ refused \S+worker-1.pem"):
        reach(address, COORDINATOR, mixed, 30)


def test_the_coordinator_refuses_callers_without_a_certificate(certs, address):
    credentials = grpc.ssl_channel_credentials((certs / "ca.pem").read_bytes())
    with grpc.secure_channel(address, credentials) as channel:
        stub = PlainStub(channel, COORDINATOR_SERVICE)
        status, _ = refused(lambda: next(stub.Join(join_request(1), timeout=30)))
    assert status == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("role", [worker_role(2), COORDINATOR], ids=str)
def test_a_certificate_fixes_who_may_join(certs, address, role):
    with channel_as(certs, role, address) as channel:
        stub = PlainStub(channel, COORDINATOR_SERVICE)
        status, words = refused(lambda: next(stub.Join(join_request(1), timeout=30)))
    assert status == grpc.StatusCode.PERMISSION_DENIED
    assert words == f"the caller's certificate is that of {role}, it cannot speak for worker 1"


def test_a_certificate_fixes_for_whom_one_may_speak_and_whose_place_one_may_take(certs, tmp_path):
    coordinator = RawCoordinator(tmp_path, arguments=["--tls", certs], rejoin=30)
    channels = [channel_as(certs, worker_role(m), coordinator.address) for m in (0, 1)]
    try:
        stubs = [PlainStub(channel, COORDINATOR_SERVICE) for channel in channels]
        pair = [RawWorker(SimpleNamespace(stub=stub), m) for m, stub in enumerate(stubs)]
        assert [worker.next_round().round for worker in pair] == [1, 1]
        pair[1].stub = stubs[0]  # worker 0 got hold of worker 1's session
        stolen = {"session": pair[1].session, "run_id": pair[1].run_id}
        for call in (
            lambda: pair[1].upload(1),
            lambda: stubs[0].ReportEvaluation(Evaluation(**stolen), timeout=30),
            lambda: stubs[0].ReportTrouble(Trouble(**stolen, leaving=True), timeout=30),
            lambda: next(stubs[0].Join(join_request(1, previous_session=pair[1].session), timeout=30)),
        ):
            status, words = refused(call)
            assert (status, "cannot speak for worker 1" in words) == (grpc.StatusCode.PERMISSION_DENIED, True)
        again = RawWorker(SimpleNamespace(stub=stubs[1]), 1)  # its certificate is enough
        assert [again.next_round().round, pair[0].next_round().round, pair[0].next_round().round] == [1, 2, 1]
        finish(coordinator, [pair[0], again])
    finally:
        for channel in channels:
            channel.close()
        coordinator.close()


def test_expired_certificates_are_refused_on_either_side(aged, listening):
    _, address = listening(unchecked(aged / "old", COORDINATOR))
    with pytest.raises(UserError, match=r"certificate of the coordinator at \S+ has expired"):
        reach(address, COORDINATOR, load_identity(aged, worker_role(1)), 30)
    _, address = listening(load_identity(aged, COORDINATOR))
    with pytest.raises(UserError, match=r"refused \S+worker-0.pem"):
        reach(address, COORDINATOR, unchecked(aged, worker_role(0)), 30)


def test_a_worker_cannot_pose_as_the_coordinator_or_the_label_holder(certs, listening):
    _, address = listening(load_identity(certs, worker_role(2)))
    own = load_identity(certs, worker_role(1))
    with pytest.raises(UserError, match=r"the coordinator was expected at .*, but the certificate there is that of"):
        reach(address, COORDINATOR, own, 30)
    with pytest.raises(UserError, match=r"worker 0 was expected at .*, but the certificate there is that of worker 2"):
        Peer(address, "run", 1, holder=worker_role(0), timeout=30, tls=own)


def test_a_channel_believes_only_the_certificate_that_was_looked_at(certs, listening, monkeypatch):
    _, holder = listening(load_identity(certs, worker_role(0)))
    _, impostor = listening(load_identity(certs, worker_role(2)))
    monkeypatch.setattr(network, "meet", lambda _address, *rest, **more: meet(holder, *rest, **more))
    with pytest.raises(TimeoutError):  # somebody else took over the address after the look
        reach(impostor, worker_role(0), load_identity(certs, worker_role(1)), 2)


@pytest.mark.parametrize("role", [COORDINATOR, worker_role(2)], ids=str)
def test_only_the_worker_itself_exchanges_outputs(certs, listening, role):
    _, address = listening(load_identity(certs, worker_role(0)))
    with channel_as(certs, role, address) as channel:
        parts = swap_parts("run", 1, 1, {"output": torch.zeros(5, 3)})
        status, words = refused(lambda: next(PlainStub(channel, EXCHANGE_SERVICE).Swap(parts, timeout=30)))
    assert status == grpc.StatusCode.PERMISSION_DENIED
    assert words == f"the caller's certificate is that of {role}, it cannot speak for worker 1"


def test_tls_where_plain_text_is_spoken_is_said_at_once(certs, listening):
    _, address = listening(None)
    with pytest.raises(UserError, match=r"does not speak TLS as expected .*: was it started with --tls"):
        reach(address, COORDINATOR, load_identity(certs, worker_role(1)), 30)


def test_an_address_where_nobody_answers_yet_is_waited_for(certs, listening):
    own = load_identity(certs, worker_role(1))
    with pytest.raises(TimeoutError):
        reach("127.0.0.1:9", COORDINATOR, own, 0.5)
    _, address = listening(load_identity(certs, COORDINATOR))
    reach(address, COORDINATOR, own, 30).close()


def test_the_label_holder_takes_its_peers_outputs_over_tls(certs, listening):
    rendezvous, address = listening(load_identity(certs, worker_role(0)))
    answer = threading.Timer(0.2, rendezvous.answer, [1, {1: torch.ones(5, 3)}])
    answer.start()
    peer = Peer(address, "run", 1, holder=worker_role(0), timeout=30, tls=load_identity(certs, worker_role(1)))
    assert torch.equal(peer.swap(1, torch.arange(5), torch.zeros(5, 3)), torch.ones(5, 3))
    peer.close()
