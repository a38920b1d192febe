"""64 workers, each on a host of its own over TLS, one of them at the end of a slow line: the numbers of one process."""

from contextlib import closing

import pytest

from tests.integration.federation_support import assert_same_numbers
from tests.support import small_config
from vfl.bench.rigs.fleet import Fleet
from vfl.bench.rigs.networks import Hosts, why_no_hosts
from vfl.datasets.slices import load_data
from vfl.local.simulation import simulate
from vfl.net.certs import make_certificates
from vfl.net.tls import COORDINATOR, worker_role

WORKERS, ROUNDS, PATIENCE = 64, 24, 1800.0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(why_no_hosts() is not None, reason="no network namespaces can be made here")
def test_64_workers_on_hosts_of_their_own_with_one_slow_line_come_to_the_same_numbers(tmp_path):
    waits = dict.fromkeys(("join_timeout", "rejoin_timeout", "round_timeout"), PATIENCE)
    federation = {"workers": WORKERS, "batch_size": 8, "rounds": ROUNDS, "silence_timeout": 60, **waits}
    config = small_config(federation=federation, model={"name": "mlp", "hidden": [4]}, training={"lr": 0.1})
    simulate(config, load_data(config), tmp_path / "alone")
    parties = [COORDINATOR, *map(worker_role, range(WORKERS))]
    with closing(Hosts([role.stem for role in parties])) as network:
        named = {role: [network.ipv4[role.stem]] for role in parties[:2]}
        make_certificates(tmp_path / "certs", WORKERS, named)
        with closing(Fleet(config, network, tmp_path / "certs", tmp_path)) as fleet:
            fleet.wait_for_round(4, PATIENCE)
            network.slow(worker_role(5).stem)
            fleet.wait_for_round(16, PATIENCE)
            network.mend(worker_role(5).stem)
            fleet.finish(PATIENCE)
    summary = assert_same_numbers(tmp_path / "out", tmp_path / "alone")
    assert summary["rounds"] == ROUNDS
    assert summary["disturbances"] == []
