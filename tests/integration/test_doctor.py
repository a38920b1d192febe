"""`cafe doctor` between real processes: what is well, and each thing that can be wrong, in a line that says so."""

import datetime
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from protos.coordinator_pb2 import JoinRequest
from protos.doctor_pb2 import Block, CompareRequest, Finding, ReportRequest
from protos.wire import DOCTOR_SERVICE
from tests.integration.command_support import CAFE, ENVIRONMENT, cafe, start
from tests.integration.protocol_support import RawCoordinator, refused
from tests.plain_rpc import PlainStub
from vfl.cli.app import app
from vfl.config import load_config
from vfl.datasets.slices import digest, load_data, slice_for
from vfl.doctor import findings
from vfl.doctor.findings import Level, Sheet
from vfl.doctor.listener import Listener
from vfl.doctor.main import examine_machine, examine_setup
from vfl.doctor.party import Setup
from vfl.doctor.system import EXTRAS, check_system
from vfl.errors import UserError
from vfl.limits import MESSAGE_BYTES
from vfl.net.certs import make_certificates
from vfl.net.tls import COORDINATOR, load_identity, worker_role

CONFIG = """
seed: 1
data: {name: digits, samples: 30}
federation: {workers: 3, batch_size: 6, rounds: 2, join_timeout: 900}
model: {name: mlp, hidden: [4]}
"""

STRANGE = """
import sys, time
from pathlib import Path
from vfl.config import load_config
from vfl.doctor import party
from vfl.doctor.main import examine_setup
from vfl.doctor.party import Setup

file, release, ahead, *tls = sys.argv[1:]
ours = party.installed()
party.installed = lambda: ours | {"cafe-vfl": release}
clock = lambda: time.time() + float(ahead)
folder = Path(tls[0]) if tls else None
examine_setup(Setup(load_config(Path(file)), "127.0.0.1:0", tls=folder, wait=True, clock=clock))
"""
"""A coordinator's doctor with another release and another clock."""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("doctor") / "run.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor") / "certs"
    make_certificates(folder, 3)
    (folder / "ca.key").unlink()
    return folder


