"""Rows that only the workers know: right for training, and the same at all of them."""

import pytest
import torch

from vfl.errors import UserError
from vfl.registry import PluginSection
from worker.defences import Chain, Plan

PLAN = Plan(worker=0, samples=50, batch_size=8, rounds=700, schedule="epochs", seed=5)


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
    second = chain(Plan(worker=3, samples=50, batch_size=8, rounds=700, schedule="epochs", seed=5), policy=policy)
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
    assert "warning" not in chain(key_file=str(tmp_path / "a")).report()["chain"][0]
    assert "give the workers a key_file" in chain().report()["chain"][0]["warning"]
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(UserError, match="holds 3 bytes; give it 16 random ones or more"):
        chain(key_file=str(tmp_path / "short"))
    with pytest.raises(UserError, match="cannot be read: No such file"):
        chain(key_file=str(tmp_path / "nowhere"))


def test_a_worker_with_a_key_of_its_own_draws_what_the_seed_does_not_tell():
    gradients = {"bottom.weight": torch.ones(4, 4)}

    def uploaded(key):
        plan = Plan(worker=0, samples=50, batch_size=8, rounds=1, schedule="epochs", seed=5, key=key)
        noisy = Chain([PluginSection(name="noise")], plan)
        return noisy.apply(gradients, 1, torch.arange(8), torch.zeros(8, 4), torch.nn.Linear(4, 4))["bottom.weight"]

    assert torch.equal(uploaded("ab"), uploaded("ab"))
    assert not torch.equal(uploaded("ab"), uploaded(""))
    assert not torch.equal(uploaded("ab"), uploaded("cd"))


@pytest.mark.parametrize(
    ("policy", "warning"),
    [("poisson", "only while the workers' key"), ("one_shot", "schedule (uniform)"), ("permuted", "schedule (epochs)")],
)
def test_the_accountant_hears_how_batches_are_really_drawn_wherever_the_policy_stands(policy, warning):
    indices, private = PluginSection(name="indices", policy=policy), PluginSection(name="dp", noise_multiplier=2.0)
    for sections in ([indices, private], [private, indices]):
        report = {shield["name"]: shield for shield in Chain(sections, PLAN).report()["chain"]}["dp"]
        assert warning in report["warning"]
