"""Workers that are played, for a coordinator whose service is called in this process."""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from protos.codec import Assembler
from protos.coordinator_pb2 import Slice
from protos.wire import ORDER, ChunkView
from tests.integration.protocol_support import join_request
from tests.support import flat
from vfl.seeds import generator


class TurnedDownError(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code


class Call:
    """What the service asks of gRPC."""

    async def abort(self, code, details):
        raise TurnedDownError(code)


class Here(ThreadPoolExecutor):
    """Threads' work is done at once, so that the same steps always have the same outcome."""

    def submit(self, do, /, *arguments, **options):
        done = Future()
        done.set_result(do(*arguments, **options))
        return done


def request_of(worker, previous_session):
    part = Slice(sample_shape=[9], start=[3 * worker], stop=[3 * worker + 3])
    return join_request(worker, slice=part, previous_session=previous_session)


def update(worker, number, parameters):
    """What a worker uploads for a round: its own, and another one when the parameters are others."""
    return {
        name: torch.rand(tensor.shape, generator=generator(0, f"{worker} {name}", number)) + 0.5 * tensor
        for name, tensor in parameters.items()
    }


class Player:
    """A worker's process: it reads its orders as they come, and waits to be told to upload."""

    def __init__(self, worker, orders):
        self.worker, self._orders = worker, orders
        self.session = self.run_id = ""
        self.parameters, self.ordered, self.uploaded = {}, [], []
        self.refused = False
        self.last = None
        self.listening = asyncio.ensure_future(self._listen())

    async def _listen(self):
        assembler = None
        try:
            async for order in self._orders:
                order = ORDER.read(ORDER.write(order))
                if isinstance(order, ChunkView):
                    assembler.add(order.offset, order.data)
                    if assembler.complete:
                        self.parameters = assembler.finish()
                    continue
                self.last = order.WhichOneof("order")
                if self.last in ("parameters", "round") and not self.run_id:
                    return  # as a worker's process does: it leaves when it is ordered something before its start
                match self.last:
                    case "welcome":
                        self.session = order.welcome.session
                    case "start":
                        self.run_id, self.ordered, self.uploaded = order.start.run_id, [], []
                    case "parameters":
                        assembler = Assembler(order.parameters.bundle, 1 << 20)
                    case "round":
                        self.ordered.append(order.round.round)
        finally:
            await self._orders.aclose()


def assert_equal(found, expected):
    left, right = flat(found), flat(expected)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
