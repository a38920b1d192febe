"""A coordinator that sends a worker to the wrong label holder over TLS, all certificates valid: nothing goes there."""

import contextlib

import pytest

from tests.support import small_config
from tests.worker.played_coordinator import Played
from vfl.errors import RunFailedError, UserError
from vfl.net.certs import make_certificates
from vfl.net.tls import COORDINATOR, load_identity, worker_role
from worker.exchange import WorkerServer
from worker.rendezvous import Rendezvous


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("misdirected") / "certs"
    make_certificates(folder, 3)
    return folder


@pytest.mark.parametrize("accomplice", [worker_role(2), COORDINATOR, None], ids=["worker", "coordinator", "plain text"])
def test_a_worker_brings_its_outputs_to_the_label_holder_of_its_own_config_or_to_nobody(certs, accomplice):
    config = small_config(federation={"workers": 3, "batch_size": 4, "round_timeout": 6, "silence_timeout": 1})
    meeting = Rendezvous()
    own = None if accomplice is None else load_identity(certs, accomplice)
    server = WorkerServer(config, 0, meeting, listen="127.0.0.1:0", tls=own)
    played = Played(config, tls=load_identity(certs, COORDINATOR))
    with contextlib.closing(played):
        try:
            worker = played.worker(1, patience=0.0, tls=load_identity(certs, worker_role(1)))
            line = played.joined()
            meeting.open("run", {1: 10})
            line.start("run", f"127.0.0.1:{server.port}")
            line.round(1)
            with pytest.raises((RunFailedError, UserError)) as refused:
                worker.result(60)
        finally:
            server.stop()
    there = {worker_role(2): "that of worker 2", COORDINATOR: "that of the coordinator"}.get(accomplice)
    expected = f"worker 0 was expected at 127.0.0.1:{server.port}, but the certificate there is {there}"
    assert (expected if accomplice else "does not speak TLS as expected") in str(refused.value)
    assert meeting.bytes == 0
    assert played.uploads.empty()
