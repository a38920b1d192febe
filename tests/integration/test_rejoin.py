"""Workers that are lost in the middle of a run and come back: real processes, the numbers of an undisturbed run."""

import contextlib
import json
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import grpc
import pytest
import torch

from protos.coordinator_pb2 import Trouble, UploadPart
from tests.integration.command_support import cafe
from tests.integration.federation_support import Federation, assert_same_numbers
from tests.integration.protocol_support import RawCoordinator, RawWorker, finish, join_request, refused

CONFIG = """
seed: 3
data: {name: digits, samples: 200}
federation: {workers: 3, batch_size: 20, rounds: 150, label_holder: 1, rejoin_timeout: 60, round_timeout: 60,
  fixed_secrets: true}
model: {name: mlp, hidden: [24]}
training: {optimizer: adam, lr: 0.001, evaluate_every: 50}
transcript: true
defence: {name: noise, scale: 0.01}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("rejoin") / "run.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def undisturbed(config, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    done = cafe("run", config, "--out", out, "--quiet")
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def federation(config, tmp_path):
    federation = Federation(config, tmp_path / "out")
    yield federation
    federation.close()


def assert_as_if_nothing_had_happened(federation, undisturbed):
    federation.finished()
    return assert_same_numbers(federation.out, undisturbed)


def test_killed_workers_that_are_started_again_take_their_places(federation, undisturbed):
    workers = [federation.worker(number) for number in range(3)]
    federation.reaches(10)
    for number in (lost := [0, 1]):  # the label holder is among them
        workers[number].kill()
    for number in lost:
        workers[number] = federation.worker(number)
    summary = assert_as_if_nothing_had_happened(federation, undisturbed)
    (disturbance,) = summary["disturbances"]
    assert disturbance["redone"] <= 1  # none, if the loss was noticed between two rounds
    assert disturbance["round"] > 10
    assert any(f"waiting 60 s for workers {lost} to come back" in line for line in federation.said)
    assert [worker.wait(30) for worker in workers] == [0, 0, 0]


class Cable:
    """A line on this machine that can be cut: connections to it are passed on to another port."""

    def __init__(self, target):
        self._target = target.rpartition(":")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection((self._target[0], int(self._target[2])))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                threading.Thread(target=self._pass_on, args=(near, far), daemon=True).start()

    def _pass_on(self, near, far):
        other = {near: far, far: near}
        with contextlib.suppress(OSError, ValueError):
            while True:
                for end in select.select([near, far], [], [])[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        raise OSError
                    other[end].sendall(data)
        for end in other:
            end.close()

    def cut(self):
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.close()
        self.cut()


@pytest.mark.slow
def test_a_label_holder_whose_connection_is_cut_comes_back_by_itself(federation, undisturbed):
    cable = Cable(federation.address)
    with contextlib.closing(cable):
        workers = [federation.worker(n, address=cable.address if n == 1 else None) for n in range(3)]
        for rounds in (10, 60):
            federation.reaches(rounds)
            cable.cut()
        summary = assert_as_if_nothing_had_happened(federation, undisturbed)
        assert len(summary["disturbances"]) == 2
        words = workers[1].communicate(timeout=500)[1]
    assert words.count("worker 1: is back") == 2
    expected = json.loads((undisturbed / "summary.json").read_text())["bytes"]["peer"]
    assert summary["bytes"]["peer"] == pytest.approx(expected, rel=0.1)
    assert "worker 1: done after 150 rounds" in words


@pytest.mark.slow
def test_when_the_line_between_two_workers_is_cut_the_round_is_done_again(federation, undisturbed):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cable = Cable(f"127.0.0.1:{port}")
    with contextlib.closing(cable):
        federation.worker(1, "--listen", f"127.0.0.1:{port}", "--advertise", cable.address)
        federation.worker(0)
        federation.worker(2)
        for rounds in (10, 25, 40, 55, 70, 85):  # one that falls between two exchanges disturbs nobody
            federation.reaches(rounds)
            cable.cut()
        summary = assert_as_if_nothing_had_happened(federation, undisturbed)
    reasons = [reason for one in summary["disturbances"] for reason in one["reasons"]]
    assert any("the exchange with the label holder" in reason for reason in reasons), reasons


def test_a_label_holder_that_cannot_be_reached_is_said_to_be_so(config, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG.replace("round_timeout: 60", "round_timeout: 8"))
    federation = Federation(path, tmp_path / "out")
    try:
        workers = [federation.worker(n, *(("--advertise", "127.0.0.1:9") if n == 1 else ())) for n in range(3)]
        assert federation.server.wait(60) == 1
        ended = [line for line in federation.said if line.startswith("cafe: ")]
        assert re.match(r"cafe: worker [02]: cannot reach the label holder at 127.0.0.1:9: start", ended[0]), ended
        assert [worker.wait(60) for worker in workers] == [1, 1, 1]
        assert "Traceback" not in "".join(worker.communicate()[1] for worker in workers)
    finally:
        federation.close()


def test_when_the_coordinator_does_not_come_back_workers_end_with_a_sentence(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG.replace("rejoin_timeout: 60", "rejoin_timeout: 1"))
    federation = Federation(path, tmp_path / "out")
    try:
        workers = [federation.worker(number) for number in range(3)]
        federation.reaches(10)
        federation.server.kill()
        for worker in workers:
            words = worker.communicate(timeout=500)[1]
            assert worker.returncode == 1
            assert f"cafe: no coordinator answers at {federation.address} after 1 s" in words
            assert "Traceback" not in words
    finally:
        federation.close()


@pytest.fixture
def patient(tmp_path) -> Iterator[RawCoordinator]:
    raw = RawCoordinator(tmp_path, rejoin=30)
    yield raw
    raw.close()


def both(coordinator):
    workers = [RawWorker(coordinator, number) for number in (0, 1)]
    assert [worker.next_round().round for worker in workers] == [1, 1]
    return workers


def test_a_stale_stream_is_shut_out(patient):
    first, second = both(patient)
    stale = (second.session, second.run_id)
    again = RawWorker(patient, 1, previous_session=second.session)
    assert second.next_round().round == 2  # frozen parameters: ordered ahead
    assert "another process has joined as worker 1" in second.next_round().abort.reason
    assert [worker.next_round().round for worker in (first, again)] == [2, 1]
    assert first.next_round().round == 1  # ordered anew
    second.parameters = again.parameters
    assert refused(lambda: second.upload(1))[0] == grpc.StatusCode.UNAUTHENTICATED
    second.session = again.session
    code, words = refused(lambda: second.upload(1))  # of a start that is over
    assert (code, words) == (grpc.StatusCode.ABORTED, "round 1 was begun anew")
    assert stale != (again.session, again.run_id)
    finish(patient, [first, again])


def test_a_second_worker_of_the_same_number_is_refused_while_the_first_is_there(patient):
    workers = both(patient)
    code, words = refused(lambda: next(patient.stub.Join(join_request(1), timeout=30)))
    assert code == grpc.StatusCode.ALREADY_EXISTS
    assert "give each its own --id" in words
    code, _ = refused(lambda: next(patient.stub.Join(join_request(1, previous_session="guessed"), timeout=30)))
    assert code == grpc.StatusCode.ALREADY_EXISTS
    finish(patient, workers)


def test_where_nobody_is_waited_for_nobody_is_replaced(coordinator, pair):
    request = join_request(1, previous_session=pair[1].session)
    assert refused(lambda: next(coordinator.stub.Join(request, timeout=30)))[0] == grpc.StatusCode.ALREADY_EXISTS
    finish(coordinator, pair)


def test_generations_are_counted_from_the_start(patient):
    early = patient.stub.Join(join_request(1), timeout=60)
    assert next(early).welcome.generation == 0
    early.cancel()
    time.sleep(0.5)
    first, second = both(patient)
    assert second.generation == 0
    for generation in (1, 2):
        second = RawWorker(patient, 1, previous_session=second.session)
        assert second.generation == generation
        assert second.next_round().round == 1
    while first.run_id != second.run_id:
        number = first.next_round().round
    assert number == 1
    finish(patient, [first, second])


def test_a_worker_that_is_lost_in_the_middle_of_an_upload_is_waited_for(patient):
    first, second = both(patient)
    gradients = {name: torch.zeros_like(p) for name, p in second.parameters.items()}
    # what the coordinator sees of one that is killed then: the chunks end, and so do the orders
    code, words = refused(
        lambda: patient.stub.Upload(iter([UploadPart(header=second.header(1, gradients))]), timeout=30)
    )
    assert (code, "end after 0 of the 96 bytes" in words) == (grpc.StatusCode.DATA_LOSS, True)
    second.orders.cancel()
    time.sleep(0.5)
    again = RawWorker(patient, 1)
    assert [worker.next_round().round for worker in (first, again)] == [2, 1]
    assert first.next_round().round == 1
    finish(patient, [first, again])


def test_whoever_comes_back_with_other_data_is_refused(patient):
    first, second = both(patient)
    second.orders.cancel()
    time.sleep(0.5)
    for changes in ({"ids_digest": b"other"}, {"samples": 11}, {"test_samples": 1}):
        request = join_request(1, **changes)
        stream = patient.stub.Join(request, timeout=30)
        assert refused(partial(next, stream))[0] == grpc.StatusCode.FAILED_PRECONDITION
    again = RawWorker(patient, 1)
    assert [worker.next_round().round for worker in (first, again)] == [2, 1]
    assert first.next_round().round == 1
    finish(patient, [first, again])


def test_trouble_with_a_round_begins_it_anew_and_ten_times_end_the_run(patient):
    workers = both(patient)  # the other one must stay
    first = workers[0]
    assert first.next_round().round == 2
    for _ in range(10):
        told = Trouble(session=first.session, run_id=first.run_id, reason="no luck")
        patient.stub.ReportTrouble(told, timeout=30)
        patient.stub.ReportTrouble(told, timeout=30)  # of the same start: not counted twice
        assert [first.next_round().round for _ in range(2)] == [1, 2]
    told = Trouble(session=first.session, run_id=first.run_id, reason="no luck")
    patient.stub.ReportTrouble(told, timeout=30)
    assert "round 1 was begun anew 10 times; worker 0: no luck" in first.next_round().abort.reason
    assert patient.end()[0] == 1


def test_whoever_does_not_come_back_is_named_and_what_was_done_is_kept(tmp_path):
    coordinator = RawCoordinator(tmp_path, rejoin=0.5)
    with contextlib.closing(coordinator):
        first, second = both(coordinator)
        for worker in (first, second):
            worker.upload(1)
        assert [first.next_round().round for _ in range(2)] == [2, 3]  # ordered ahead: round 1 is done by then
        second.orders.cancel()
        reason = "after 0.5 s workers [1] have not come back"
        assert first.next_round().abort.reason == reason
        code, words = coordinator.end()
        assert code == 1
        assert f"cafe: {reason}" in words
        summary = json.loads((coordinator.out / "summary.json").read_text())
        assert (summary["rounds"], summary["ended"]) == (1, reason)


def test_a_worker_that_leaves_for_good_says_why(patient):
    first, second = both(patient)
    told = Trouble(session=second.session, run_id=second.run_id, reason="my disk is full", leaving=True)
    patient.stub.ReportTrouble(told, timeout=30)
    assert first.next_round().round == 2
    assert first.next_round().abort.reason == "worker 1: my disk is full"
    code, words = patient.end()
    assert code == 1
    assert "cafe: worker 1: my disk is full" in words


def test_a_worker_that_leaves_before_the_start_just_leaves(patient):
    early = patient.stub.Join(join_request(1), timeout=60)
    told = Trouble(session=next(early).welcome.session, reason="this is another run", leaving=True)
    patient.stub.ReportTrouble(told, timeout=30)
    early.cancel()
    time.sleep(0.5)
    finish(patient, both(patient))
