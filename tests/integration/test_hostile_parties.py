"""Parties that accept connections and never answer properly: whoever calls them gives up when its time is over."""

import pytest

from tests.integration.hostile_support import rude_party
from vfl.errors import CafeError, RunFailedError
from vfl.net.certs import make_certificates
from vfl.net.health import NotServingError, check_serving
from vfl.net.network import reach
from vfl.net.tls import COORDINATOR, load_identity, worker_role
from worker.exchange import Peer
from worker.link import Link
from worker.rendezvous import ExchangeError


@pytest.fixture(scope="module")
def identity(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rude") / "certs"
    make_certificates(folder, 2)
    return load_identity(folder, worker_role(1))


@pytest.fixture(params=["is silent", "drips", "raves"])
def rude(request, monkeypatch):
    monkeypatch.setattr("vfl.net.handshake.ANSWER_SECONDS", 0.3)
    monkeypatch.setattr("vfl.limits.LOOK_SECONDS", 0.3)
    with rude_party(request.param) as address:
        yield address


def test_a_worker_gives_up_the_coordinator(rude):
    with pytest.raises(RunFailedError, match=f"no coordinator answers at {rude} after 0.5 s"):
        Link(rude, 1, join_timeout=0.5, timeout=1, tls=None, silence=30.0)


def test_a_worker_gives_up_the_label_holder(rude):
    with pytest.raises(ExchangeError, match=f"cannot reach the label holder at {rude}"):
        Peer(rude, "run", 1, holder=worker_role(0), timeout=1)


def test_health_is_not_waited_for(rude):
    with pytest.raises(NotServingError, match=f"{rude} is not serving"):
        check_serving(rude, None, timeout=0.5)


def test_nobody_waits_for_a_handshake(rude, identity):
    with pytest.raises((TimeoutError, CafeError)):
        reach(rude, COORDINATOR, identity, 0.5)
