"""Two parties compared over the wire: versions, config, clocks, the largest message, how a join would end."""

import datetime
import os
import time

import grpc

from protos.coordinator_pb2 import JoinRequest
from protos.doctor_pb2 import Block, CompareReply, CompareRequest, Party, ReportRequest
from protos.doctor_pb2 import Finding as FindingMessage
from protos.wire import DOCTOR_SERVICE, Stub
from vfl.config import RunConfig
from vfl.doctor.findings import Finding, Sheet
from vfl.doctor.party import Clock, describe_party
from vfl.limits import CALL_SECONDS, ECHO_SECONDS, MESSAGE_BYTES, plain
from vfl.net.network import sentence
from vfl.net.tls import Identity, file_problem, read_certificate

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