@pytest.fixture
def own(certs, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(certs, tmp_path / "own")


def listening(process) -> str:
    line = process.stderr.readline()
    address = re.search(r"listening on (\S+),", line)
    assert address, line + process.stderr.read()
    return address.group(1).replace("0.0.0.0", "127.0.0.1")


def end(process):
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def over_tls(file, certs):
    """The address of a coordinator's doctor that waits; worker 2 never comes, so it stays."""
    process = start("doctor", file, "--wait", "--listen", "0.0.0.0:0", "--tls", certs, tag="doctor")
    yield listening(process)
    end(process)


@pytest.fixture
def strange(file):
    """Start a doctor with another release, or a clock that is so many seconds ahead."""
    processes = []

    def begin(release, ahead, *tls):
        command = [sys.executable, "-c", STRANGE, str(file), release, str(ahead), *map(str, tls)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        processes.append(process)
        return listening(process)

    yield begin
    for process in processes:
        end(process)


def examine(file, worker=1, **options):
    """What a doctor finds: the lines by place and check."""
    setup = Setup(load_config(file), options.pop("listen", "127.0.0.1:0"), worker, **options)
    return {(sheet.where, line.check): line for sheet in examine_setup(setup) for line in sheet.lines}


def failed(lines):
    return {where for where, line in lines.items() if line.level == Level.FAILED}


def test_an_attack_that_cannot_run_is_found_before_the_run(file, tmp_path):
    attacked = tmp_path / "attacked.yaml"
    attacked.write_text(f"{CONFIG}attack: {{name: least_squares}}\n")
    found = examine(attacked, None)[("here", "attack")]
    assert found.level == Level.FAILED
    assert "it needs 8 epochs" in found.text
    assert "says nothing about safety; these attacks can run here" in found.text
    attacked.write_text(f"{CONFIG}attack: {{name: dlg}}\n")
    assert examine(attacked, None)[("here", "attack")].level == Level.OK


def test_data_that_are_not_at_the_coordinator_are_a_warning(tmp_path):
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text(CONFIG.replace("name: digits, samples: 30", "name: npz, path: elsewhere.npz"))
    found = examine(elsewhere, None)
    assert found[("here", "data")].level == Level.WARNING
    assert not failed(found)


def test_all_is_well_between_three_parties_and_each_of_them_says_so(tmp_path, certs):
    file = tmp_path / "run.yaml"
    file.write_text(CONFIG.replace("workers: 3", "workers: 2").replace("900", "90"))
    assert cafe("slice", file, "--out", tmp_path).returncode == 0
    coordinator = start("doctor", file, "--wait", "--listen", "127.0.0.1:0", "--tls", certs, tag="doctor")
    address = listening(coordinator)
    line = ["doctor", file, "--wait", "--coordinator", address, "--tls", certs]
    workers = [start(*line, "--id", m, "--data", tmp_path / f"worker-{m}.safetensors", tag="doctor") for m in (1, 0)]
    told = [process.communicate(timeout=500) for process in (coordinator, *workers)]
    for process, (lines, words) in zip((coordinator, *workers), told, strict=True):
        assert (process.returncode, lines.splitlines()[-1]) == (0, "nothing is wrong"), lines + words
    assert "ok       here: workers: all have checked in" in told[0][0]
    assert {line.split(":")[0] for line in told[1][0].splitlines()[:-1]} == {
        "ok       here",
        "ok       coordinator",
        "ok       label holder",
    }
    checks = {line.split(": ")[1] for line in told[1][0].splitlines() if line.startswith("ok       coordinator")}
    wire = {"name", "port", "encryption", "handshake", "health"}
    assert checks == wire | {"versions", "config", "clocks", "join", "messages"}
    assert re.search(r"encryption: \S+ refuses plain text, and speaks TLSv1.3 with TLS_", told[1][0])


def test_without_wait_a_worker_checks_what_it_can(file, certs, over_tls):
    lines = examine(file, coordinator=over_tls, tls=certs)
    assert {where for where, line in lines.items() if line.level != Level.OK} == {("label holder", "address")}
    assert lines["label holder", "address"].level == Level.LATER


def test_against_a_running_coordinator_the_wire_is_checked_and_the_rest_left_to_the_join(file, certs, tmp_path):
    coordinator = RawCoordinator(tmp_path, arguments=["--tls", certs])
    try:
        lines = examine(file, coordinator=coordinator.address, tls=certs)
    finally:
        coordinator.close()
    assert failed(lines) == set()
    assert lines["coordinator", "health"].text == f"cafe.v1.Coordinator is serving at {coordinator.address}"
    assert lines["coordinator", "compare"].level == Level.LATER
    assert "when a worker joins" in lines["coordinator", "compare"].text


def test_another_authority(file, over_tls, tmp_path):
    make_certificates(tmp_path / "other", 2)
    lines = examine(file, coordinator=over_tls, tls=tmp_path / "other")
    assert failed(lines) == {("coordinator", "handshake")}
    assert "was not signed by" in lines["coordinator", "handshake"].text


def test_a_name_that_the_certificate_does_not_have(file, certs, over_tls):
    lines = examine(file, coordinator=over_tls.replace("127.0.0.1", "127.0.0.2"), tls=certs)
    assert failed(lines) == {("coordinator", "handshake")}
    assert "--coordinator-name 127.0.0.2" in lines["coordinator", "handshake"].text


def test_an_expired_certificate(file, tmp_path):
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=9)
    make_certificates(tmp_path, 2, days=5, now=long_ago)
    lines = examine(file, coordinator="127.0.0.1:1", tls=tmp_path)
    assert failed(lines) == {("here", "certificate")}
    assert "worker-1.pem expired on" in lines["here", "certificate"].text


def test_a_certificate_that_ends_soon_is_warned_of(file, tmp_path):
    make_certificates(tmp_path, 2, days=5)
    line = examine(file, None, tls=tmp_path)["here", "time left"]
    assert line.level == Level.WARNING
    assert "coordinator.pem ends in 4 days" in line.text


def test_a_port_where_nobody_listens(file, certs):
    with socket.socket() as taken:  # bound but not listening: nobody else gets it
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        lines = examine(file, coordinator=address, tls=certs)
    assert failed(lines) == {("coordinator", "port")}
    assert f"no answer at {address}" in lines["coordinator", "port"].text
    assert "no process listens there" in lines["coordinator", "port"].text


def test_a_name_that_does_not_resolve(file, certs):
    lines = examine(file, coordinator=f"{'a' * 64}:7000", tls=certs)  # no name server is asked for so long a one
    assert failed(lines) == {("coordinator", "name")}


def test_another_release_and_a_clock_that_goes_wrong(file, strange):
    lines = examine(file, coordinator=strange("9.9.9", 30.0))
    assert failed(lines) == {("coordinator", "versions")}
    assert re.search(r"cafe-vfl \S+ here and 9.9.9 there", lines["coordinator", "versions"].text)
    assert lines["coordinator", "clocks"].level == Level.WARNING
    found = re.search(
        r"is (\d+\.\d+) s ahead of this one, give or take (\d+\.\d+)", lines["coordinator", "clocks"].text
    )
    assert float(found[1]) == pytest.approx(30.0, abs=float(found[2]) + 0.1)


def test_a_clock_by_which_this_certificate_is_not_valid_yet(file, certs, strange):
    lines = examine(file, coordinator=strange("9.9.9", -7200.0, certs), tls=certs)
    assert ("coordinator", "clocks") in failed(lines)
    found = re.search(
        r"behind this one, .* by that one \S+worker-1.pem is not valid before", lines["coordinator", "clocks"].text
    )
    assert found, lines["coordinator", "clocks"].text


def test_a_proxy_in_the_way_is_warned_of(file, strange, monkeypatch):
    address = strange("9.9.9", 0.0)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    line = examine(file, coordinator=address)["coordinator", "proxy"]
    assert line.level == Level.WARNING
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert ("coordinator", "proxy") not in examine(file, coordinator=address)


def test_other_samples_and_another_config(file, certs, over_tls, tmp_path):
    config = load_config(file)
    data = slice_for(load_data(config), config, 0)
    replace(data, ids_digest=digest([f"person {i}" for i in range(30)])).save(tmp_path / "other.safetensors")
    assert failed(examine(file, 1, coordinator=over_tls, tls=certs)) == set()
    lines = examine(file, 0, coordinator=over_tls, tls=certs, data=tmp_path / "other.safetensors")
    assert failed(lines) == {("coordinator", "join")}
    assert "does not hold the same samples in the same order as worker 1" in lines["coordinator", "join"].text
    (tmp_path / "run.yaml").write_text(CONFIG.replace("hidden: [4]", "hidden: [5]"))
    lines = examine(tmp_path / "run.yaml", 0, coordinator=over_tls, tls=certs)
    assert failed(lines) == {("coordinator", "config")}
    assert "model.hidden is [5] here and [4] there" in lines["coordinator", "config"].text


def test_plain_text_where_tls_is_expected(file, certs, strange):
    lines = examine(file, coordinator=strange("9.9.9", 0.0), tls=certs)
    assert failed(lines) == {("coordinator", "encryption"), ("coordinator", "handshake")}
    assert "answers plain text" in lines["coordinator", "encryption"].text
    assert "was it started with --tls?" in lines["coordinator", "handshake"].text


def test_tls_where_plain_text_is_expected(file, over_tls):
    lines = examine(file, coordinator=over_tls)
    assert failed(lines) == {("coordinator", "handshake")}
    assert "speaks TLS: give --tls DIR here too" in lines["coordinator", "handshake"].text


@pytest.mark.parametrize(("mode", "level"), [(0o644, Level.FAILED), (0o640, Level.WARNING), (0o400, Level.OK)])
def test_a_key_that_others_can_read(file, own, mode, level):
    (own / "coordinator.key").chmod(mode)
    line = examine(file, None, tls=own)["here", "key"]
    assert line.level == level
    assert f"has mode {mode:04o}" in line.text


def test_the_key_of_the_authority_does_not_belong_here(file, tmp_path):
    make_certificates(tmp_path, 1)
    assert examine(file, None, tls=tmp_path)["here", "ca.key"].level == Level.WARNING


def test_a_coordinator_that_is_called_by_a_name_its_certificate_lacks(file, certs, tmp_path):
    assert examine(file, None, tls=certs)["here", "names"].level == Level.OK
    lines = examine(file, None, listen="127.0.0.3:0", tls=certs)
    assert "--coordinator-name 127.0.0.3" in lines["here", "names"].text
    assert failed(lines) == {("here", "names")}
    assert examine(file, None, listen="0.0.0.0:0", tls=certs)["here", "names"].level == Level.WARNING
    make_certificates(tmp_path, 1, {COORDINATOR: ["fl.example.org"]})
    assert "fl.example.org" in examine(file, None, listen="0.0.0.0:0", tls=tmp_path)["here", "names"].text


def test_an_address_that_is_taken(file):
    with socket.create_server(("127.0.0.1", 0)) as server:
        lines = examine(file, None, listen=f"127.0.0.1:{server.getsockname()[1]}")
    assert failed(lines) == {("here", "address")}


def test_a_label_holder_that_nobody_could_call(file, certs):
    lines = examine(file, 0, listen="0.0.0.0:0", coordinator="127.0.0.1:1", tls=certs)
    assert "--advertise HOST:PORT" in lines["here", "address"].text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"worker": 2}, "worker 2's are"),
        ({"samples": 31}, "has 30 samples, data.samples says 31"),
        ({"batch_size": 40}, "fewer than federation.batch_size, 40"),
        ({"label_holder": 1}, "has no labels, and the label holder is worker 1"),
    ],
)
def test_a_slice_that_does_not_fit_the_config(file, tmp_path, changes, words):
    config = load_config(file)
    slice_for(load_data(config), config, 1).save(tmp_path / "one.safetensors")
    text = CONFIG.replace("samples: 30", f"samples: {changes.get('samples', 30)}")
    text = text.replace("batch_size: 6", f"batch_size: {changes.get('batch_size', 6)}")
    text = text.replace("rounds: 2", f"rounds: 2, label_holder: {changes.get('label_holder', 0)}")
    (tmp_path / "run.yaml").write_text(text)
    worker = changes.get("worker", 1)
    lines = examine(tmp_path / "run.yaml", worker, coordinator="127.0.0.1:1", data=tmp_path / "one.safetensors")
    assert lines["here", "slice"].level == Level.FAILED
    assert words in lines["here", "slice"].text


