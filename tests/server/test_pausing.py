"""A coordinator that pauses between rounds: the workers stay, no timeout runs, and it goes on where it was."""

import asyncio
from types import SimpleNamespace

import grpc

from protos import coordinator_pb2_grpc
from protos.wire import COORDINATOR_SERVICE, add_service
from server.checkpoint import Checkpoints
from server.coordinator import Coordinator
from server.service import CoordinatorService
from tests.integration.protocol_support import RawWorker
from tests.support import small_config
from vfl.folder.journal import Journal, Tail


async def paused_for_longer_than_a_round_may_take(out) -> tuple[Coordinator, list[int]]:
    """Two workers played by hand; the coordinator pauses in the first round. Returns the rounds that they were sent."""
    federation = {"workers": 2, "batch_size": 4, "rounds": 4, "round_timeout": 2}
    config = small_config(federation=federation, transcript=False, training={"lr": 0.1})
    coordinator = Coordinator(config, Journal(out), Checkpoints(out, config))
    server = grpc.aio.server()
    add_service(server, COORDINATOR_SERVICE, CoordinatorService(coordinator))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    there = SimpleNamespace(stub=coordinator_pb2_grpc.CoordinatorStub(channel))
    workers = [await asyncio.to_thread(RawWorker, there, number) for number in range(2)]
    rounds = asyncio.create_task(coordinator.conduct(await coordinator.gather(), lambda _: None))
    sent = [(await asyncio.to_thread(worker.next_round)).round for worker in workers]
    coordinator.pause()
    assert coordinator.paused
    for worker in workers:
        await asyncio.to_thread(worker.upload, 1)
    next_rounds = [asyncio.create_task(asyncio.to_thread(worker.next_round)) for worker in workers]
    await asyncio.sleep(2 * federation["round_timeout"])
    assert not any(one.done() for one in (rounds, *next_rounds))
    assert coordinator.record.rounds == 1
    coordinator.resume()
    assert not coordinator.paused
    sent += [(await one).round for one in next_rounds]
    for number in (2, 3, 4):
        for worker in workers:
            await asyncio.to_thread(worker.upload, number)
        if number < 4:
            sent += [(await asyncio.to_thread(worker.next_round)).round for worker in workers]
    await rounds
    await coordinator.end(None)
    await server.stop(0)
    channel.close()
    return coordinator, sent


def test_between_rounds_a_paused_coordinator_waits_for_as_long_as_it_takes(tmp_path):
    journal = Tail(tmp_path, from_start=True)
    coordinator, sent = asyncio.run(paused_for_longer_than_a_round_may_take(tmp_path))
    assert sent == [1, 1, 2, 2, 3, 3, 4, 4]
    assert coordinator.record.rounds == 4
    states = [line["state"] for line in journal.read() if line["kind"] == "state"]
    journal.close()
    assert states == ["waiting", "running", "paused", "running"]
