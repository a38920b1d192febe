"""The coordinator's gRPC server: its service turns messages into calls of the run, and refusals into gRPC statuses."""

from collections import Counter
from collections.abc import AsyncIterator
from math import isfinite
from typing import Any, Protocol

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from protos.codec import Assembler, CodecError
from protos.coordinator_pb2 import (
    Evaluation,
    EvaluationReceipt,
    JoinRequest,
    Order,
    Trouble,
    TroubleReceipt,
    UploadPart,
    UploadReceipt,
)
from protos.wire import ALIGNMENT_SERVICE, COORDINATOR_SERVICE, ChunkView
from server.alignment import AlignmentService
from server.inbox import Inbox, Upload
from server.membership import Member, Membership, RefusedError
from vfl.config import RunConfig
from vfl.limits import plain
from vfl.net.pace import Pace
from vfl.net.services import server_options, start_server
from vfl.net.tls import Identity, ImpostorError, check_caller

NO_FAULT = (grpc.StatusCode.ABORTED, grpc.StatusCode.DATA_LOSS)
"""Refused uploads after which a worker that leaves is waited for: of a round begun anew, and those cut short, as that
of a worker which is killed is. One that is alive and sends too little hears of it, and says itself that it leaves."""


class Run(Protocol):
    """What the service needs of the run that it serves."""

    membership: Membership
    inboxes: dict[int, Inbox]
    run_id: str
    bytes_up: Counter[int]
    bytes_down: Counter[int]
    """By worker."""

    def evaluated(self, member: Member, evaluation: Evaluation) -> None:
        """Take what the label holder counted."""

    def exchanged(self, member: Member, peer_bytes: int) -> None:
        """Hear how many bytes went between workers."""

    def troubled(self, member: Member, trouble: Trouble) -> None:
        """Hear that a worker cannot go on."""


async def serve_workers(config: RunConfig, run: Run, listen: str, tls: Identity | None) -> tuple[grpc.aio.Server, str]:
    """Let workers call; return the server and its address."""
    federation, proved = config.federation, tls is not None
    server = grpc.aio.server(
        options=server_options(config.topology.parties, federation.silence_timeout),
        interceptors=[Pace(federation.round_timeout)],
    )
    services: dict[ServiceDescriptor, object] = {COORDINATOR_SERVICE: CoordinatorService(run, proved)}
    if config.aligns:
        patience = federation.join_timeout
        services[ALIGNMENT_SERVICE] = AlignmentService(federation.workers, proved, patience, lambda: bool(run.run_id))
    port = await start_server(server, services, listen, tls)
    return server, f"{listen.rpartition(':')[0]}:{port}"


class CoordinatorService:
    """The service that workers call; over TLS, with certificates that say which worker it is."""

    def __init__(self, run: Run, tls: bool = False) -> None:
        self._run, self._tls = run, tls

    async def Join(self, request: JoinRequest, context: Any) -> AsyncIterator[Order | bytes]:
        """Let a worker in and send it its orders until the end."""
        try:
            self._check_caller(context, request.worker)
            member = self._run.membership.admit(request, proved=self._tls)
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        try:
            while (orders := await member.lines.get()) is not None:
                for order in orders:
                    self._run.bytes_down[member.worker] += len(order) if isinstance(order, bytes) else order.ByteSize()
                    yield order
        finally:
            self._run.membership.remove(member)

    async def Upload(self, request_iterator: AsyncIterator[UploadPart | ChunkView], context: Any) -> UploadReceipt:
        """Take one round's gradients of one worker."""
        member: Member | None = None
        try:
            first = await anext(aiter(request_iterator), None)
            if not isinstance(first, UploadPart) or first.WhichOneof("part") != "header":
                raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "an upload begins with a header")
            member = self._member(first.header.session, context)
            async with member.uploading:
                return await self._receive(member, first, request_iterator)
        except RefusedError as refused:
            if member is not None and refused.code not in NO_FAULT:
                member.refusal = refused.reason
            await context.abort(refused.code, refused.reason)
            raise AssertionError("abort raises") from None

    async def ReportEvaluation(self, request: Evaluation, context: Any) -> EvaluationReceipt:
        """Take what the label holder counted on test samples."""
        try:
            member = self._member(request.session, context)
            if not isfinite(request.loss_sum):
                raise RefusedError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"worker {member.worker} reported a test loss of {request.loss_sum}: did training diverge?",
                )
            self._run.evaluated(member, request)
            self._run.bytes_up[member.worker] += request.ByteSize()
            self._run.exchanged(member, request.peer_bytes)
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        return EvaluationReceipt(round=request.round)

    async def ReportTrouble(self, request: Trouble, context: Any) -> TroubleReceipt:
        """Hear that a worker cannot go on with a round, or with the run."""
        try:
            member = self._member(request.session, context)
            request.reason = plain(request.reason)
            self._run.troubled(member, request)
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        return TroubleReceipt()

    def _member(self, session: str, context: Any) -> Member:
        member = self._run.membership.of_session(session)
        self._check_caller(context, member.worker)
        return member

    def _check_caller(self, context: Any, worker: int) -> None:
        if not self._tls:
            return
        try:
            check_caller(context, worker)
        except ImpostorError as error:
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, str(error)) from None

    async def _receive(
        self, member: Member, first: UploadPart, parts: AsyncIterator[UploadPart | ChunkView]
    ) -> UploadReceipt:
        header = first.header
        if header.worker != member.worker:
            raise RefusedError(
                grpc.StatusCode.PERMISSION_DENIED, f"worker {member.worker} cannot upload for worker {header.worker}"
            )
        if header.run_id != self._run.run_id:
            raise RefusedError(grpc.StatusCode.ABORTED, f"round {header.round} was begun anew")
        inbox = self._run.inboxes.get(header.round)
        if inbox is None:
            now = min(self._run.inboxes, default=None)
            on = "no round is on" if now is None else f"the current round is {now}"
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION, f"worker {member.worker} uploaded for round {header.round}, {on}"
            )
        limit = inbox.check_header(header)
        received, cut_short = first.ByteSize(), False
        try:
            assembler = Assembler(header.gradients, limit)
            async for part in parts:
                if not isinstance(part, ChunkView):
                    raise CodecError("only chunks follow the header")
                assembler.add(part.offset, part.data)
                received += part.size
            cut_short = not assembler.complete
            gradients = assembler.finish()
        except CodecError as error:
            raise RefusedError(
                grpc.StatusCode.DATA_LOSS if cut_short else grpc.StatusCode.INVALID_ARGUMENT,
                f"the upload of worker {member.worker} for round {header.round} is broken: {error}",
            ) from None
        loss = header.loss if header.HasField("loss") else None
        withheld = plain(header.withheld) if header.HasField("withheld") else None
        inbox.put(Upload(member.worker, gradients, loss, withheld))
        member.refusal = None
        self._run.bytes_up[member.worker] += received
        self._run.exchanged(member, header.peer_bytes)
        return UploadReceipt(round=header.round)