def test_a_slice_file_that_is_missing_fails_on_the_command_line(file):
    line = ["--id", 1, "--coordinator", "127.0.0.1:1", "--data", "nowhere.safetensors"]
    done = cafe("doctor", file, *line)
    assert done.returncode == 1
    assert "failed   here: slice: there is no slice file nowhere.safetensors\n" in done.stdout
    assert done.stdout.endswith("\n2 failed, 0 warnings\n")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--id", 3, "--coordinator", "127.0.0.1:1"], "the workers of this federation are 0 to 2"),
        (["--id", 1], "--id 1: give --coordinator HOST:PORT too"),
        (["--data", "some.safetensors"], "are a worker's: give its --id too"),
        (["--listen", "0.0.0.0:0"], "--listen 0.0.0.0:0: without --tls DIR"),
        (["--insecure", "--tls", "certs"], "leave one of the two out"),
    ],
)
def test_bad_input_is_a_sentence_and_no_check(file, arguments, words):
    done = CliRunner().invoke(app, ["doctor", str(file), *map(str, arguments)])
    assert isinstance(done.exception, UserError)
    assert words in str(done.exception)
    assert done.output == ""


@pytest.mark.parametrize(
    ("system", "level", "words"), [("darwin", "warning", "is not tested"), ("win32", "failed", "use WSL 2 or Docker")]
)
def test_what_cannot_work_on_another_system_is_said(system, level, words):
    sheet = Sheet("here")
    check_system(sheet, system)
    (found,) = sheet.lines
    assert (found.level, words in found.text) == (level, True)


