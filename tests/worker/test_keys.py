"""A worker's secret and what is drawn from it."""

import stat

import pytest
import torch

from worker.keys import Draws, FixedSecret, Secret


def test_normal_numbers_are_normal_and_uniform_ones_uniform():
    draws = Secret().draws("a test")
    normal, uniform = draws.normal((2000, 501)).double(), draws.uniform((1000, 1000)).double()
    moments = [float(normal.pow(power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0.0, 1.0, 0.0, 3.0], abs=0.05)
    assert 4.2 < float(normal.abs().max()) < 7
    assert abs(float(torch.corrcoef(normal.reshape(2, -1))[0, 1])) < 0.01  # of the two halves of a pair
    assert 0 <= float(uniform.min()) < 1e-4
    assert 1 - 1e-4 < float(uniform.max()) < 1
    assert float(uniform.var()) == pytest.approx(1 / 12, abs=1e-3)


def test_orders_are_orders_and_integers_have_their_bits():
    draws = Secret().draws("a test")
    orders = torch.stack([draws.permutation(7) for _ in range(4000)])
    assert torch.equal(orders.sort(dim=1).values, torch.arange(7).expand(4000, 7))
    assert orders.double().mean(dim=0).tolist() == pytest.approx([3.0] * 7, abs=0.2)
    assert 2**26 < max(draws.integer(27) for _ in range(100)) < 2**27
    assert draws.integer() > 2**90
    assert draws.normal((0, 3)).shape == draws.uniform((0, 3)).shape == (0, 3)


def test_a_stream_depends_on_the_secret_the_purpose_and_the_number_alone():
    one, other = Secret(bytes(32)), Secret(bytes(31) + b"a")
    streams = [one.draws("a"), one.draws("b"), one.draws("a", 1), other.draws("a"), Draws(lambda: bytes(32))]
    assert len({streams[at].integer() for at in range(5)}) == 5
    assert torch.equal(one.draws("a").normal((9,)), one.draws("a").normal((9,)))
    later = one.draws("a")
    assert not torch.equal(later.normal((9,)), later.normal((9,)))


def test_each_run_has_a_new_secret_and_a_restart_the_same(tmp_path):
    kept = tmp_path / "worker-0" / "secret"
    first, second = Secret(kept=kept), Secret(kept=kept)
    first.draws("unused")
    assert not kept.exists()  # only what is drawn from needs to be kept
    before = first.reveal()
    assert (stat.S_IMODE(kept.parent.stat().st_mode), stat.S_IMODE(kept.stat().st_mode)) == (0o700, 0o600)
    restarted = Secret(kept=kept)
    restarted.go_on()
    assert restarted.reveal() == before == kept.read_bytes()
    assert second.reveal() != before
    second.forget()
    assert not kept.exists()


def test_fixed_secrets_follow_from_the_seed_and_no_others_do():
    assert FixedSecret(3, "worker 1").reveal() == FixedSecret(3, "worker 1").reveal()
    assert len({FixedSecret(3, "worker 1").reveal(), FixedSecret(3, "all workers").reveal(), Secret().reveal()}) == 3
