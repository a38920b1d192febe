"""Deadlines for callers: a call whose messages do not come, or come too slowly, is ended with a sentence."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from vfl.limits import FIRST_SECONDS, MESSAGE_SECONDS


class Pace(grpc.aio.ServerInterceptor):
    """Gives every call of a server a time for its first message, for each further one, and for all of them.

    gRPC waits without limit for the single message of a call that is no stream. So all calls are handled as streams
    here, which look the same on the wire.
    """

    def __init__(self, total: float) -> None:
        self._total = total

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Return the handler of a call with its messages paced."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        write = handler.response_serializer
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streaming(handler), None, write)
        return grpc.stream_unary_rpc_method_handler(self._single(handler), None, write)

    def _single(self, handler: Any) -> Callable[..., Any]:
        async def answer(messages: AsyncIterator[bytes], context: Any) -> Any:
            paced = self._paced(messages, context, handler.request_deserializer)
            if handler.request_streaming:
                return await handler.stream_unary(paced, context)
            return await handler.unary_unary(await _only(paced, context), context)

        return answer

    def _streaming(self, handler: Any) -> Callable[..., Any]:
        method = handler.stream_stream if handler.request_streaming else handler.unary_stream

        async def request(messages: AsyncIterator[bytes], context: Any) -> Any:
            paced = self._paced(messages, context, handler.request_deserializer)
            return paced if handler.request_streaming else await _only(paced, context)

        async def answer(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
            async with aclosing(method(await request(messages, context), context)) as answers:
                async for one in answers:
                    yield one

        async def write(messages: AsyncIterator[bytes], context: Any) -> None:
            await method(await request(messages, context), context)

        return answer if inspect.isasyncgenfunction(method) else write

    async def _paced(
        self, messages: AsyncIterator[bytes], context: Any, read: Callable[[bytes], Any]
    ) -> AsyncIterator[Any]:
        clock = asyncio.get_running_loop().time
        left, patience = self._total, FIRST_SECONDS
        source = aiter(messages)
        while True:
            try:
                began = clock()
                async with asyncio.timeout(min(patience, left)):
                    data = await anext(source)
            except StopAsyncIteration:
                return
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "what this call was to send took too long")
            try:
                message = read(data)
            except DecodeError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a message that cannot be read")
            left -= clock() - began  # only the waiting: the handler's own time is not the caller's fault
            yield message
            patience = MESSAGE_SECONDS


async def _only(messages: AsyncIterator[Any], context: Any) -> Any:
    async for message in messages:
        return message
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a call without its message")
