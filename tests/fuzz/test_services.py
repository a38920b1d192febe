"""Whatever is said to a whole service, or answered to who calls it: taken, or refused with a sentence; nothing else."""

import asyncio
import contextlib
from types import SimpleNamespace

import grpc
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protos.alignment_pb2 import AlignPart, PassPart, PlaceRequest
from protos.codec import CodecError
from protos.coordinator_pb2 import Evaluation, JoinRequest, Slice, Trouble
from protos.doctor_pb2 import Block, CompareReply, CompareRequest, ReportRequest
from protos.worker_pb2 import SwapPart
from server.alignment import AlignmentService
from server.disturbances import in_trouble
from server.inbox import Answers, Counts
from server.membership import Membership
from server.service import CoordinatorService
from server.session import Traffic
from tests.fuzz.support import fuzz, mutated, outcome, seeds
from tests.fuzz.test_wire import read
from tests.support import small_config
from vfl.doctor.findings import Sheet
from vfl.doctor.listener import Listener
from vfl.doctor.visits import Caller, _compare_clocks
from vfl.errors import RunFailedError, UserError
from vfl.limits import LONGEST_REASON, NAME_CHARACTERS, SENTENCE_CHARACTERS
from vfl.net.alignment import keyed_hashes, rows_of
from vfl.net.tls import COORDINATOR
from vfl.topology import Topology
from worker.alignment import _CoordinatorCalls
from worker.exchange import gradient_of

WAITS = 0.02
"""Seconds for which a call that is in order waits for others, who do not come."""


class TurnedDownError(Exception):
    """A call that was refused."""


class Call:
    """A call over plain text, to a service on an event loop."""

    async def abort(self, code, details):
        assert code not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
        raise TurnedDownError(details)


class SyncCall:
    def abort(self, _code, details):
        raise TurnedDownError(details)


def messages(kind, message, **limits):
    """Some messages of a kind, as they are read."""
    one = mutated(kind).map(lambda data: read(message, data))
    return st.lists(one, min_size=1, max_size=4, **limits).map(lambda found: [part for part in found if part])


async def sent(parts):
    for part in parts:
        yield part


async def drained(answers):
    return [part async for part in answers]


def service():
    return AlignmentService(2, False, WAITS, lambda: False)


@fuzz
@given(messages("align", AlignPart), messages("pass", PassPart), messages("place", PlaceRequest))
def test_tables_that_are_brought_to_the_coordinator(aligns, passes, places):
    async def call(do):
        return await do(service())

    for do in (
        lambda one: drained(one.Align(sent(aligns), Call())),
        lambda one: drained(one.Pass(sent(passes), Call())),
        *(lambda one, place=place: one.Place(place, Call()) for place in places),
    ):
        _, refusal = outcome(lambda do=do: asyncio.run(call(do)), TurnedDownError)
        assert refusal, "alone, nobody is answered"


def talk(answers):
    """A worker's side of the calls for alignment, to a coordinator that answers this."""
    one = object.__new__(_CoordinatorCalls)
    one._worker, one._patience = 0, WAITS
    one._stub = SimpleNamespace(**dict.fromkeys(("Align", "Pass"), lambda _parts, timeout: iter(answers)))
    one._stub.Place = lambda _request, timeout: answers
    return one


@fuzz
@given(messages("align", AlignPart), messages("pass", PassPart), mutated("placed"))
def test_what_a_coordinator_answers_to_who_brings_a_table(aligns, passes, placed):
    own = keyed_hashes(["a", "b", "c", "d"], b"key")
    outcome(lambda: rows_of(talk(aligns).compare(own), own), RunFailedError, UserError)
    outcome(lambda: talk(passes).swap(0, b"ours"), RunFailedError)
    told = read(Slice, placed)
    box, _ = outcome(lambda: told and talk(told).place(4), RunFailedError)
    assert not box or box.shape == (4,)