def test_every_extra_of_the_project_is_looked_for():
    root = Path(__file__).parents[2]
    named = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert EXTRAS.keys() == named.keys() - {"all", "docs", "dev"}


def test_without_a_file_this_machine_alone_is_checked(tmp_path, monkeypatch):
    monkeypatch.delenv("CAFE_DATA", raising=False)
    well = CliRunner().invoke(app, ["doctor"])
    assert well.exit_code == 0
    assert "ok       here: sockets: processes here reach each other" in well.output
    assert "give a config file to check one" in well.output
    assert "here: system: Linux on " in well.output
    assert "here: extras: installed: ui, tensorboard, " in well.output
    monkeypatch.setenv("CAFE_DATA", str(tmp_path))
    assert "data: CAFE_DATA has none of the data sets" in CliRunner().invoke(app, ["doctor"]).output
    monkeypatch.setenv("CAFE_DATA", str(tmp_path / "nowhere"))
    ill = CliRunner().invoke(app, ["doctor"])
    assert ill.exit_code == 1
    assert "failed   here: data: CAFE_DATA names" in ill.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--wait"], "--wait: only for a run, so give its FILE too"),
        (["--id", "0", "--coordinator", "127.0.0.1:1"], "--id, --coordinator: only for a run, so give its FILE too"),
        (["--set", "seed=1", "--tls", "certs"], "--set, --tls: only for a run, so give its FILE too"),
    ],
)
def test_options_of_a_run_without_its_file_are_named(arguments, words):
    done = cafe("doctor", *arguments)
    assert done.returncode == 2
    assert done.stderr == f"cafe: {words} [E10]\n"


def test_help_says_what_a_doctor_without_a_file_does():
    assert "without it only this machine" in " ".join(cafe("doctor", "--help").stdout.split())


