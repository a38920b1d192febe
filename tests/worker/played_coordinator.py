"""A coordinator that is played by hand, for workers that are real."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import grpc

from protos.codec import Assembler, announce, chunks
from protos.coordinator_pb2 import End, Order, Purpose, Round, Start, TroubleReceipt, UploadReceipt, Welcome
from protos.coordinator_pb2 import Parameters as ParametersOrder
from protos.wire import COORDINATOR_SERVICE
from server.parameters import Parameters
from tests.plain_rpc import add_plain_service
from vfl.datasets.slices import boxes_of, load_data, slice_for
from vfl.observation import Setting
from worker.main import work
from worker.session import WorkerOptions


class Played:
    """Lets real workers join, and sends each what the test says."""

    def __init__(self, config, tls=None):
        self.config, self.data = config, load_data(config)
        federation, samples = config.federation, len(self.data.x)
        shares = config.topology.even_shares(samples, federation.batch_size)
        setting = Setting.of(config, boxes_of(self.data, config), self.data.classes, samples, shares=shares)
        self.parameters = Parameters(setting, config.training)
        self.refusals, self.lost_uploads, self.troubles = deque(), deque(), []
        self.lines, self.uploads = SimpleQueue(), SimpleQueue()
        self._all, self._closed = [], False
        self._pool = ThreadPoolExecutor()
        self._server = grpc.server(self._pool)
        add_plain_service(self._server, COORDINATOR_SERVICE, self)
        where = "127.0.0.1:0"
        secured = tls and self._server.add_secure_port(where, tls.server_credentials())
        self.address = f"127.0.0.1:{secured or self._server.add_insecure_port(where)}"
        self._server.start()

    def worker(self, number, patience=30.0, tls=None):
        """Start a worker in a thread; what it returns is how it ends."""
        options = WorkerOptions(number, self.address, rejoin_timeout=patience, tls=tls)
        return self._pool.submit(work, self.config, slice_for(self.data, self.config, number), options)

    def joined(self, generation=0):
        """Wait for a worker, and let it in."""
        line = self.lines.get(timeout=60)
        line.send(Order(welcome=Welcome(session=f"session {generation}", generation=generation)))
        return line

    def close(self):
        self._closed = True  # a worker that comes back meanwhile would keep its call, and the pool would wait for it
        for line in self._all:
            line.hang_up()
        self._server.stop(0)
        self._pool.shutdown()

    def Join(self, request, context):
        if self.refusals:
            context.abort(*self.refusals.popleft())
        line = Line(self, request)
        self._all.append(line)
        if self._closed:
            line.hang_up()
        self.lines.put(line)
        while (order := line.orders.get()) is not None:
            yield order

    def Upload(self, request_iterator, context):
        header = next(request_iterator).header
        if self.lost_uploads:
            context.abort(grpc.StatusCode.UNAVAILABLE, self.lost_uploads.popleft())
        assembler = Assembler(header.gradients, 1 << 20)
        for part in request_iterator:
            assembler.add(part.chunk.offset, part.chunk.data)
        self.uploads.put((header, assembler.finish()))
        return UploadReceipt(round=header.round)

    def ReportTrouble(self, request, context):
        self.troubles.append(request)
        return TroubleReceipt()


class Line:
    """The orders to one worker."""

    def __init__(self, played, request):
        self.request, self.orders = request, SimpleQueue()
        self._played, self._federation = played, played.config.federation

    def send(self, order):
        self.orders.put(order)

    def hang_up(self):
        self.orders.put(None)

    def start(self, run_id, address="", parameters=True):
        """Send a start, and the parameters."""
        self.send(
            Order(
                start=Start(
                    run_id=run_id,
                    workers=self._federation.topology.parties,
                    label_holder=self._federation.topology.label_holder,
                    label_holder_address=address,
                    classes=self._played.data.classes,
                    output_widths=self._played.parameters.output_widths,
                )
            )
        )
        if not parameters:
            return
        tensors = self._played.parameters.expected_from(self.request.worker)
        self.send(Order(parameters=ParametersOrder(version=1, bundle=announce(tensors))))
        for chunk in chunks(tensors.values()):
            self.send(Order(chunk=chunk))

    def round(self, number, version=1):
        play = Round(round=number, purpose=Purpose.PURPOSE_TRAIN, parameters_version=version, indices=range(4))
        self.send(Order(round=play))

    def end(self):
        self.send(Order(end=End(rounds=1)))
        self.hang_up()
