"""A real coordinator, and workers that are played by hand, message by message."""

import re
import subprocess
import sys

import grpc
import pytest
import torch

from protos.codec import Assembler, announce, chunks
from protos.coordinator_pb2 import JoinRequest, Slice, UploadHeader, UploadPart
from protos.wire import COORDINATOR_SERVICE
from tests.plain_rpc import PlainStub
from vfl.net.network import PROTOCOL_VERSION

CONFIG = """
data: {{name: digits}}
federation: {{workers: 2, batch_size: 4, rounds: 3, join_timeout: 30, round_timeout: 30, rejoin_timeout: {rejoin}}}
model: {{name: mlp, hidden: [{hidden}], output: 2}}
"""

PATIENT = ("--set", "federation.join_timeout=280", "--set", "federation.round_timeout=280")
"""For a coordinator that many tests share."""


class RawCoordinator:
    """A real `cafe serve` process and a raw client."""

    def __init__(self, folder, hidden=3, arguments=(), rejoin=0):
        config = folder / "run.yaml"
        config.write_text(CONFIG.format(hidden=hidden, rejoin=rejoin))
        command = [
            sys.executable,
            "-m",
            "vfl.cli",
            "serve",
            str(config),
            "--listen",
            "127.0.0.1:0",
            "--out",
            str(folder / "out"),
            *map(str, arguments),
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.out = folder / "out"
        line = self.process.stderr.readline()
        address = re.search(r"listening on (\S+),", line)
        assert address, line + self.process.stderr.read()
        self.address = address.group(1)
        self.channel = grpc.insecure_channel(self.address)
        self.stub = PlainStub(self.channel, COORDINATOR_SERVICE)

    def end(self) -> tuple[int, str]:
        """Wait for the process; return its exit code and last words."""
        words = self.process.stderr.read()
        return self.process.wait(30), words

    def close(self):
        self.channel.close()
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(30)
        self.process.stderr.close()


def join_request(worker, /, **changes):
    half = Slice(sample_shape=[8], start=[4 * worker], stop=[4 * worker + 4])
    values = {
        "protocol_version": PROTOCOL_VERSION,
        "worker": worker,
        "slice": half,
        "samples": 12,
        "ids_digest": b"same",
        "classes": 3 if worker == 0 else 0,
        "peer_address": "127.0.0.1:1",
    }
    return JoinRequest(**{**values, **changes})


class RawWorker:
    """A worker played by hand."""

    def __init__(self, coordinator, worker, **changes):
        self.stub, self.worker = coordinator.stub, worker
        self.orders = coordinator.stub.Join(join_request(worker, **changes), timeout=280)
        welcome = next(self.orders).welcome
        self.session, self.generation = welcome.session, welcome.generation
        self.run_id = ""
        self.parameters: dict[str, torch.Tensor] = {}

    def next_round(self):
        """Read orders up to the next round."""
        for order in self.orders:
            kind = order.WhichOneof("order")
            if kind == "parameters":
                assembler = Assembler(order.parameters.bundle, 1 << 30)
                while not assembler.complete:
                    chunk = next(self.orders).chunk
                    assembler.add(chunk.offset, chunk.data)
                self.parameters = assembler.finish()
            elif kind == "start":
                self.run_id = order.start.run_id
            elif kind == "round":
                return order.round
            elif kind in ("end", "abort"):
                return order
        raise AssertionError("the orders ended without an end")

    def header(self, number, gradients):
        header = UploadHeader(
            session=self.session,
            run_id=self.run_id,
            worker=self.worker,
            round=number,
            gradients=announce(gradients),
        )
        if self.worker == 0:
            header.loss = 1.5
        return header

    def upload(self, number, gradients=None, **changes):
        gradients = (
            {name: torch.zeros_like(p) for name, p in self.parameters.items()} if gradients is None else gradients
        )
        header = self.header(number, gradients)
        for key, value in changes.items():
            setattr(header, key, value)
        parts = [UploadPart(header=header), *(UploadPart(chunk=chunk) for chunk in chunks(gradients.values()))]
        return self.stub.Upload(iter(parts), timeout=30)


def refused(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def finish(coordinator, workers, first=1):
    """Play the remaining rounds properly: whatever was refused before, the run goes on and ends well."""
    for number in range(first, 4):
        for worker in workers:
            worker.upload(number)
        orders = [worker.next_round() for worker in workers]
    assert [order.end.rounds for order in orders] == [3, 3]
    for worker in workers:
        assert list(worker.orders) == []
    code, words = coordinator.end()
    assert code == 0, words