@pytest.mark.parametrize(
    ("folders", "files", "words"),
    [
        ([], ["mnist.npz"], "mnist (mnist.npz)"),
        (["MNIST"], ["mnist.npz"], "mnist (MNIST)"),  # where both are, torchvision's are read
        (["cifar-10-batches-py"], ["yale32.npz", "other.npz"], "cifar10 (cifar-10-batches-py), yale (yale32.npz)"),
    ],
)
def test_data_sets_below_cafe_data_are_named_as_configs_do(tmp_path, monkeypatch, folders, files, words):
    for name in folders:
        (tmp_path / name).mkdir()
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setenv("CAFE_DATA", str(tmp_path))
    (here,) = examine_machine(tmp_path)
    assert [line.text for line in here.lines if line.check == "data"] == [f"CAFE_DATA has {words}"]


def test_workers_that_do_not_come_are_named(file):
    config = load_config(file, ["federation.join_timeout=0.2"])
    (here,) = examine_setup(Setup(config, "127.0.0.1:0", wait=True))
    missing = [line.text for line in here.lines if line.level == Level.FAILED]
    assert [text[:8] for text in missing] == ["worker 0", "worker 1", "worker 2"]
    assert all("did not check in within 0.2 s" in text for text in missing)


def test_ctrl_c_ends_the_waiting_with_what_was_found_by_then(file):
    process = start("doctor", file, "--wait", "--listen", "127.0.0.1:0", tag="doctor")
    listening(process)
    process.send_signal(signal.SIGINT)
    lines, words = process.communicate(timeout=500)
    assert process.returncode == 130
    assert "failed   here: workers: worker 2 did not check in before this was stopped" in lines
    assert words == "cafe: stopped\n"


def test_a_terminal_gets_a_table(file):
    ours, theirs = pty.openpty()
    environment = {**ENVIRONMENT, "COLUMNS": "100", "TERM": "xterm"}
    command = [*CAFE, "doctor", str(file), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while more := os.read(ours, 4096):
                shown += more
        except OSError:  # how a terminal says that the other side is closed
            os.close(ours)
    assert process.returncode == 0
    assert re.search(rb"here +config +\x1b\[32mok +\x1b\[0m +3 workers", shown)


def test_control_characters_of_other_machines_do_not_reach_the_terminal(capsys):
    findings.show_findings([Sheet("worker 1", [findings.Finding("x\x1b[2J", Level.FAILED, "a\x1b[31m\nb")])])
    assert "\x1b" not in capsys.readouterr().out


@pytest.fixture
def service(file, certs):
    """The service itself, and a stub that calls it as worker 1."""
    listener = Listener(load_config(file), COORDINATOR, load_identity(certs, COORDINATOR), time.time)
    address = listener.listen("127.0.0.1:0")
    own = load_identity(certs, worker_role(1))
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)) as channel:
        yield listener, PlainStub(channel, DOCTOR_SERVICE)
    listener.stop()


def test_nobody_checks_in_for_somebody_else(service):
    listener, stub = service
    status, words = refused(lambda: stub.Report(ReportRequest(worker=2), timeout=30))
    assert (status, "cannot speak for worker 2" in words) == (grpc.StatusCode.PERMISSION_DENIED, True)
    status, _ = refused(lambda: stub.Echo(Block(worker=7), timeout=30))
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    status, words = refused(lambda: stub.Compare(CompareRequest(worker=1, join=JoinRequest(worker=2)), timeout=30))
    assert (status, words) == (grpc.StatusCode.INVALID_ARGUMENT, "worker 1 cannot join as another")
    status, _ = refused(lambda: stub.Report(ReportRequest(worker=1, findings=[Finding(level="fine")]), timeout=30))
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert listener.missing == [0, 1, 2]
    stub.Report(ReportRequest(worker=1), timeout=30)
    assert listener.missing == [0, 2]


def test_a_limit_on_the_way_that_the_largest_message_does_not_pass(file, monkeypatch):
    limit = ("grpc.max_receive_message_length", MESSAGE_BYTES - 1)
    with monkeypatch.context() as patched:
        patched.setattr("vfl.doctor.listener.OPTIONS", [limit])
        listener = Listener(load_config(file), COORDINATOR, None, time.time)
    lines = examine(file, coordinator=listener.listen("127.0.0.1:0"))
    listener.stop()
    assert failed(lines) == {("coordinator", "messages")}
    assert f"a message of {MESSAGE_BYTES} bytes does not come through" in lines["coordinator", "messages"].text
