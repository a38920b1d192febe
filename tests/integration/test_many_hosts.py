"""64 workers, each on a host of its own over TLS, one of them at the end of a slow line: the numbers of one process."""

import ctypes
import os
from contextlib import closing
from pathlib import Path

import pytest

from server.main import ServeOptions, serve
from tests.integration.command_support import wait_for
from tests.integration.federation_support import assert_same_numbers
from tests.support import small_config
from vfl.bench.rigs.networks import PORT, Hosts, why_no_hosts
from vfl.datasets.slices import WorkerData, load_data, write_slices
from vfl.folder.transcript.files import round_name
from vfl.forkserver import context
from vfl.local.simulation import simulate
from vfl.net.certs import make_certificates
from vfl.net.tls import COORDINATOR, load_identity, worker_role
from worker.main import work
from worker.session import WorkerOptions

WORKERS, ROUNDS, PATIENCE = 64, 24, 900.0
SLOW = worker_role(5)


def on_host(space, target, *arguments):
    """Go to a host's network for good, and do something there; processes of one fork server share most memory."""
    with Path("/run/netns", space).open("rb") as there:
        assert ctypes.CDLL(None, use_errno=True).setns(there.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
    target(*arguments)


def coordinate(config, certs, out):
    options = ServeOptions(out, listen=f"0.0.0.0:{PORT}", threads=1, tls=load_identity(certs, COORDINATOR))
    serve(config, options, lambda _address: None)


def take_part(config, certs, path, options):
    own = load_identity(certs, worker_role(options["worker"]))
    work(config, WorkerData.load(path), WorkerOptions(**options, threads=1, tls=own))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(why_no_hosts() is not None, reason="no network namespaces can be made here")
def test_64_workers_on_hosts_of_their_own_with_one_slow_line_come_to_the_same_numbers(tmp_path):
    waits = dict.fromkeys(("join_timeout", "round_timeout"), PATIENCE)
    federation = {"workers": WORKERS, "batch_size": 8, "rounds": ROUNDS, "silence_timeout": 60, **waits}
    config = small_config(federation=federation, model={"name": "mlp", "hidden": [4]}, training={"lr": 0.1})
    data, certs, out = load_data(config), tmp_path / "certs", tmp_path / "out"
    simulate(config, data, tmp_path / "alone")
    slices = write_slices(config, data, tmp_path)
    out.mkdir()
    roles = [COORDINATOR, *map(worker_role, range(WORKERS))]
    with closing(Hosts([role.stem for role in roles])) as network:
        make_certificates(certs, WORKERS, {role: [network.ipv4[role.stem]] for role in roles[:2]})
        where = {role: network.command(role.stem)[-1] for role in roles}
        lines = [(where[COORDINATOR], coordinate, config, certs, out)]
        for worker, path in enumerate(slices):
            own = network.ipv4[worker_role(worker).stem]
            options = {"worker": worker, "coordinator": network.address(COORDINATOR.stem, "", 0)}
            options |= {"listen": f"0.0.0.0:{PORT}", "advertise": f"{own}:{PORT}"}
            lines.append((where[worker_role(worker)], take_part, config, certs, path, options))
        processes = [context().Process(target=on_host, args=line, daemon=True) for line in lines]
        try:
            for process in processes:
                process.start()
            wait_for(lambda: (out / "transcript" / round_name(4)).exists(), PATIENCE)
            network.slow(SLOW.stem)
            wait_for(lambda: (out / "transcript" / round_name(16)).exists(), PATIENCE)
            network.mend(SLOW.stem)
            for process in processes:
                process.join(PATIENCE)
            assert [process.exitcode for process in processes] == [0] * len(processes)
        finally:
            for process in processes:
                process.kill()
    summary = assert_same_numbers(out, tmp_path / "alone")
    assert (summary["rounds"], summary["disturbances"]) == (ROUNDS, [])
