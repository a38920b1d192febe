import csv
import math

import numpy as np
import torch

from vfl.datasets import Data
from vfl.datasets.columns import Values, encode_all, fit_column
from vfl.referee.rows import score_columns, write_rows


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
    assert math.isnan(gone["r2"])
    assert there["r2"] == 1
    write_rows(tmp_path, data, data.x, None)
    assert (tmp_path / "rows.csv").read_text() == "id,gone,there\n0,,1\n1,,\n2,,3\n"
