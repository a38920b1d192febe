"""A worker's calls at the coordinator and the label holder: what it compares with them, and how a join would end."""

import contextlib
import datetime
import os
import time

import grpc

from protos.coordinator_pb2 import JoinRequest
from protos.doctor_pb2 import Block, CompareReply, CompareRequest, Party, ReportRequest
from protos.doctor_pb2 import Finding as FindingMessage
from protos.wire import COORDINATOR_SERVICE, DOCTOR_SERVICE, Stub
from vfl.config import RunConfig
from vfl.doctor.address import check_health, examine
from vfl.doctor.findings import Finding, Level, Sheet
from vfl.doctor.party import Clock, Setup, describe_party
from vfl.limits import CALL_SECONDS, ECHO_SECONDS, MESSAGE_BYTES, plain
from vfl.net.network import sentence
from vfl.net.tls import COORDINATOR, Identity, file_problem, read_certificate, refuse_plain, worker_role


class Visits:
    """One worker's calls at the coordinator and at the label holder, and what it found there."""

    def __init__(self, setup: Setup, worker: int, identity: Identity | None) -> None:
        self._setup, self._worker, self._identity = setup, worker, identity
        self.coordinator, self.label_holder = Sheet("coordinator"), Sheet("label holder")
        self.checked_in = False
        """Whether the coordinator's doctor has this worker's report now."""

    def make(self, own: Sheet, join: JoinRequest | None, address: str) -> None:
        """Visit the coordinator and, unless this is the label holder, the label holder; report the findings.

        `join` is this worker's request to join, if its slice is in order; `address` is where it answers peers, if any.
        """
        setup, sheet = self._setup, self.coordinator
        channel = examine(sheet, setup.coordinator, COORDINATOR, self._identity, patience=setup.patience)
        if channel is None:
            return
        with contextlib.closing(channel):
            expected = (DOCTOR_SERVICE.full_name, COORDINATOR_SERVICE.full_name)
            service = check_health(sheet, setup.coordinator, channel, expected)
            if service == COORDINATOR_SERVICE.full_name:
                sheet.later(
                    "compare",
                    f"a coordinator waits at {setup.coordinator} already: it compares versions, samples and slices "
                    f"when a worker joins",
                )
            if service != DOCTOR_SERVICE.full_name:
                return
            caller = Caller(setup.config, self._worker, channel, tls=self._identity, clock=setup.clock)
            if caller.compare(sheet, join, address):
                caller.echo(sheet)
                if setup.config.topology.labels_at_coordinator:
                    text = "`cafe serve` runs the label holder itself (--label-listen): workers reach it in the run"
                    self.label_holder.later("address", text)
                elif setup.config.topology.sends_outputs(self._worker):
                    self._visit_label_holder(caller)
                self.checked_in = caller.report(sheet, self._report(own))

    def _visit_label_holder(self, coordinator: "Caller") -> None:
        setup, sheet = self._setup, self.label_holder
        try:
            address = coordinator.label_holder(setup.patience)
        except grpc.RpcError as error:
            sheet.fail("address", f"the coordinator's doctor went away before it knew the address: {sentence(error)}")
            return
        holder = worker_role(setup.config.topology.label_holder)
        advice = f"start `cafe doctor … --id {holder.worker} … --wait` there"
        if not address and setup.wait:
            sheet.fail("address", f"{holder} did not say within {setup.patience:g} s where it listens: {advice}")
            return
        if not address:
            sheet.later("address", f"{holder} has not said yet where it listens: {advice}, and --wait here")
            return
        if self._identity is None and not setup.insecure:
            with sheet.trying("encryption"):
                refuse_plain(address, "the label holder's address")
            if sheet.lines:
                return
        channel = examine(sheet, address, holder, self._identity)
        if channel is None:
            return
        with contextlib.closing(channel):
            caller = Caller(setup.config, self._worker, channel, tls=self._identity, clock=setup.clock)
            if check_health(sheet, address, channel, (DOCTOR_SERVICE.full_name,)) and caller.compare(sheet):
                caller.echo(sheet)
                caller.report(sheet, sheet.lines)

    def _report(self, own: Sheet) -> list[Finding]:
        """Return the report for the coordinator: of this machine it says only how many checks failed."""
        failed = own.count(Level.FAILED)
        text = (
            f"{failed} checks of its own machine failed, its own table has them" if failed else "nothing failed there"
        )
        mine = Finding("own machine", Level.FAILED if failed else Level.OK, text)
        beyond = [Finding(f"label holder, {one.check}", one.level, one.text) for one in self.label_holder.lines]
        return [mine, *self.coordinator.lines, *beyond]


SKEW_SECONDS = 5.0
"""Clocks that differ by more get a warning: logs of two machines are then hard to compare."""

_ASK_SECONDS = 0.5

_CENTURY = 3.2e9
"""Seconds; no clock is that wrong."""


