"""Who is in, however often workers join, leave, come back, or others claim to be them: a model beside the real one."""

from dataclasses import dataclass

import grpc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from server.membership import Member, Membership
from server.refusal import RefusedError
from tests.integration.protocol_support import join_request
from vfl.topology import Topology

WORKERS = st.integers(0, 1)  # the requests are those of a federation of two


@dataclass
class Expected:
    """What the model knows of a worker that is in."""

    member: Member
    generation: int


class Members(RuleBasedStateMachine):
    """Joins, leaves and claims in any order; `returning` as with a rejoin_timeout."""

    members = Bundle("members")
    """All that were ever let in, gone ones too."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[Member] = []
        self.membership = Membership(Topology(2), self.left.append, returning=True)
        self.live: dict[int, Expected] = {}
        self.gone: list[Member] = []
        self.started = self.closed = False
        self.comebacks = {0: 0, 1: 0}

    def refused(self, code: grpc.StatusCode, worker: int, **changes) -> None:
        proved = changes.pop("proved", False)
        with pytest.raises(RefusedError) as caught:
            self.membership.admit(join_request(worker, **changes), proved)
        assert caught.value.code == code

    def admitted(self, worker: int, proved: bool = False, **changes) -> Member:
        before = self.live.get(worker)
        member = self.membership.admit(join_request(worker, **changes), proved)
        if before is not None:
            self.gone.append(before.member)
            *_, last, hung_up = drained(before.member)
            assert hung_up is None
            assert "another process has joined" in last[0].abort.reason
        self.comebacks[worker] += self.started
        self.live[worker] = Expected(member, self.comebacks[worker])
        (first,) = drained(member)
        assert first[0].welcome.session == member.session
        assert first[0].welcome.generation == self.comebacks[worker]
        return member

    @precondition(lambda self: not self.closed and len(self.live) < 2)
    @rule(target=members, worker=WORKERS, session=st.sampled_from(["", "guessed"]))
    def joins(self, worker, session):
        if worker in self.live:
            self.refused(grpc.StatusCode.ALREADY_EXISTS, worker, previous_session=session)
            return multiple()
        return self.admitted(worker, previous_session=session)

    @precondition(lambda self: not self.closed)
    @rule(target=members, member=members, proved=st.booleans())
    def comes_back_with_a_session(self, member, proved):
        """Whoever has the live session takes its place; one that was replaced does not, whatever it can prove."""
        now = self.live.get(member.worker)
        if now is not None and now.member is not member:
            self.refused(grpc.StatusCode.ALREADY_EXISTS, member.worker, previous_session=member.session, proved=proved)
            return multiple()
        return self.admitted(member.worker, proved, previous_session=member.session)

    @precondition(lambda self: not self.closed)
    @rule(target=members, worker=WORKERS)
    def another_process_has_the_certificate(self, worker):
        return self.admitted(worker, proved=True)

    @precondition(lambda self: not self.closed)
    @rule(worker=WORKERS, lie=st.sampled_from([{"samples": 11}, {"ids_digest": b"other"}, {"test_samples": 1}]))
    def lies_about_its_data(self, worker, lie):
        if self.started or len(self.live) > (worker in self.live):  # somebody else is there to compare with
            self.refused(grpc.StatusCode.FAILED_PRECONDITION, worker, proved=True, **lie)

    @rule(worker=WORKERS, version=st.sampled_from([0, 99]))
    def speaks_another_version(self, worker, version):
        self.refused(grpc.StatusCode.FAILED_PRECONDITION, worker, proved=True, protocol_version=version)

    @rule(member=members)
    def leaves(self, member):
        """A stream ends; that of a process whose place was taken ends too, and changes nothing."""
        self.membership.remove(member)
        if self.is_live(member):
            del self.live[member.worker]
            self.gone.append(member)

    @rule(member=consumes(members))
    def hangs_up_twice(self, member):
        self.leaves(member)
        self.leaves(member)

    @precondition(lambda self: len(self.live) == 2 and not self.started)
    @rule()
    def starts(self):
        self.membership.start()
        self.started = True

    @precondition(lambda self: self.started)
    @rule(worker=WORKERS)
    def ends(self, worker):
        self.membership.closed = self.closed = True
        self.refused(grpc.StatusCode.FAILED_PRECONDITION, worker, proved=True)

    def is_live(self, member: Member) -> bool:
        return member.worker in self.live and self.live[member.worker].member is member

    @invariant()
    def one_live_member_an_identity(self):
        found = list(self.membership)
        assert [member.worker for member in found] == sorted(self.live)
        assert all(self.is_live(member) for member in found)
        assert [member.generation for member in found] == [one.generation for _, one in sorted(self.live.items())]
        assert self.membership.missing == [worker for worker in (0, 1) if worker not in self.live]

    @invariant()
    def stale_sessions_are_shut_out(self):
        for one in self.live.values():
            assert self.membership.of_session(one.member.session) is one.member
        for member in self.gone:
            with pytest.raises(RefusedError) as caught:
                self.membership.of_session(member.session)
            assert caught.value.code == grpc.StatusCode.UNAUTHENTICATED

    @invariant()
    def each_loss_is_told_once(self):
        assert self.left == self.gone

    @invariant()
    def those_who_wait_are_woken_in_time(self):
        assert self.membership.complete.is_set() == (len(self.live) == 2)
        assert self.membership.empty.is_set() == (not self.live and bool(self.gone))


def drained(member: Member) -> list:
    """All that is on a member's line."""
    lines = []
    while not member.lines.empty():
        lines.append(member.lines.get_nowait())
    return lines


Members.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMembers = Members.TestCase
