"""`cafe bench faults --short`: one fault of each kind, and the numbers of an undisturbed run; cables that are cut."""

import json
import math
import socket
from contextlib import closing
from itertools import islice

import pytest

from vfl.bench.faults import ALL, ONE_OF_EACH, SURE, FaultKind, Victim, bench_faults, check_alike, schedule
from vfl.bench.long_faults import RESTARTS, SURVIVOR, bench_long, faults
from vfl.bench.rigs.networks import Cable, why_no_hosts
from vfl.errors import RunFailedError


def test_the_schedule_is_always_the_same_and_strikes_every_role_in_every_way():
    faults = schedule(2 * ALL)
    assert faults == schedule(2 * ALL)
    struck = [(fault.kind, fault.victim) for fault in faults]
    assert all(struck.count(pair) == 2 for pair in ALL)
    assert {kind for kind, _ in ALL} == set(FaultKind)
    assert {victim for _, victim in ALL} == set(Victim)


def test_a_lost_update_or_other_parameters_end_the_command_with_a_sentence():
    check_alike({"updates": 9, "updates_lost": 0, "difference": 0.0})
    for lost, difference, words in (
        (1, 0.0, "1 of 9 updates lost"),
        (0, 1e-9, "differ by 1e-09"),
        (0, math.nan, "nan"),
    ):
        with pytest.raises(RunFailedError, match=words) as caught:
            check_alike({"updates": 9, "updates_lost": lost, "difference": difference})
        assert caught.value.exit_code == 1


def test_after_one_fault_of_each_kind_nothing_is_lost_and_nothing_differs(tmp_path):
    bench_faults(tmp_path / "faults.json", short=True)
    result = json.loads((tmp_path / "faults.json").read_text())
    assert {fault["kind"] for fault in result["faults"]} == set(FaultKind)
    assert {fault["victim"] for fault in result["faults"]} == set(Victim)
    assert len(result["faults"]) == len(ONE_OF_EACH)
    assert result["rounds"] == 120
    for fault in result["faults"]:
        if fault["kind"] in (FaultKind.STOP, FaultKind.CUT):  # nobody but the coordinator knew that it had gone
            left, first = f"worker {fault['party'].removeprefix('worker-')} left", fault["round"] + 1
            noticed = [one for one in result["disturbances"] if first <= one["round"] <= first + SURE]
            assert any(reason.startswith(left) for one in noticed for reason in one["reasons"]), result["disturbances"]
    assert result["redone"] >= 2
    assert (result["updates_lost"], result["difference"]) == (0, 0.0)


@pytest.fixture
def cable():
    with socket.create_server(("127.0.0.1", 0)) as server, closing(Cable(server.getsockname()[1])) as cable:
        host, _, port = cable.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as near, server.accept()[0] as far:
            yield cable, near, far


def test_a_cut_cable_lets_nothing_through_and_loses_nothing(cable):
    line, near, far = cable
    near.sendall(b"before ")
    assert far.recv(7, socket.MSG_WAITALL) == b"before "
    line.whole.clear()
    near.sendall(b"after")
    far.settimeout(0.3)
    with pytest.raises(TimeoutError):
        far.recv(1)
    line.whole.set()
    far.settimeout(10)
    assert far.recv(5, socket.MSG_WAITALL) == b"after"


def test_a_slow_cable_passes_on_what_it_is_given(cable):
    line, near, far = cable
    line.bytes_per_second = 100_000
    sent = bytes(range(256)) * 100
    near.sendall(sent)
    assert far.recv(len(sent), socket.MSG_WAITALL) == sent


def test_the_long_schedule_strikes_every_role_in_every_way_and_one_process_lives_through_all_of_it():
    drawn = list(islice(faults(), 3 * len(ALL)))
    assert drawn == list(islice(faults(), 3 * len(ALL)))
    for start in range(0, len(drawn), len(ALL)):
        assert {(fault.kind, fault.victim) for _, fault in drawn[start : start + len(ALL)]} == set(ALL)
    struck = [fault.kind for _, fault in drawn if fault.party == SURVIVOR]
    assert struck
    assert not {*struck} & {*RESTARTS}
    assert all(0 <= share < 1 for share, _ in drawn)


@pytest.mark.slow
@pytest.mark.skipif(why_no_hosts() is not None, reason="no network namespaces can be made here")
def test_a_short_while_of_steady_faults_under_attack_loses_nothing(tmp_path):
    bench_long(tmp_path / "long.json", rounds=120, pause=(1.0, 4.0), least_seconds=30.0)
    result = json.loads((tmp_path / "long.json").read_text())
    assert (result["updates_lost"], result["difference"], result["recovered_alike"]) == (0, 0.0, True)
    assert result["faults"]
    assert result["parties"][SURVIVOR]["starts"] == 1
