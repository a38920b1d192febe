import csv

import numpy as np
import pytest
import torch

from vfl.datasets import Data
from vfl.datasets.columns import Values, as_words, encode_all, fit_column
from vfl.maths.metrics import best_guess, within
from vfl.partition import Box
from vfl.referee.rows import score_columns, score_parties, score_rows, write_rows


def table(**values: Values) -> Data:
    columns = tuple(fit_column(name, own, 100) for name, own in values.items())
    x = encode_all(columns, list(values.values()), len(next(iter(values.values()))))
    return Data("table", x, torch.arange(len(x)) % 2, 2, tuple(map(str, range(len(x)))), columns=columns)


def test_numbers_are_written_with_all_their_digits(tmp_path):
    data = table(account=np.array([40000007.0, 40000008.0, 40000013.0]), rate=np.array([0.125, 0.1, 12.3]))
    write_rows(tmp_path, data, data.x, None)
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["account"] for row in rows] == ["40000007", "40000008", "40000013"]
    assert [row["rate"] for row in rows] == ["0.125", "0.1", "12.3"]


def test_a_column_without_a_single_value_has_no_r2(tmp_path):
    data = table(gone=np.full(3, np.nan), there=np.array([1.0, np.nan, 3.0]))
    gone, there = score_columns(data, [], data.x)
    assert gone.r2 is None
    assert there.r2 == 1
    write_rows(tmp_path, data, data.x, None)
    assert (tmp_path / "rows.csv").read_text() == "id,gone,there\n0,,1\n1,,\n2,,3\n"


def customers(rows: int = 200) -> Data:
    draw = np.random.default_rng(3)
    words = as_words(np.r_[np.zeros(rows // 4), np.arange(rows - rows // 4) % 4 + 1.0])  # a quarter has the first
    return table(job=words, age=draw.normal(40, 10, rows), debt=draw.uniform(0, 1, rows))


def halves(data: Data) -> list[Box]:
    cut = data.columns[0].width + 1
    return [Box(data.sample_shape, (0,), (cut,)), Box(data.sample_shape, (cut,), data.sample_shape)]


def test_the_best_guess_of_numbers_is_the_value_that_is_right_for_the_most_rows():
    truth = torch.tensor([[0.0, 5.0], [0.5, 5.0], [0.52, 5.0], [0.54, 5.0], [1.0, 5.0]])
    guess = best_guess(truth, 0.05)
    assert guess[0] == pytest.approx(0.52)
    assert within(guess.expand_as(truth), truth, 0.05).float().mean(0).tolist() == pytest.approx([0.6, 1.0])


def test_columns_are_scored_beside_the_best_guess():
    data = customers()
    x = data.x.clone()
    x[:100, :5] = 0.0  # half of the jobs are wrong
    x[:100, 4] = 1.0
    job, age, debt = score_columns(data, halves(data), x)
    wrong = int((data.x[:100, :5].argmax(1) != 4).sum())
    assert job.exact.right == job.accuracy == pytest.approx(1 - wrong / 200)
    assert job.exact.guess == 0.25
    assert job.exact.gain == pytest.approx(job.exact.right - 0.25)
    assert (job.worker, age.worker, debt.worker) == (0, 0, 1)
    assert (age.exact.right, age.near.right, age.near.unknown) == (1, 1, 0)
    assert 0.09 < debt.near.guess < 0.2  # a tenth of an even spread, and a little luck
    assert age.exact.guess < 0.05 < age.near.guess
    assert all(column.leaked for column in (job, age, debt))


def test_what_is_unknown_is_neither_right_nor_wrong_and_loses_nothing_to_a_guess():
    data = customers()
    x = data.x.clone()
    x[50:] = torch.nan
    for column in score_columns(data, [], x):
        assert column.exact.unknown == 0.75
        assert column.exact.right == 0.25
        assert 0 <= column.exact.gain <= 0.25
    lost = score_columns(data, [], torch.full_like(x, torch.nan))
    assert [(column.exact.right, column.exact.unknown, column.exact.gain) for column in lost] == [(0, 1, 0)] * 3
    assert not any(column.leaked for column in lost)
    assert score_columns(data, [], torch.zeros_like(x))[0].exact.unknown == 1  # no category stands out


def test_chance_is_no_leak():
    data, draw = customers(), torch.Generator().manual_seed(1)
    for _ in range(20):
        x = data.x[torch.randperm(200, generator=draw)]  # all the frequencies, and no row of its own
        assert not any(column.leaked for column in score_columns(data, [], x))


def test_one_exact_row_is_a_leak_where_no_guess_has_any():
    data = customers()
    x = data.x + 0.5
    x[7] = data.x[7]
    assert score_rows(x, data.x, score_columns(data, [], x)).leaked
    coins = table(side=as_words(np.arange(40) % 2.0))  # a guess has half of these rows
    x = coins.x[torch.randperm(40, generator=torch.Generator().manual_seed(0))]
    found = score_rows(x, coins.x, score_columns(coins, [], x))
    assert found.right > 0.3
    assert not found.leaked


def test_a_party_has_the_mean_of_its_columns_and_its_own_whole_rows():
    data = customers()
    x = data.x.clone()
    x[:, -1] = 9.0  # worker 1 keeps its debt
    x[:50, -2] = 9.0
    first, second = score_parties(score_columns(data, halves(data), x), halves(data), x, data.x)
    assert (first.worker, first.values.right, first.values.leaked) == (0, 0.875, True)
    assert (second.values.right, second.values.leaked) == (0, False)
    assert (first.rows.right, first.rows.leaked) == (0.75, True)  # though no row is whole at both
    assert (second.rows.right, second.rows.leaked) == (0, False)
