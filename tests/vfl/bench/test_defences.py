"""`cafe bench defences` measures each defence at each place for which it has a price of its own."""

from vfl.bench.defences import CASES, SENT, measured
from worker.defences import defences

FREE = {"none", "indices", "breaker"}
"""Nothing, a choice of rows, and an attack of the worker's own (`cafe bench attack`)."""


def test_every_defence_is_measured():
    assert {case["name"] for case in CASES} | {case["name"] for _, case in SENT} == set(defences.names()) - FREE


def test_what_is_measured_takes_time_and_is_named_with_its_place():
    cases = measured(1)["cases"]
    assert [case["place"] for case in cases] == ["uploads"] * 12 + ["outputs"] * 5 + ["answers"] * 5 + ["checks"] * 2
    assert all(case["seconds"] > 0 for case in cases)
