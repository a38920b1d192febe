"""A real worker and a coordinator that is played: what it makes of starts, losses and refusals."""

import concurrent.futures
import contextlib
import socket
import threading

import grpc
import pytest
import torch

from protos.codec import announce
from protos.coordinator_pb2 import Order
from protos.coordinator_pb2 import Parameters as ParametersOrder
from protos.tensors_pb2 import Chunk
from tests.support import small_config
from tests.worker.played_coordinator import Played
from vfl.errors import RunFailedError
from vfl.net.tls import worker_role
from worker import session
from worker.exchange import Peer, WorkerServer
from worker.rendezvous import Rendezvous

TOP_THAT_DRAWS = """
from torch import nn
from vfl.models import SplitModel

class TopThatDraws(SplitModel):
    def bottom(self, shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8))

    def top(self, widths, classes):
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(sum(widths), classes))
"""


@pytest.fixture
def play():
    with contextlib.ExitStack() as opened:

        def begin(**changes):
            free = {"checks": False}  # the coordinator that is played draws no batches and takes no steps
            changes["federation"] = {
                "workers": 2, "batch_size": 4, "silence_timeout": 1, **free, **changes["federation"]
            }  # fmt: skip
            return opened.enter_context(contextlib.closing(Played(small_config(**changes))))

        yield begin


def test_a_worker_that_cannot_reach_a_lost_label_holder_goes_on_with_the_next_start(play):
    played = play(federation={})
    worker = played.worker(1)
    line = played.joined()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        gone = f"127.0.0.1:{nobody.getsockname()[1]}"
    meeting = Rendezvous()
    server = WorkerServer(played.config, 0, meeting, listen="127.0.0.1:0")
    try:
        line.start("first", gone)
        line.start("second", f"127.0.0.1:{server.port}")
        line.round(1)
        meeting.open("second", {1: played.parameters.output_widths[1]})
        (output,) = meeting.gather(1, torch.arange(4), 10).values()  # well before the first would have been given up
        meeting.answer(1, {1: torch.ones_like(output)})
        header, _ = played.uploads.get(timeout=30)
        assert (header.run_id, header.round) == ("second", 1)
        line.end()
        assert worker.result(30).rounds == 1
    finally:
        server.stop()
    assert played.troubles == []


def test_a_round_that_is_done_again_has_the_same_numbers_with_a_top_model_that_draws(play, tmp_path, monkeypatch):
    (tmp_path / "drawing_top.py").write_text(TOP_THAT_DRAWS)
    monkeypatch.syspath_prepend(str(tmp_path))
    played = play(federation={"kind": "horizontal"}, model={"name": "drawing_top:TopThatDraws"})
    worker = played.worker(1)
    line = played.joined()
    seen = []
    for run_id in ("first", "again"):
        line.start(run_id)
        line.round(1)
        seen.append(played.uploads.get(timeout=30)[1])
    line.end()
    worker.result(30)
    assert all(torch.equal(seen[0][name], seen[1][name]) for name in seen[0])


def test_a_label_holder_whose_upload_is_lost_comes_back(play):
    played = play(federation={})
    played.lost_uploads.append("the line is dead")
    worker = played.worker(0)
    line = played.joined()
    line.start("run")
    peer = Peer(line.request.peer_address, "run", 1, holder=worker_role(0), timeout=30)
    with contextlib.closing(peer):
        for number in (1, 2):  # it waits for the outputs of the second when it hears of the first one's upload
            line.round(number)
        peer.swap(1, torch.arange(4), torch.zeros(4, played.parameters.output_widths[1]))
        again = played.joined(generation=1)
    assert again.request.previous_session == "session 0"
    again.end()
    assert worker.result(30).rounds == 1
    assert not any(trouble.leaving for trouble in played.troubles)


def test_a_worker_of_another_run_leaves_without_a_word(play):
    played = play(federation={"kind": "horizontal"})
    worker = played.worker(1)
    line = played.joined()
    line.start("run")
    line.round(1)
    played.uploads.get(timeout=30)
    line.hang_up()
    played.joined(generation=0)
    with pytest.raises(RunFailedError, match="has begun another run"):
        worker.result(30)
    assert played.troubles == []


