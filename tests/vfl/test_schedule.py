import pytest
import torch

from vfl.observation.schedule import batches


def test_epochs_draw_every_sample_once_each():
    drawn = list(batches("epochs", samples=23, batch_size=5, rounds=10, seed=1))
    assert [len(batch) for batch in drawn] == [5, 5, 5, 5, 3] * 2
    for epoch in (drawn[:5], drawn[5:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(23))
    assert not torch.equal(torch.cat(drawn[:5]), torch.cat(drawn[5:]))


def test_rounds_may_end_within_an_epoch():
    assert len(list(batches("epochs", 23, 5, 7, seed=0))) == 7


def test_uniform_draws_k_different_samples_and_all_equally_often():
    drawn = list(batches("uniform", samples=20, batch_size=6, rounds=2000, seed=0))
    assert all(len(set(batch.tolist())) == 6 for batch in drawn)
    counts = torch.cat(drawn).bincount()
    assert (counts - 600).abs().max() < 5 * (2000 * 0.3 * 0.7) ** 0.5


def test_the_seed_decides():
    def draw(seed):
        return torch.cat(list(batches("epochs", 30, 7, 9, seed=seed)))

    assert torch.equal(draw(4), draw(4))
    assert not torch.equal(draw(4), draw(5))


def together_in_all(drawn, samples, epochs):
    """How many pairs of samples share every one of their batches."""
    of = torch.zeros(samples, epochs, dtype=torch.long)
    per_epoch = len(drawn) // epochs
    for number, batch in enumerate(drawn):
        of[batch, number // per_epoch] = number
    counts = torch.unique(of, dim=0, return_counts=True)[1]
    return int((counts * (counts - 1)).sum()) // 2


@pytest.mark.parametrize(("samples", "size"), [(25, 5), (90, 9), (100, 10), (64, 7), (101, 9)])
def test_orthogonal_epochs_tell_all_samples_apart_in_two_where_there_is_room(samples, size):
    rounds = 2 * -(-samples // size)
    drawn = list(batches("orthogonal", samples, size, rounds, seed=5))
    assert len(drawn) == rounds
    for epoch in (drawn[: rounds // 2], drawn[rounds // 2 :]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(samples))
    assert max(map(len, drawn)) <= size
    assert together_in_all(drawn, samples, epochs=2) == 0


@pytest.mark.parametrize(("samples", "size", "epochs"), [(800, 40, 2), (800, 40, 3), (120, 24, 3), (800, 100, 4)])
def test_orthogonal_epochs_leave_fewer_together_than_random_ones_where_there_is_none(samples, size, epochs):
    rounds = epochs * samples // size

    def together(schedule):
        return together_in_all(list(batches(schedule, samples, size, rounds, seed=0)), samples, epochs)

    assert together("orthogonal") < together("epochs")
