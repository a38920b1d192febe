"""Defences in real federations: per worker, in chains, rows that only the workers know, withheld uploads."""

import json

import pytest
import torch

from tests.support import assert_same, flat, run_in_one_process, run_in_processes, small_config
from vfl.datasets.slices import load_data
from vfl.errors import RunFailedError
from vfl.local.launch import run_federation
from vfl.local.simulation import simulate
from vfl.referee import score_run
from worker.defences import Chain, Plan
from worker.keys import FixedSecret

NOISY = {"name": "noise", "scale": 0.5}


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def test_workers_with_different_defences_work_together_and_only_theirs_differ(tmp_path):
    chosen = {"workers": {1: {"name": "prune", "keep": 0.25}, 2: [{"name": "clip", "norm": 0.01}, NOISY]}}
    seen = run_in_processes(small_config(defence=chosen), tmp_path)
    for found, oracle in zip(seen, run_in_one_process(small_config()), strict=True):
        left, right = flat(found.gradients), flat(oracle.gradients)
        untouched = [name for name in right if name[:2] not in ("1.", "2.")]
        assert all(torch.allclose(left[name], right[name], rtol=1e-4, atol=1e-7) for name in untouched)
        kept = left["1.1.weight"] != 0
        assert kept.double().mean() <= 0.26
        assert torch.allclose(left["1.1.weight"][kept], right["1.1.weight"][kept], rtol=1e-4, atol=1e-7)
        assert not torch.allclose(left["2.1.weight"], right["2.1.weight"], rtol=0.1)
    reports = summary_of(tmp_path)["defence"]
    assert [[shield["name"] for shield in report["chain"]] for report in reports] == [
        ["none"], ["prune"], ["clip", "noise"], ["none"],
    ]  # fmt: skip


@pytest.mark.slow
def test_a_defended_federation_with_fixed_secrets_is_reproducible(tmp_path):
    config = small_config(
        defence=[NOISY, {"name": "quantize", "bits": 4}], training={"lr": 0.1}, federation={"fixed_secrets": True}
    )
    assert_same(*(run_in_processes(config, tmp_path / name) for name in ("a", "b")))


@pytest.mark.parametrize("policy", ["permuted", "one_shot", "poisson"])
@pytest.mark.slow
def test_training_stays_right_when_workers_choose_the_rows(policy, tmp_path):
    config = small_config(
        data={"name": "digits", "samples": 400, "test_samples": 297},
        federation={"batch_size": 40, "rounds": 120},
        training={"optimizer": "adam", "lr": 0.01},
        model={"name": "mlp", "hidden": [32]},
        defence={"name": "indices", "policy": policy},
        transcript=False,
    )
    run_federation(config, load_data(config), tmp_path)
    assert summary_of(tmp_path)["train"]["test_accuracy"] > 0.7


def test_permuted_rows_are_those_of_another_order_of_the_same_samples(tmp_path):
    plain = run_in_processes(small_config(), tmp_path / "plain")
    permuted = run_in_processes(small_config(defence={"name": "indices"}), tmp_path / "permuted")
    assert all(torch.equal(a.indices, b.indices) for a, b in zip(plain, permuted, strict=True))

    def of_an_epoch(rounds):
        return sum(one.gradients.bottoms[1]["1.weight"] for one in rounds[:3])

    # What the coordinator names is the same, what it stands for is not; over an epoch it is every sample once.
    first = [one[0].gradients.bottoms[1]["1.weight"] for one in (plain, permuted)]
    assert not torch.allclose(*first, rtol=0.1)
    assert torch.allclose(of_an_epoch(plain), of_an_epoch(permuted), rtol=1e-3, atol=1e-6)


def test_workers_that_map_rows_differently_find_out_before_they_learn_nonsense(tmp_path):
    config = small_config(defence={"workers": {2: {"name": "indices"}}})
    with pytest.raises(RunFailedError, match="worker 2 sent outputs for 8 samples in round 1 that are not"):
        run_in_processes(config, tmp_path)


BREAKER = {"name": "breaker", "cell": 3}


