"""A coordinator that is resumed: workers are let in while it still reads what was recorded."""

import threading
from queue import SimpleQueue
from types import SimpleNamespace

import grpc
import pytest

from protos.wire import COORDINATOR_SERVICE
from server import main
from tests.integration.protocol_support import RawWorker
from tests.plain_rpc import PlainStub
from tests.server.test_checkpoint import config_of, write
from vfl.errors import UserError


def test_workers_join_while_the_transcript_is_read_and_wait_on_if_it_is_damaged(tmp_path, monkeypatch):
    config = config_of()
    write(tmp_path, config, 3)
    (tmp_path / "summary.json").write_text("{}")
    joined, address, ended = threading.Event(), SimpleQueue(), SimpleQueue()

    def find(*_, **__):
        assert joined.wait(60)
        raise UserError("--resume: it is damaged")

    monkeypatch.setattr(main, "find_checkpoint", find)
    options = main.ServeOptions(tmp_path, stop_signals=(), rejoin_timeout=30.0, resume=True, workers_wait=True)

    def serve():
        try:
            main.serve(config, options, address.put)
        except UserError as error:
            ended.put(str(error))

    threading.Thread(target=serve, daemon=True).start()
    with grpc.insecure_channel(address.get(timeout=60)) as channel:
        worker = RawWorker(SimpleNamespace(stub=PlainStub(channel, COORDINATOR_SERVICE)), 1)
        assert worker.generation == 3  # it had come back twice before
        joined.set()
        assert ended.get(timeout=60) == "--resume: it is damaged"
        with pytest.raises(grpc.RpcError):  # no word of an end: it waits for the next coordinator
            next(worker.orders)
    assert (tmp_path / "summary.json").read_text() == "{}"
