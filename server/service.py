"""The coordinator's gRPC server: its service turns messages into calls of the session, refusals into statuses."""

from collections.abc import AsyncIterator
from math import isfinite
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from protos import coordinator_pb2 as messages
from protos.codec import Assembler, CodecError
from protos.wire import ALIGNMENT_SERVICE, COORDINATOR_SERVICE, ChunkView
from server.alignment import AlignmentService
from server.inbox import Upload
from server.membership import Member
from server.refusal import RefusedError, check_certificate, invalid
from server.session import Session
from vfl.config import RunConfig
from vfl.limits import plain
from vfl.net.pace import Pace
from vfl.net.services import server_options, start_server
from vfl.net.tls import Identity

NO_FAULT = (grpc.StatusCode.ABORTED, grpc.StatusCode.DATA_LOSS)
"""Refused uploads after which a worker that leaves is waited for: of a round begun anew, and those cut short, as that
of a worker which is killed is. One that is alive and sends too little hears of it, and says itself that it leaves."""


async def serve_workers(
    config: RunConfig, session: Session, listen: str, tls: Identity | None
) -> tuple[grpc.aio.Server, str]:
    """Let workers call; return the server and its address."""
    federation, proved = config.federation, tls is not None
    server = grpc.aio.server(
        options=server_options(config.topology.parties, federation.silence_timeout),
        interceptors=[Pace(federation.round_timeout)],
    )
    services: dict[ServiceDescriptor, object] = {COORDINATOR_SERVICE: CoordinatorService(session, proved)}
    if config.aligns:
        services[ALIGNMENT_SERVICE] = AlignmentService(
            federation.workers, proved, federation.join_timeout, lambda: bool(session.answers.run_id)
        )
    port = await start_server(server, services, listen, tls)
    return server, f"{listen.rpartition(':')[0]}:{port}"


class CoordinatorService:
    """The service that workers call; over TLS, with certificates that say which worker it is."""

    def __init__(self, session: Session, tls: bool = False) -> None:
        self._session, self._tls = session, tls

    async def Join(self, request: messages.JoinRequest, context: Any) -> AsyncIterator[messages.Order | bytes]:
        """Let a worker in and send it its orders until the end."""
        try:
            self._check_caller(context, request.worker)
            member = self._session.membership.admit(request, proved=self._tls)
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        try:
            while (orders := await member.lines.get()) is not None:
                for order in orders:
                    size = len(order) if isinstance(order, bytes) else order.ByteSize()
                    self._session.traffic.down[member.worker] += size
                    yield order
        finally:
            self._session.membership.remove(member)

    async def Upload(
        self, request_iterator: AsyncIterator[messages.UploadPart | ChunkView], context: Any
    ) -> messages.UploadReceipt:
        """Take one round's gradients of one worker."""
        member: Member | None = None
        try:
            first = await anext(aiter(request_iterator), None)
            if not isinstance(first, messages.UploadPart) or first.WhichOneof("part") != "header":
                raise invalid("an upload begins with a header")
            member = self._member(first.header.session, context)
            async with member.uploading:
                return await self._receive(member, first, request_iterator)
        except RefusedError as refused:
            if member is not None and refused.code not in NO_FAULT:
                member.refusal = refused.reason
            await context.abort(refused.code, refused.reason)
            raise AssertionError("abort raises") from None

    async def ReportEvaluation(self, request: messages.Evaluation, context: Any) -> messages.EvaluationReceipt:
        """Take what the label holder counted on test samples."""
        try:
            member = self._member(request.session, context)
            if not isfinite(request.loss_sum):
                raise invalid(
                    f"worker {member.worker} reported a test loss of {request.loss_sum}: did training diverge?"
                )
            self._session.answers.evaluated(member, request)
            self._session.traffic.up[member.worker] += request.ByteSize()
            self._session.traffic.exchanged(member.worker, request.peer_bytes)
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        return messages.EvaluationReceipt(round=request.round)

    async def ReportTrouble(self, request: messages.Trouble, context: Any) -> messages.TroubleReceipt:
        """Hear that a worker cannot go on with a round, or with the run."""
        try:
            member = self._member(request.session, context)
            request.reason = plain(request.reason)
            self._session.troubled(member, request)
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        return messages.TroubleReceipt()

    def _member(self, session: str, context: Any) -> Member:
        member = self._session.membership.of_session(session)
        self._check_caller(context, member.worker)
        return member

    def _check_caller(self, context: Any, worker: int) -> None:
        if self._tls:
            check_certificate(context, worker)

    async def _receive(
        self, member: Member, first: messages.UploadPart, parts: AsyncIterator[messages.UploadPart | ChunkView]
    ) -> messages.UploadReceipt:
        header = first.header
        inbox = self._session.answers.inbox_of(member, header)
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
        self._session.traffic.up[member.worker] += received
        self._session.traffic.exchanged(member.worker, header.peer_bytes)
        return messages.UploadReceipt(round=header.round)