def test_a_breaker_ends_the_run_before_its_samples_leak(tmp_path):
    config = small_config(
        model={"name": "mlp", "hidden": [16]},
        federation={"rounds": 12},
        defence={"workers": {1: BREAKER}},
        attack={"name": "exact"},
    )
    run_federation(config, load_data(config), tmp_path)
    summary = summary_of(tmp_path)
    assert summary["withheld"].keys() == {"1"}
    stopped = summary["withheld"]["1"]
    assert summary["rounds"] == stopped - 1 == len(summary["train"]["losses"])
    assert 3 < stopped <= 6  # the second epoch of three rounds is the first that tells samples apart
    assert f"worker 1 withheld its upload for round {stopped}: its breaker expects" in summary["ended"]
    assert summary["defence"][1]["withheld_from"]["round"] == stopped


def test_a_federation_that_is_told_to_goes_on_without_the_worker_that_withholds(tmp_path):
    config = small_config(
        model={"name": "mlp", "hidden": [16]},
        federation={"rounds": 12, "when_withheld": "continue"},
        defence={"workers": {1: BREAKER}},
        training={"lr": 0.1, "momentum": 0.9},
    )
    seen = run_in_processes(config, tmp_path)
    stopped = summary_of(tmp_path)["withheld"]["1"]
    assert len(seen) == 12
    for one in seen:
        assert one.complete == (one.round < stopped)
        assert bool(one.gradients.bottoms[1]) == (one.round < stopped)
    last, before = seen[-1].parameters.bottoms, seen[stopped - 1].parameters.bottoms
    assert torch.equal(last[1]["1.weight"], before[1]["1.weight"])
    assert not torch.equal(last[0]["1.weight"], before[0]["1.weight"])


def test_enough_noise_keeps_the_breaker_closed(tmp_path):
    config = small_config(federation={"rounds": 9}, defence=[{"name": "noise", "scale": 20.0}, BREAKER])
    run_in_processes(config, tmp_path)
    summary = summary_of(tmp_path)
    assert summary["withheld"] == {}
    assert summary["ended"] == "complete"
    assert summary["defence"][0]["chain"][1]["leaked"] == 0.0


@pytest.mark.parametrize("defence", ["none", "breaker"])
def test_a_breaker_leaves_exact_nothing_of_a_run_that_one_gradient_each_would_give_away(defence, tmp_path):
    config = small_config(
        data={"name": "digits", "samples": 12, "test_samples": 0},
        federation={"workers": 2, "batch_size": 4, "rounds": 3},
        model={"name": "cafe_cnn"},
        training={"optimizer": "adam", "lr": 1e-3},
        defence={"name": defence},
        attack={"name": "exact"},
    )
    data = load_data(config)
    run_federation(config, data, tmp_path)
    attack = score_run(tmp_path, config, data).attack
    summary = summary_of(tmp_path)
    if defence == "none":
        assert attack.share_30db == 1.0
    else:
        assert summary["rounds"] == 0
        assert "round 1: its breaker expects" in summary["ended"]
        assert "(4 of 4 from this gradient alone)" in summary["ended"]
        assert attack.share_30db is None
        assert attack.notes == ["The attack had too few rounds: attack exact: no round was observed"]


@pytest.mark.parametrize("policy", ["permuted", "one_shot", "poisson"])
def test_rows_that_only_the_workers_know_hide_no_image_from_an_attack_that_needs_no_indices(policy, tmp_path):
    config = small_config(
        data={"name": "digits", "samples": 12, "test_samples": 0},
        federation={"workers": 2, "batch_size": 4, "rounds": 3, "fixed_secrets": True},
        model={"name": "cafe_cnn"},
        training={"optimizer": "adam", "lr": 1e-3},
        defence={"name": "indices", "policy": policy},
        attack={"name": "exact", "trust_indices": False},
    )
    data, named = load_data(config), {}
    simulate(config, data, tmp_path, on_round=lambda seen: named.update({seen.round: seen.indices}))
    common = FixedSecret(config.seed, "all workers")
    chain = Chain(config.defence_of(0), Plan(0, 12, 4, 3, "epochs", common=common))
    drawn = {row for number, rows in named.items() for row in chain.rows(number, rows).tolist()}
    assert drawn == set(range(12)) or policy != "permuted"
    assert round(12 * score_run(tmp_path, config, data).attack.share_30db) == len(drawn)


def test_a_simulation_whose_first_upload_is_withheld_ends_as_the_run_does(tmp_path):
    config = small_config(model={"name": "cafe_cnn"}, defence={"name": "breaker"}, attack={"name": "exact"})
    done = simulate(config, load_data(config), tmp_path)
    assert done.model is None
    assert "withheld its upload for round 1: its breaker expects" in summary_of(tmp_path)["ended"]
