"""Rounds under any order of joins, losses, uploads and troubles: each is finished once, with what it always has."""

import asyncio
import tempfile
from pathlib import Path

import grpc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protos.codec import announce
from protos.coordinator_pb2 import Trouble, UploadHeader, UploadPart
from protos.wire import UPLOAD
from server import background, disturbances
from server.checkpoint import Checkpoints
from server.parameters import Parameters, gradients_of_round
from server.service import CoordinatorService
from server.session import Session
from server.trainer import Trainer
from tests.server.rounds_support import Call, Here, Player, TurnedDownError, assert_equal, request_of, update
from tests.support import small_config
from vfl.folder.journal import Journal

WORKERS, HOLDER, ROUNDS = 3, 0, 4
FEW = disturbances.MOST_TRIES - 2
"""Disturbances of one round that a run stands."""

A_WORKER = st.integers(0, WORKERS - 1)


class Rounds(RuleBasedStateMachine):
    """A real coordinator and its service; the workers are played."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(Here())
        self.folder = tempfile.TemporaryDirectory()
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(disturbances, "SETTLE_SECONDS", 0.0)  # nobody waits for a time to pass
        self.patched.setattr(background, "HEAD_START", 0.0)
        self.live, self.stale, self.slow, self.seen = {}, [], {}, []
        self.disturbed = 0

    @initialize(frozen=st.booleans(), withheld=st.sets(st.tuples(A_WORKER, st.integers(1, ROUNDS)), max_size=2))
    def begin(self, frozen, withheld):
        self.withheld = withheld
        self.config = small_config(
            data={"test_samples": 0},
            federation={"workers": WORKERS, "batch_size": 4, "rounds": ROUNDS, "when_withheld": "continue"},
            model={"name": "mlp", "hidden": [3], "output": 2},
            training={"lr": 0.0 if frozen else 0.1, "momentum": 0.9},
        )
        self.run(self._begin())
        for worker in range(WORKERS):
            self.joins(worker)

    async def _begin(self):
        out = Path(self.folder.name)
        self.journal, self.checkpoints = Journal(out), Checkpoints(out, self.config)
        self.session = Session(self.config, self.journal, patience=60.0)
        self.service = CoordinatorService(self.session)
        self.conducting = asyncio.ensure_future(self._conduct())

    async def _conduct(self):
        self.setting = await self.session.gather()
        trainer = Trainer(self.config, self.setting, self.session, self.checkpoints, journal=self.journal)
        await trainer.train(self._observe)

    def _observe(self, observation):
        self.seen.append(observation)
        self.disturbed = 0

    def run(self, doing):
        """Do something, and let everybody go on until all wait for something else to happen."""

        async def do():
            try:
                return await doing
            finally:
                for _ in range(100):
                    await asyncio.sleep(0)

        return self.loop.run_until_complete(do())

    # -- what can happen

    def can_upload(self, worker):
        player = self.live.get(worker)
        return player is not None and worker not in self.slow and player.ordered != player.uploaded

    def goes_on(self):
        return not self.conducting.done()

    def joins(self, worker, previous_session=""):
        async def join():
            self.live[worker] = Player(worker, self.service.Join(request_of(worker, previous_session), Call()))

        self.run(join())
        assert self.live[worker].last != "abort"
        assert self.live[worker].session

    @precondition(lambda self: self.goes_on() and len(self.live) < WORKERS)
    @rule(worker=A_WORKER)
    def comes_back(self, worker):
        if worker not in self.live:
            self.joins(worker)

    @precondition(lambda self: self.goes_on() and self.disturbed < FEW)
    @rule(worker=A_WORKER)
    def comes_back_before_it_is_missed(self, worker):
        before = self.live.get(worker)
        if before is not None and not before.refused:
            self.stale.append(before)
            self.disturbed += 1
            self.joins(worker, before.session)
            assert before.last == "abort"

    @precondition(lambda self: self.goes_on())
    @rule(worker=A_WORKER)
    def another_claims_to_be_it(self, worker):
        if worker in self.live:
            with pytest.raises(TurnedDownError) as caught:
                self.run(anext(self.service.Join(request_of(worker, "guessed"), Call())))
            assert caught.value.code == grpc.StatusCode.ALREADY_EXISTS

    @precondition(lambda self: self.goes_on() and self.disturbed < FEW)
    @rule(worker=A_WORKER)
    def leaves(self, worker):
        player = self.live.get(worker)
        if player is not None and not player.refused:
            self.stale.append(self.live.pop(worker))
            self.disturbed += 1
            player.listening.cancel()
            self.run(asyncio.sleep(0))

    @rule(worker=A_WORKER)
    def uploads(self, worker):
        if self.can_upload(worker):
            player = self.live[worker]
            number = player.ordered[len(player.uploaded)]
            self.upload(player, number)
            player.refused = False

    @rule(worker=A_WORKER)
    def everybody_uploads(self, worker):
        for other in range(WORKERS):
            self.uploads((worker + other) % WORKERS)

    @rule(worker=A_WORKER)
    def begins_to_upload(self, worker):
        """The header has come, the rest takes its time."""
        if self.can_upload(worker):
            player = self.live[worker]
            number = player.ordered[len(player.uploaded)]
            rest = asyncio.Event()

            async def begin():
                return asyncio.ensure_future(self._upload(player, number, player.run_id, rest))

            self.slow[worker] = (player, player.run_id, rest, self.run(begin()))
            player.uploaded.append(number)

    @precondition(lambda self: self.slow)
    @rule(worker=A_WORKER)
    def ends_its_upload(self, worker):
        """Whatever has happened meanwhile, it is taken for the round as it was begun, or refused."""
        if worker in self.slow:
            player, run_id, rest, uploading = self.slow.pop(worker)
            rest.set()
            self.run(asyncio.wait([uploading]))
            error = uploading.exception()
            assert error is None or error.code == grpc.StatusCode.ABORTED
            assert error is None or run_id != self.session.answers.run_id
            player.refused = False

    @precondition(lambda self: self.goes_on() and any(player.uploaded for player in self.live.values()))
    @rule(worker=A_WORKER)
    def uploads_again(self, worker):
        player = self.live.get(worker)
        if player is not None and player.uploaded and worker not in self.slow:
            player.refused = True
            on = player.uploaded[-1] in self.session.answers.inboxes
            code = grpc.StatusCode.ALREADY_EXISTS if on else grpc.StatusCode.FAILED_PRECONDITION
            self.refuses(code, player, player.uploaded[-1])

    @precondition(lambda self: self.stale)
    @rule(which=st.integers(0, 10), number=st.integers(1, ROUNDS))
    def uploads_over_a_stale_stream(self, which, number):
        self.refuses(grpc.StatusCode.UNAUTHENTICATED, self.stale[which % len(self.stale)], number)

    @rule(worker=A_WORKER, number=st.integers(1, ROUNDS))
    def uploads_for_a_start_that_is_over(self, worker, number):
        if worker in self.live and worker not in self.slow:
            self.refuses(grpc.StatusCode.ABORTED, self.live[worker], number, "another run_id")

    @precondition(lambda self: self.goes_on() and self.disturbed < FEW)
    @rule(worker=A_WORKER, stale=st.booleans())
    def is_in_trouble(self, worker, stale):
        player = self.live.get(worker)
        if player is not None and player.run_id:
            run_id, before = self.session.answers.run_id, list(player.ordered)
            self.disturbed += not stale
            told = Trouble(session=player.session, run_id="another" if stale else player.run_id, reason="no luck")
            self.run(self.service.ReportTrouble(told, Call()))
            if stale:
                assert (self.session.answers.run_id, player.ordered) == (run_id, before)

    @precondition(lambda self: self.goes_on())
    @rule(pausing=st.booleans())
    def is_paused_or_resumed(self, pausing):
        async def tell():
            self.session.pause.begin() if pausing else self.session.pause.end()

        self.run(tell())

    # -- how it is done

    async def _upload(self, player, number, run_id, rest=None):
        gradients = {} if (withholds := (player.worker, number) in self.withheld) else self.update_of(player, number)
        header = UploadHeader(
            session=player.session,
            run_id=run_id,
            worker=player.worker,
            round=number,
            gradients=announce(gradients),
            loss=number if player.worker == HOLDER else None,
            withheld="it leaks" if withholds else None,
        )

        async def parts():
            yield UploadPart(header=header)
            if rest is not None:
                await rest.wait()
            for chunk in UPLOAD.chunks(gradients.values()):
                yield UPLOAD.read(chunk)

        return await self.service.Upload(parts(), Call())

    def update_of(self, player, number):
        return update(player.worker, number, player.parameters)

    def upload(self, player, number):
        player.uploaded.append(number)
        assert self.run(self._upload(player, number, player.run_id)).round == number

    def refuses(self, code, player, number, run_id=None):
        with pytest.raises(TurnedDownError) as caught:
            self.run(self._upload(player, number, run_id or player.run_id))
        assert caught.value.code == code

    # -- what must hold

    @invariant()
    def rounds_are_finished_once_and_in_order(self):
        assert [one.round for one in self.seen] == list(range(1, len(self.seen) + 1))

    @invariant()
    def nobody_is_in_twice(self):
        members = list(self.session.membership)
        assert {member.worker: member.session for member in members} == {w: p.session for w, p in self.live.items()}

    @invariant()
    def all_play_the_rounds_that_are_on(self):
        # Whoever comes back while the run is paused hears of it when it goes on.
        if len(self.live) == WORKERS and self.goes_on() and not self.session.pause.on:
            for player in self.live.values():
                assert player.run_id == self.session.answers.run_id
                assert set(self.session.answers.inboxes) <= set(player.ordered)

    def teardown(self):
        try:
            if hasattr(self, "conducting"):
                self._finish()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left))
            self.loop.close()
            self.patched.undo()
            self.folder.cleanup()

    def _finish(self):
        """Let the run come to its end, and compare it with one in which nothing happened."""
        for worker in list(self.slow):
            self.ends_its_upload(worker)
        self.is_paused_or_resumed(pausing=False)
        for _ in range(2 * ROUNDS):
            for worker in range(WORKERS):
                self.comes_back(worker)
            self.everybody_uploads(0)
        assert self.conducting.done()
        self.conducting.result()
        self.run(self.session.end(None))
        assert {player.last for player in self.live.values()} == {"end"}
        self._compare()

    def _compare(self):
        parameters = Parameters(self.setting, self.config.training)
        for number, seen in enumerate(self.seen, start=1):
            uploads = {}
            for worker in range(WORKERS):
                own = update(worker, number, parameters.expected_from(worker))
                uploads[worker] = {} if (worker, number) in self.withheld else own
            expected = gradients_of_round(uploads, WORKERS, HOLDER)
            assert_equal(seen.gradients, expected)
            assert_equal(seen.parameters, parameters.current)
            parameters.update(number, expected)
        assert len(self.seen) == self.session.record.rounds == ROUNDS
        assert_equal(self.session.record.model, parameters.current)


Rounds.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestRounds = Rounds.TestCase


def test_whoever_comes_back_during_a_pause_is_sent_a_start_before_anything_else():
    machine = Rounds()
    try:
        machine.begin(frozen=False, withheld=set())
        machine.is_paused_or_resumed(pausing=True)
        machine.everybody_uploads(0)
        machine.leaves(HOLDER)
        machine.comes_back(HOLDER)
        machine.is_paused_or_resumed(pausing=False)
        machine.nobody_is_in_twice()
        machine.all_play_the_rounds_that_are_on()
    finally:
        machine.teardown()
