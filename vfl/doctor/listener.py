"""The party that is called: it answers the workers' `cafe doctor` until all of them have checked in."""

import threading
from collections.abc import Sequence
from concurrent import futures
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health

from protos.coordinator_pb2 import JoinRequest
from protos.doctor_pb2 import Block, CompareReply, CompareRequest, ReportReceipt, ReportRequest
from protos.wire import DOCTOR_SERVICE, add_service
from server.membership import Member, Membership
from server.refusal import RefusedError
from vfl.config import RunConfig
from vfl.doctor.findings import Finding, Level
from vfl.doctor.party import Clock, describe_party
from vfl.limits import FINDINGS, NAME_CHARACTERS, plain
from vfl.maths.loss import loss_of
from vfl.net.network import OPTIONS
from vfl.net.services import add_health, add_port, statuses
from vfl.net.tls import Identity, ImpostorError, Role, check_caller


class Listener:
    """The service, where `cafe serve` or the label holder's `cafe work` will listen."""

    def __init__(self, config: RunConfig, role: Role, tls: Identity | None, clock: Clock) -> None:
        self._config, self._tls, self._clock = config, tls, clock
        federation = config.federation
        self._expected = [worker for worker in range(federation.workers) if worker != role.worker]
        self._membership = Membership(config.topology, lambda _: None, loss=loss_of(config.training))
        self._members: dict[int, Member] = {}
        self._label_holder_address = ""
        self._changed = threading.Condition()
        self.reports: dict[int, list[Finding]] = {}
        # A thread for each worker's call, so that one worker's largest message does not hold up the others.
        pool = futures.ThreadPoolExecutor(max_workers=federation.workers + 8)
        self._server = grpc.server(pool, options=OPTIONS)
        add_service(self._server, DOCTOR_SERVICE, self)
        checks = health.HealthServicer()
        add_health(self._server, checks, [DOCTOR_SERVICE.full_name])
        for name, status in statuses([DOCTOR_SERVICE.full_name]):
            checks.set(name, status)

    def listen(self, listen: str) -> str:
        """Answer at an address, HOST:PORT, or end with a sentence; return it with the port that it got."""
        port = add_port(self._server, listen, self._tls)
        self._server.start()
        return f"{listen.rpartition(':')[0]}:{port}"

    def stop(self) -> None:
        """Let the address go."""
        self._server.stop(grace=1.0).wait()

    @property
    def missing(self) -> list[int]:
        """Return the workers that have not checked in."""
        return [worker for worker in self._expected if worker not in self.reports]

    @property
    def members(self) -> Sequence[Member]:
        """Return the workers that a coordinator would have let in."""
        return [self._members[worker] for worker in sorted(self._members)]

    def wait(self, seconds: float) -> None:
        """Wait until all have checked in, but not for longer than that."""
        with self._changed:
            self._changed.wait_for(lambda: not self.missing, seconds)

    def Compare(self, request: CompareRequest, context: Any) -> CompareReply:
        """Answer with this party's facts, and whether a join would be refused."""
        self._check(request.worker, context)
        if request.HasField("join") and request.join.worker != request.worker:
            _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"worker {request.worker} cannot join as another")
        reply = CompareReply(party=describe_party(self._config, self._clock))
        with self._changed:
            if request.HasField("join"):
                reply.refusal = self._admit(request.join)
            if self._config.topology.serves_peers(request.worker):
                self._label_holder_address = plain(request.address)[:NAME_CHARACTERS]
            reply.label_holder_address = self._label_holder_address
        return reply

    def Echo(self, request: Block, context: Any) -> Block:
        """Send a block back."""
        self._check(request.worker, context)
        return request

    def Report(self, request: ReportRequest, context: Any) -> ReportReceipt:
        """Take a worker's findings."""
        self._check(request.worker, context)
        if len(request.findings) > FINDINGS:
            _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"a report has at most {FINDINGS} findings")
        try:
            findings = [Finding(plain(one.check), Level(one.level), plain(one.text)) for one in request.findings]
        except ValueError as error:
            _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, plain(str(error)))
        with self._changed:
            self.reports[request.worker] = findings
            self._changed.notify_all()
        return ReportReceipt()

    def _admit(self, request: JoinRequest) -> str:
        """Treat a worker as a join would, again if it comes again; return why it would be refused."""
        before = self._members.pop(request.worker, None)
        if before is not None:
            self._membership.remove(before)
        try:
            self._members[request.worker] = self._membership.admit(request)
        except RefusedError as refused:
            return refused.reason
        return ""

    def _check(self, worker: int, context: Any) -> None:
        if worker not in self._expected:
            workers = ", ".join(map(str, self._expected))
            _refuse(
                context, grpc.StatusCode.INVALID_ARGUMENT, f"worker {worker} is not one of those expected: {workers}"
            )
        if self._tls is not None:
            try:
                check_caller(context, worker)
            except ImpostorError as error:
                _refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))


def _refuse(context: Any, code: grpc.StatusCode, reason: str) -> NoReturn:
    context.abort(code, reason)
    raise AssertionError("abort raises")
