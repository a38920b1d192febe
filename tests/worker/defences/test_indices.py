"""Rows that only the workers know: right for training, and the same at all of them."""

from dataclasses import replace

import pytest
import torch

from vfl.errors import UserError
from vfl.registry import PluginSection
from worker.defences import Chain, Plan
from worker.keys import FixedSecret

PLAN = Plan(worker=0, samples=50, batch_size=8, rounds=700, schedule="epochs", common=FixedSecret(5, "all workers"))


def chain(plan=PLAN, **options):
    return Chain([PluginSection(name="indices", **options)], plan)


def test_permuted_ids_mean_other_rows_in_each_epoch_and_every_epoch_holds_every_sample_once():
    mapped = chain()
    epochs = []
    for epoch in range(3):
        batches = torch.arange(50).split(8)
        epochs.append(torch.cat([mapped.rows(1 + 7 * epoch + at, batch) for at, batch in enumerate(batches)]))
        assert torch.equal(epochs[-1].sort().values, torch.arange(50))
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])
    assert mapped.mean_over is None


def test_a_one_shot_id_is_good_for_one_round():
    mapped = chain(policy="one_shot")
    named = torch.arange(8)
    drawn = [mapped.rows(number, named) for number in (1, 2, 3)]
    assert all(len(rows.unique()) == 8 for rows in drawn)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_poisson_batches_hold_each_sample_with_the_planned_rate_and_independently():
    mapped = chain(policy="poisson")
    counts = torch.zeros(50)
    lengths = []
    for number in range(1, 701):
        rows = mapped.rows(number, torch.arange(8))
        counts[rows] += 1
        lengths.append(len(rows))
    # 700 draws at rate 0.16: mean 112, standard deviation 9.7; lengths are binomial, of variance 50 x 0.16 x 0.84
    assert float(counts.min()) > 75
    assert float(counts.max()) < 150
    assert 5 < float(torch.tensor(lengths).double().var()) < 8.5
    assert mapped.mean_over == 8


@pytest.mark.parametrize("policy", ["permuted", "one_shot", "poisson"])
def test_all_workers_map_alike_whatever_their_number(policy):
    named = torch.arange(8)
    first = chain(policy=policy)
    second = chain(replace(PLAN, worker=3), policy=policy)
    for number in (1, 2, 9, 40):
        assert torch.equal(first.rows(number, named), second.rows(number, named))


def test_a_key_file_makes_the_rows_a_secret_and_is_checked(tmp_path):
    named = torch.arange(8)
    keys = {}
    for name in ("a", "b"):
        path = tmp_path / name
        path.write_bytes(name.encode() * 16)
        keys[name] = chain(key_file=str(path)).rows(1, named)
    assert not torch.equal(keys["a"], keys["b"])
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(UserError, match="holds 3 bytes; give it 16 random ones or more"):
        chain(key_file=str(tmp_path / "short"))
    with pytest.raises(UserError, match="cannot be read: No such file"):
        chain(key_file=str(tmp_path / "nowhere"))


def test_workers_without_a_common_secret_are_told_to_have_one():
    with pytest.raises(UserError, match=r"no secret in common .* give all of them the same random file"):
        chain(replace(PLAN, common=None))


def test_rows_that_follow_from_the_seed_are_said_to(tmp_path):
    mapped = chain(replace(PLAN, common=FixedSecret(5, "all workers")))
    assert "warning" not in mapped.report()  # nothing was drawn yet
    mapped.rows(1, torch.arange(8))
    assert "NOT TESTED FOR REAL" in mapped.report()["warning"]
    (tmp_path / "key").write_bytes(bytes(range(32)))
    keyed = chain(replace(PLAN, common=FixedSecret(5, "all workers")), key_file=str(tmp_path / "key"))
    keyed.rows(1, torch.arange(8))
    assert "warning" not in keyed.report()


@pytest.mark.parametrize(
    ("policy", "warning"),
    [("poisson", "only while the workers' key"), ("one_shot", "schedule (uniform)"), ("permuted", "schedule (epochs)")],
)
def test_the_accountant_hears_how_batches_are_really_drawn_wherever_the_policy_stands(policy, warning):
    indices, private = PluginSection(name="indices", policy=policy), PluginSection(name="dp", noise_multiplier=2.0)
    for sections in ([indices, private], [private, indices]):
        report = {shield["name"]: shield for shield in Chain(sections, PLAN).report()["chain"]}["dp"]
        assert warning in report["warning"]