class Caller:
    """A worker that calls another party's `cafe doctor`."""

    def __init__(
        self, config: RunConfig, worker: int, channel: grpc.Channel, *, tls: Identity | None, clock: Clock
    ) -> None:
        self._config, self._worker, self._tls, self._clock = config, worker, tls, clock
        self._stub = Stub(channel, DOCTOR_SERVICE)

    def compare(self, sheet: Sheet, join: JoinRequest | None = None, address: str = "") -> bool:
        """Compare all that two parties must have alike; return whether the other party took part.

        `join` is this worker's request to join, `address` where its own doctor answers, if it is the label holder.
        """
        try:
            began = self._clock()
            reply = self._ask(join, address)
            ended = self._clock()
        except grpc.RpcError as error:
            sheet.fail("compare", f"the other side's doctor refused: {sentence(error)}")
            return False
        here = describe_party(self._config, self._clock)
        _compare_versions(sheet, here, reply.party)
        _compare_settings(sheet, here, reply.party)
        _compare_clocks(sheet, reply.party.time - (began + ended) / 2, (ended - began) / 2, self._tls)
        if reply.refusal:
            sheet.fail("join", f"the coordinator would refuse: {plain(reply.refusal)}")
        elif join is not None:
            sheet.ok(
                "join",
                f"the coordinator would let worker {self._worker} in: its samples and slice fit those that came before",
            )
        return True

    def label_holder(self, patience: float) -> str:
        """Return the label holder's address once the coordinator has it; empty if it does not in time."""
        deadline = time.monotonic() + patience
        while not (address := plain(self._ask().label_holder_address)) and time.monotonic() < deadline:
            time.sleep(_ASK_SECONDS)
        return address

    def echo(self, sheet: Sheet) -> None:
        """Send a message of the largest size there and back."""
        block = Block(worker=self._worker, data=bytes(MESSAGE_BYTES - 16))
        block.data = os.urandom(len(block.data) + MESSAGE_BYTES - block.ByteSize())
        began = time.monotonic()
        try:
            back = self._stub.Echo(block, timeout=ECHO_SECONDS)
        except grpc.RpcError as error:
            text = f"a message of {MESSAGE_BYTES} bytes does not come through: {sentence(error)}; look at proxies"
            sheet.fail("messages", text)
            return
        if back.data != block.data:
            sheet.fail("messages", f"a message of {MESSAGE_BYTES} bytes comes back changed: look at proxies")
        else:
            seconds = time.monotonic() - began
            sheet.ok("messages", f"the largest, {MESSAGE_BYTES} bytes, came there and back in {seconds:.2f} s")

    def report(self, sheet: Sheet, findings: list[Finding]) -> bool:
        """Send the other party what was found; return whether this worker has checked in there now."""
        messages = [FindingMessage(check=one.check, level=one.level, text=one.text) for one in findings]
        try:
            self._stub.Report(ReportRequest(worker=self._worker, findings=messages), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            sheet.fail("report", f"the other side's doctor did not take the report: {sentence(error)}")
            return False
        return True

    def _ask(self, join: JoinRequest | None = None, address: str = "") -> CompareReply:
        party = describe_party(self._config, self._clock)
        request = CompareRequest(worker=self._worker, party=party, join=join, address=address)
        reply: CompareReply = self._stub.Compare(request, timeout=CALL_SECONDS)
        return reply


def _compare_versions(sheet: Sheet, here: Party, there: Party) -> None:
    def differ(names: tuple[str, ...]) -> str:
        pairs = [(name, here.versions[name], there.versions[name]) for name in names]
        return plain(
            ", ".join(f"{name} {ours} here and {theirs} there" for name, ours, theirs in pairs if ours != theirs)
        )

    if needed := differ(("cafe-vfl", "protocol")):
        sheet.fail("versions", f"{needed}: install the same release on both")
    elif others := differ(("python", "torch", "grpcio")):
        sheet.warn("versions", f"{others}: results may differ in their last digits")
    else:
        sheet.ok("versions", ", ".join(f"{name} {here.versions[name]}" for name in sorted(here.versions)))


def _compare_settings(sheet: Sheet, here: Party, there: Party) -> None:
    keys = sorted({*here.settings, *there.settings})
    differ = [
        f"{key} is {here.settings.get(key, 'absent')} here and {there.settings.get(key, 'absent')} there"
        for key in keys
        if here.settings.get(key) != there.settings.get(key)
    ]
    if differ:
        sheet.fail("config", f"{plain('; '.join(differ))}: use the same file and the same --set everywhere")
    else:
        sheet.ok("config", f"{len(keys)} keys of seed, federation and model are alike")


def _compare_clocks(sheet: Sheet, skew: float, accuracy: float, tls: Identity | None) -> None:
    if not abs(skew) < _CENTURY:
        sheet.fail("clocks", "the other party sent an impossible time: is it a `cafe doctor`?")
        return
    direction = "ahead of" if skew > 0 else "behind"
    text = f"the clock there is {abs(skew):.2f} s {direction} this one, give or take {accuracy:.2f}"
    problem = None if tls is None else _problem_at(tls, skew)
    if problem:
        sheet.fail("clocks", f"{text}: set both clocks (NTP); by that one {problem}")
    elif abs(skew) > SKEW_SECONDS:
        sheet.warn("clocks", f"{text}: set both clocks (NTP)")
    else:
        sheet.ok("clocks", text)


def _problem_at(tls: Identity, skew: float) -> str | None:
    """Return what is wrong with this party's certificate by a clock that differs so much."""
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=skew)
    return file_problem(tls.certificate_file, read_certificate(tls.certificate_file), None, then)
