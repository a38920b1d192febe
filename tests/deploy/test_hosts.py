"""Coordinator and four workers on hosts of their own, with slow cables between them, and somebody who listens in."""

import json

import pytest
import torch

from tests.deploy.hosts_support import Capture, Hosts, assemble, found, own_files, tls_records, total
from tests.integration.command_support import cafe, wait_for
from tests.support import assert_same
from vfl.bench.rigs.networks import why_no_hosts
from vfl.config import load_config
from vfl.datasets.slices import load_data, slice_for
from vfl.folder.transcript import Transcript
from vfl.models import build_bottom
from vfl.net.certs import make_certificates
from vfl.net.tls import COORDINATOR, worker_role

CONFIG = """
seed: 5
data: {name: digits, samples: 36, test_samples: 20}
federation: {workers: 4, batch_size: 6, epochs: 8, join_timeout: 200, round_timeout: 60}
model: {name: mlp, hidden: [16]}
attack: {name: least_squares}
transcript: true
"""
PARTIES = ["coordinator", *(f"worker-{m}" for m in range(4))]
PORT, PEER_PORT = 7000, 7001


@pytest.fixture(scope="module")
def hosts():
    reason = why_no_hosts()
    if reason:
        pytest.skip(f"network namespaces cannot be made here: {reason}")
    made = Hosts(PARTIES)
    yield made
    made.close()


@pytest.fixture
def capture(hosts):
    running = Capture(hosts.switch)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("hosts") / "run.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def on_one_machine(config):
    """The folder of the same run by `cafe run`."""
    out = config.parent / "run"
    done = cafe("run", config, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def certs(hosts, config):
    """Each party's own files in a folder of its own; those who are called are made out to their names and addresses."""
    whole, single = config.parent / "certs", config.parent / "own"
    names = {
        role: [f"{role.stem}.cafe.test", hosts.ipv4[role.stem], hosts.ipv6[role.stem]]
        for role in (COORDINATOR, worker_role(0))
    }
    make_certificates(whole, 4, names)
    return {stem: own_files(whole, single, stem) for stem in PARTIES}


def by_hand(hosts, capture, config, out, addresses, security):
    """A whole run, workers first; `addresses` are those of the coordinator and of the label holder."""
    coordinator, label_holder, everywhere = addresses
    processes = []
    for m in range(4):
        line = ["work", config, "--id", m, "--coordinator", coordinator, "--threads", 1, *security(f"worker-{m}")]
        if m == 0:
            line += ["--listen", f"{everywhere}:{PEER_PORT}", "--advertise", label_holder]
        processes.append(hosts.cafe(f"worker-{m}", *line))
    wait_for(lambda: len(capture.callers(PORT)) == 4)  # all of them knock, and nobody is there yet
    line = ["serve", config, "--listen", f"{everywhere}:{PORT}", "--out", out, "--referee", *security("coordinator")]
    processes.append(hosts.cafe("coordinator", *line))
    for process in processes:
        _, words = process.communicate(timeout=500)
        assert process.returncode == 0, words


def assert_same_run(out, expected):
    assert_same(list(Transcript(out / "transcript")), list(Transcript(expected / "transcript")))
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (out, expected))
    assert ours["train"] == theirs["train"]
    assert ours["attack"]["psnr_mean"] > 60
    assert ours["attack"]["psnr_mean"] == pytest.approx(theirs["attack"]["psnr_mean"], abs=0.01)


def markers(config, out):
    """Bytes that a run must send: to the coordinator, from it, and from worker to worker."""
    settings = load_config(config)
    data = slice_for(load_data(settings), settings, 1)
    bottom = build_bottom(settings.model, data.box.shape, settings.seed, 1)
    rows = next(iter(Transcript(out / "transcript"))).indices
    with torch.no_grad():
        output = bottom(data.x[rows])[0]
    weights = next(bottom.parameters()).detach()[0]
    return {"ids": data.ids_digest, "weights": weights.numpy().tobytes(), "output": output.numpy().tobytes()}


def test_what_spans_packets_is_put_together():
    last = (1 << 32) - 2
    assert assemble(last, {2: b"ef", last: b"ab", 0: b"cd", last + 1: b"bc"}) == b"abcdef"
    with pytest.raises(AssertionError, match="bytes 2 to 4 were not captured"):
        assemble(last, {last: b"ab", 2: b"ef"})