@fuzz
@given(messages("swap", SwapPart))
def test_what_a_label_holder_answers_to_an_output(parts):
    output = torch.ones(5, 3)
    gradient, _ = outcome(lambda: gradient_of(output, iter(parts)), CodecError)
    assert gradient is None or (gradient.shape, gradient.dtype) == (output.shape, output.dtype)


class PlayedSession:
    """A run of one member, in which an evaluation of five samples is on."""

    def __init__(self):
        self.noted, self.answers, self.traffic = [], Answers(), Traffic(Topology(2))
        self.answers.run_id = "r"
        self.membership = Membership(Topology(2), lambda _: None)
        self.member = self.membership.admit(JoinRequest.FromString(seeds("join")[0]))
        self.answers.counts = self.counts = Counts(4, {self.member.worker: 5})

    def troubled(self, member, trouble):
        self.noted.append(in_trouble(member, trouble.reason))


reports = mutated("report").map(lambda data: (read(Evaluation, data), read(Trouble, data)))
evaluations = st.builds(
    Evaluation,
    run_id=st.sampled_from(["r", "r", "r", "x"]),
    round=st.sampled_from([4, 5]),
    correct=st.sampled_from([0, 5, 6, (1 << 64) - 1]),
    total=st.sampled_from([5, 0, (1 << 64) - 1]),
    loss_sum=st.floats(),
    peer_bytes=st.integers(0, (1 << 64) - 1),
)
troubles = st.builds(Trouble, run_id=st.sampled_from(["r", "", "x" * 999]), reason=st.text(), leaving=st.booleans())


@fuzz
@given(st.one_of(reports, st.tuples(evaluations, troubles)))
def test_reports_of_a_worker_that_has_joined(made):
    evaluation, trouble = made

    async def report():
        run = PlayedSession()
        for message, name in ((evaluation, "ReportEvaluation"), (trouble, "ReportTrouble")):
            if message is not None:
                message.session = run.member.session
                with contextlib.suppress(TurnedDownError):
                    await getattr(CoordinatorService(run), name)(message, Call())
        return run

    run = asyncio.run(report())
    assert run.counts.correct <= 5
    assert abs(run.counts.loss_sum) < float("inf")
    assert all(words.isprintable() and len(words) < LONGEST_REASON + 20 for words in run.noted)


@pytest.fixture(scope="module")
def listener():
    made = Listener(small_config(), COORDINATOR, None, lambda: 1.0e9)
    yield made
    made.stop()


@fuzz
@given(mutated("doctor"))
def test_what_other_parties_doctors_say(listener, data):
    for name, message in (("Compare", CompareRequest), ("Echo", Block), ("Report", ReportRequest)):
        request = read(message, data)
        if request is not None:
            reply, _ = outcome(lambda name=name, of=request: getattr(listener, name)(of, SyncCall()), TurnedDownError)
            if name == "Compare" and reply is not None:
                assert len(reply.label_holder_address) <= NAME_CHARACTERS
    for findings in listener.reports.values():
        assert all((one.check + one.text).isprintable() for one in findings)
        assert max((len(one.text) for one in findings), default=0) <= SENTENCE_CHARACTERS


@fuzz
@given(mutated("doctor"))
def test_what_a_doctor_that_is_called_answers(data):
    reply, sheet = read(CompareReply, data), Sheet("there")
    if reply is None:
        return
    caller = Caller(small_config(), 1, grpc.insecure_channel("127.0.0.1:1"), tls=None, clock=lambda: 1.0e9)
    caller._stub = SimpleNamespace(Compare=lambda _request, timeout: reply)
    assert caller.compare(sheet, JoinRequest())
    assert all(len(line.text) < 2 * SENTENCE_CHARACTERS for line in sheet.lines)


@pytest.mark.parametrize("skew", [float("nan"), float("inf"), -1e300])
def test_a_time_that_is_none_is_a_sentence(skew):
    sheet = Sheet("there")
    _compare_clocks(sheet, skew, 0.1, object())
    assert sheet.lines[0].text == "the other party sent an impossible time: is it a `cafe doctor`?"
