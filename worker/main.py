"""A worker's start: its defences, its threads, its server for the other workers; then the session."""

from dataclasses import replace

import torch

from protos.coordinator_pb2 import JoinRequest, Slice
from vfl.config import RunConfig
from vfl.datasets.slices import WorkerData
from vfl.device import keep_freed_memory
from vfl.errors import UserError
from vfl.net.network import PROTOCOL_VERSION
from worker.defences import Plan
from worker.exchange import WorkerServer
from worker.keys import FixedSecret, Secret, read_key
from worker.rendezvous import Rendezvous
from worker.session import Finished, Session, WorkerOptions
from worker.tap import Onlooker

EVERYWHERE = ("0.0.0.0", "[::]", "::")  # recognised here, never a default  # nosec B104
"""Hosts to listen on that are no addresses to call."""


def work(config: RunConfig, data: WorkerData, options: WorkerOptions, onlooker: Onlooker | None = None) -> Finished:
    """Take part in a run to its end; a worker that the config calls curious shows its rounds to the `onlooker`."""
    host = options.listen.rpartition(":")[0]
    if config.topology.serves_peers(options.worker) and host in EVERYWHERE and options.advertise is None:
        raise UserError(f"--listen {options.listen}: say with --advertise HOST:PORT how the other workers reach it")
    common = None if options.common is None else Secret(options.common)
    given = None if options.key_file is None else read_key(options.key_file, "--key-file")
    secret = Secret(given, kept=None if given or options.state is None else options.state / "secret")
    plan = defence_plan(config, options.worker, len(data.x), most=data.most, secret=secret, common=common)
    plan = replace(plan, count=None if options.state is None else options.state / "count")
    keep_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    rendezvous = Rendezvous(max(len(data.x), 0 if data.x_test is None else len(data.x_test)))
    server = WorkerServer(config, options.worker, rendezvous, listen=options.listen, tls=options.tls)
    try:
        request = join_request(data, options, options.advertise or f"{host}:{server.port}")
        session = Session(config, data, plan, rendezvous=rendezvous, options=options, onlooker=onlooker)
        finished = session.run(request)
    finally:
        server.stop()
    if finished.rounds >= plan.rounds:  # else the coordinator was stopped, and may be resumed
        plan.secret.forget()
        if plan.count is not None:
            plan.count.unlink(missing_ok=True)
    return finished


def defence_plan(
    config: RunConfig, worker: int, held: int, *, most: int, secret: Secret | None = None, common: Secret | None = None
) -> Plan:
    """Return what a worker's defences know before the first round; the worker with most samples has `most`, if more."""
    federation = config.federation
    if federation.fixed_secrets:
        secret, common = (FixedSecret(config.seed, owner) for owner in (f"worker {worker}", "all workers"))
    return Plan(
        worker=worker,
        samples=held,
        batch_size=federation.batch_size,
        rounds=federation.planned_rounds(max(held, most)),
        schedule=federation.schedule,
        workers=1 if config.topology.is_horizontal else federation.workers,
        secret=secret or Secret(),
        common=common,
    )


def join_request(data: WorkerData, options: WorkerOptions, address: str) -> JoinRequest:
    """Return how a worker describes itself when it joins."""
    box = data.box
    return JoinRequest(
        protocol_version=PROTOCOL_VERSION,
        worker=options.worker,
        slice=Slice(sample_shape=box.sample_shape, start=box.start, stop=box.stop),
        samples=len(data.x),
        test_samples=0 if data.x_test is None else len(data.x_test),
        ids_digest=data.ids_digest,
        classes=data.classes,
        peer_address=address,
    )