def test_over_tls_and_ipv6_the_numbers_are_those_of_a_run_and_the_wire_shows_nothing(
    hosts, capture, config, certs, on_one_machine, tmp_path
):
    addresses = (f"[{hosts.ipv6['coordinator']}]:{PORT}", f"[{hosts.ipv6['worker-0']}]:{PEER_PORT}", "[::]")
    by_hand(hosts, capture, config, tmp_path / "out", addresses, lambda stem: ["--tls", certs[stem]])
    assert_same_run(tmp_path / "out", on_one_machine)
    streams = capture.streams()
    assert {flow[0] for flow in streams} == set(hosts.ipv6.values())
    for port in (PORT, PEER_PORT):
        assert total(streams, port) > 100_000
    for stream in streams.values():
        types = tls_records(stream)
        assert types[0] == 22  # each side begins with a handshake, and nothing but TLS follows
    for name, marker in markers(config, tmp_path / "out").items():
        assert found(streams, marker) == [], name


@pytest.mark.slow
def test_in_plain_text_by_name_whoever_holds_the_switch_reads_everything(
    hosts, capture, config, on_one_machine, tmp_path
):
    ipv4 = hosts.ipv4
    addresses = (f"coordinator.cafe.test:{PORT}", f"worker-0.cafe.test:{PEER_PORT}", "0.0.0.0")
    by_hand(hosts, capture, config, tmp_path / "out", addresses, lambda _: ["--insecure"])
    assert_same_run(tmp_path / "out", on_one_machine)
    streams, marked = capture.streams(), markers(config, tmp_path / "out")
    ends = {name: {(flow[0], flow[2]) for flow in found(streams, marker)} for name, marker in marked.items()}
    assert ends["ids"] == {(ipv4[f"worker-{m}"], ipv4["coordinator"]) for m in range(4)}
    assert ends["weights"] == {(ipv4["coordinator"], ipv4["worker-1"])}
    assert ends["output"] == {(ipv4["worker-1"], ipv4["worker-0"])}


@pytest.mark.parametrize("host", ["192.0.2.99", "[2001:db8::99]"])
def test_a_worker_whose_coordinator_does_not_answer_says_where(hosts, config, certs, host):
    line = ["--coordinator", f"{host}:{PORT}", "--tls", certs["worker-2"], "--set", "federation.join_timeout=2"]
    process = hosts.cafe("worker-2", "work", config, "--id", 2, *line)
    _, words = process.communicate(timeout=500)
    assert process.returncode == 1
    assert words == (
        f"cafe: no coordinator answers at {host}:{PORT} after 2 s: is `cafe serve` running there, and the port open? "
        "[E60]\n"
    )


@pytest.mark.slow
def test_the_doctors_of_all_hosts_find_nothing_wrong(hosts, config, certs, tmp_path):
    coordinator = ["--listen", f"0.0.0.0:{PORT}", "--tls", certs["coordinator"], "--out", tmp_path]
    processes = [hosts.cafe("coordinator", "doctor", config, "--wait", *coordinator)]
    for m in range(4):
        line = ["--id", m, "--coordinator", f"coordinator.cafe.test:{PORT}", "--tls", certs[f"worker-{m}"]]
        if m == 0:
            line += ["--listen", f"0.0.0.0:{PEER_PORT}", "--advertise", f"worker-0.cafe.test:{PEER_PORT}"]
        processes.append(hosts.cafe(f"worker-{m}", "doctor", config, "--wait", *line))
    for process in processes:
        lines, words = process.communicate(timeout=500)
        assert (process.returncode, lines.splitlines()[-1]) == (0, "nothing is wrong"), lines + words


def test_the_doctor_says_why_a_host_cannot_be_reached(hosts, config, certs):
    (shut, absent) = (f"{hosts.ipv4['coordinator']}:{PORT + 9}", "nowhere.cafe.test:7000")
    for address, reason in ((shut, "no process listens there"), (absent, "nowhere.cafe.test cannot be resolved")):
        line = ["--id", 2, "--coordinator", address, "--tls", certs["worker-2"]]
        process = hosts.cafe("worker-2", "doctor", config, *line)
        lines, _ = process.communicate(timeout=500)
        assert process.returncode == 1
        assert reason in next(line for line in lines.splitlines() if line.startswith("failed"))
