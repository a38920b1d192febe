"""A coordinator that pauses between rounds: the workers stay, no timeout runs, and it goes on where it was."""

import asyncio
from types import SimpleNamespace

import grpc

from protos.wire import COORDINATOR_SERVICE, add_service
from server.checkpoint import Checkpoints
from server.service import CoordinatorService
from server.session import Session
from server.trainer import Trainer
from tests.integration.protocol_support import RawWorker
from tests.plain_rpc import PlainStub
from tests.support import small_config
from vfl.folder.journal import Journal, Tail


async def paused_for_longer_than_a_round_may_take(out) -> tuple[Session, list[int]]:
    """Two workers played by hand; the coordinator pauses in the first round. Returns the rounds that they were sent."""
    federation = {"workers": 2, "batch_size": 4, "rounds": 4, "round_timeout": 2}
    config = small_config(federation=federation, transcript=False, training={"lr": 0.1})
    journal = Journal(out)
    session = Session(config, journal)
    server = grpc.aio.server()
    add_service(server, COORDINATOR_SERVICE, CoordinatorService(session))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    there = SimpleNamespace(stub=PlainStub(channel, COORDINATOR_SERVICE))
    workers = [await asyncio.to_thread(RawWorker, there, number) for number in range(2)]
    trainer = Trainer(config, await session.gather(), session, Checkpoints(out, config), journal=journal)
    rounds = asyncio.create_task(trainer.train(lambda _: None))
    sent = [(await asyncio.to_thread(worker.next_round)).round for worker in workers]
    session.pause.begin()
    assert session.pause.on
    for worker in workers:
        await asyncio.to_thread(worker.upload, 1)
    next_rounds = [asyncio.create_task(asyncio.to_thread(worker.next_round)) for worker in workers]
    await asyncio.sleep(2 * federation["round_timeout"])
    assert not any(one.done() for one in (rounds, *next_rounds))
    assert session.record.rounds == 1
    session.pause.end()
    assert not session.pause.on
    sent += [(await one).round for one in next_rounds]
    for number in (2, 3, 4):
        for worker in workers:
            await asyncio.to_thread(worker.upload, number)
        if number < 4:
            sent += [(await asyncio.to_thread(worker.next_round)).round for worker in workers]
    await rounds
    await session.end(None)
    await server.stop(0)
    channel.close()
    return session, sent


def test_between_rounds_a_paused_coordinator_waits_for_as_long_as_it_takes(tmp_path):
    journal = Tail(tmp_path, from_start=True)
    session, sent = asyncio.run(paused_for_longer_than_a_round_may_take(tmp_path))
    assert sent == [1, 1, 2, 2, 3, 3, 4, 4]
    assert session.record.rounds == 4
    states = [line["state"] for line in journal.read() if line["kind"] == "state"]
    journal.close()
    assert states == ["waiting", "running", "paused", "running"]