def test_parameters_that_come_drop_by_drop_are_not_waited_for_longer_than_a_round(play, monkeypatch):
    monkeypatch.setattr(session, "MESSAGE_SECONDS", 2.0)
    played = play(federation={"round_timeout": 2})
    worker = played.worker(1)
    line = played.joined()
    line.start("run", played.address, parameters=False)
    tensors = played.parameters.expected_from(1)
    line.send(Order(parameters=ParametersOrder(version=1, bundle=announce(tensors))))
    dripping = threading.Thread(target=drip, args=(line, worker), daemon=True)
    dripping.start()
    with pytest.raises(RunFailedError, match="the coordinator's parameters took longer than 2 s"):
        worker.result(60)
    dripping.join()


def drip(line, worker):
    """Send a byte now and then for as long as anybody listens."""
    for offset in range(500):
        line.send(Order(chunk=Chunk(offset=offset, data=b"0")))
        if concurrent.futures.wait([worker], timeout=0.2).done:
            return


def test_a_worker_that_is_just_started_keeps_trying_to_join(play):
    played = play(federation={})
    played.refusals += [(grpc.StatusCode.UNAVAILABLE, "not yet"), (grpc.StatusCode.ALREADY_EXISTS, "it was here")]
    worker = played.worker(1)
    played.joined().end()
    assert worker.result(30).rounds == 1


def test_a_second_worker_of_a_number_hears_of_it_when_a_loss_would_have_been_noticed(play, monkeypatch, capfd):
    monkeypatch.setattr(session, "NOTICED_SECONDS", 0.0)
    played = play(federation={"join_timeout": 300})
    played.refusals += 100 * [(grpc.StatusCode.ALREADY_EXISTS, "give each its own --id")]
    with pytest.raises(RunFailedError, match="refused worker 1: give each its own --id"):
        played.worker(1).result(60)
    assert "give each its own --id; trying again for" in capfd.readouterr().err


DP = {"name": "dp", "noise_multiplier": 1.0, "batches": "known"}


@pytest.mark.parametrize(("defence", "generation"), [({"name": "breaker"}, 1), (DP, 1), (DP, 0)])
def test_a_restarted_worker_whose_defence_keeps_count_withholds_its_uploads(play, defence, generation):
    played = play(federation={"kind": "horizontal"}, defence=defence)
    worker = played.worker(1)
    line = played.joined(generation)
    line.start("run")
    line.round(1)
    header, gradients = played.uploads.get(timeout=30)
    assert ("it was restarted" in header.withheld) == (not gradients) == bool(generation)
    line.end()
    worker.result(30)


def test_a_round_for_parameters_that_did_not_come_is_not_played(play, monkeypatch):
    monkeypatch.setattr(session.Link, "failure_within", lambda _link, _seconds: None)
    played = play(federation={"kind": "horizontal"})
    worker = played.worker(1)
    line = played.joined()
    line.start("run")
    line.round(1, version=2)
    line.end()
    with pytest.raises(RunFailedError, match="round 1 wants parameters 2, here are 1"):
        worker.result(30)
    assert played.uploads.empty()


def test_orders_from_before_a_newer_start_are_not_followed(play, monkeypatch):
    begun, newer, played_rounds = threading.Event(), threading.Event(), []
    train, supersede = session.Trainer.train, session.Session._supersede

    def slowly(trainer, number, indices):
        played_rounds.append(number)
        begun.set()
        assert newer.wait(30)
        return train(trainer, number, indices)

    def noticed(worker, run_id):
        supersede(worker, run_id)
        if run_id == "second":
            newer.set()

    monkeypatch.setattr(session.Trainer, "train", slowly)
    monkeypatch.setattr(session.Session, "_supersede", noticed)
    played = play(federation={"kind": "horizontal"})
    worker = played.worker(1)
    line = played.joined()
    line.start("first")
    for number in (1, 2):
        line.round(number)
    assert begun.wait(30)
    line.start("second")
    line.round(1)
    line.end()
    worker.result(30)
    assert played_rounds == [1, 1]  # the second of the first start is out of date
    header, _ = played.uploads.get_nowait()
    assert (header.run_id, header.round) == ("second", 1)
