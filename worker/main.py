"""A worker's start: its defences, its threads, its server for the others; then the rounds."""

from concurrent import futures

import grpc
import torch
from grpc_health.v1 import health

from protos import worker_pb2, worker_pb2_grpc
from protos.coordinator_pb2 import JoinRequest, Slice
from vfl.allocator import keep_freed_memory
from vfl.config import RunConfig
from vfl.errors import UserError
from vfl.network import OPTIONS, PROTOCOL_VERSION, add_health, add_port, statuses
from vfl.slices import WorkerData
from worker.defences import Plan
from worker.exchange import ExchangeService, Rendezvous
from worker.keys import read_key
from worker.rounds import Finished, Rounds, WorkerOptions

EVERYWHERE = ("0.0.0.0", "[::]", "::")
"""Hosts to listen on, but no addresses that anybody could call."""


def work(config: RunConfig, data: WorkerData, options: WorkerOptions) -> Finished:
    """Take part in a run to its end."""
    host = options.listen.rpartition(":")[0]
    if options.worker == config.federation.label_holder and host in EVERYWHERE and options.advertise is None:
        raise UserError(
            f"--listen {options.listen}: say with --advertise HOST:PORT how the others reach the label holder"
        )
    key = "" if options.key_file is None else read_key(options.key_file, "--key-file")
    plan = defence_plan(config, options.worker, len(data.x), key)
    keep_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    rendezvous = Rendezvous()
    server, port = _start_server(config, options, rendezvous)
    try:
        request = join_request(data, options, options.advertise or f"{host}:{port}")
        return Rounds(config, data, plan, request, rendezvous, options).run()
    finally:
        server.stop(grace=1.0).wait()


def defence_plan(config: RunConfig, worker: int, samples: int, key: str = "") -> Plan:
    """Return what a worker's defences are told before the first round."""
    federation = config.federation
    rounds = federation.planned_rounds(samples)
    return Plan(
        worker, samples, federation.batch_size, rounds, federation.schedule, config.seed, federation.workers, key
    )


def _start_server(config: RunConfig, options: WorkerOptions, rendezvous: Rendezvous) -> tuple[grpc.Server, int]:
    # Every peer's exchange waits in a thread of its own for the label holder's answer.
    pool = futures.ThreadPoolExecutor(max_workers=config.federation.workers + 8)
    server = grpc.server(pool, options=OPTIONS)
    holds_labels = options.worker == config.federation.label_holder
    tls = options.tls
    service = ExchangeService(
        rendezvous, holds_labels, options.worker, config.federation.round_timeout, tls is not None
    )
    worker_pb2_grpc.add_ExchangeServicer_to_server(service, server)
    names = [worker_pb2.DESCRIPTOR.services_by_name["Exchange"].full_name]
    checks = health.HealthServicer()
    add_health(server, checks, names)
    for name, status in statuses(names):
        checks.set(name, status)
    port = add_port(server, options.listen, tls)
    server.start()
    return server, port


def join_request(data: WorkerData, options: WorkerOptions, address: str) -> JoinRequest:
    """Return what a worker says of itself when it joins."""
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
