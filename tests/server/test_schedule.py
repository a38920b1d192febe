import torch

from server.schedule import batches


def test_epochs_draw_every_sample_once_each():
    drawn = list(batches("epochs", samples=23, batch_size=5, rounds=10, seed=1))
    assert [len(batch) for batch in drawn] == [5, 5, 5, 5, 3] * 2
    for epoch in (drawn[:5], drawn[5:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(23))
    assert not torch.equal(torch.cat(drawn[:5]), torch.cat(drawn[5:]))


def test_rounds_may_end_within_an_epoch():
    assert len(list(batches("epochs", 23, 5, 7, 0))) == 7


def test_uniform_draws_k_different_samples_and_all_equally_often():
    drawn = list(batches("uniform", samples=20, batch_size=6, rounds=2000, seed=0))
    assert all(len(set(batch.tolist())) == 6 for batch in drawn)
    counts = torch.cat(drawn).bincount()
    assert (counts - 600).abs().max() < 5 * (2000 * 0.3 * 0.7) ** 0.5


def test_the_seed_decides():
    def draw(seed):
        return torch.cat(list(batches("epochs", 30, 7, 9, seed)))

    assert torch.equal(draw(4), draw(4))
    assert not torch.equal(draw(4), draw(5))
