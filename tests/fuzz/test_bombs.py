"""Short files that would stand for much: YAML, very wide tables, packed columns; each is one short sentence."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fuzz.support import little_memory
from vfl.config import load_config, parse_config
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.limits import TABLE_COLUMNS

MB = 1 << 20
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{key}: &{key} [{', '.join(['*' + above] * 9)}]\n" for above, key in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LAUGHS, "aliases"),
        ("a: &a {x: 1}\nb: {<<: *a}\n", "aliases"),
        ("a: " + "[" * 20_000 + "]" * 20_000, "nested more than 32 deep"),
        ("? " * 100_000, "nested more than 32 deep"),
        ("seed: " + "9" * 200_000, "4300 digits"),
        ("seed: 1" + ":59" * 20_000, "more than 64 bits"),
        ("\n".join(f"k{i}: 1" for i in range(5_000)), "and 4982 more like these"),
        ("seed: [" + ", ".join("1" * 20_000) + "]", "seed: input should be a valid integer"),
        ("seed: 1\nseed: 2\n", "the key 'seed' stands there twice"),
        ("federation: {workers: 2, workers: 4}", "the key 'workers' stands there twice"),
        ("#" * 300_000, "File too large"),
    ],
)
def test_a_yaml_file_that_stands_for_much_is_one_short_sentence(tmp_path, text, words):
    (tmp_path / "run.yaml").write_text(text)
    with little_memory(64 * MB), pytest.raises(UserError, match=words) as refused:
        load_config(tmp_path / "run.yaml")
    assert len(str(refused.value)) < 3_000


def table(path, kind):
    data = {"name": kind, "path": str(path), "label": "y"}
    tree = {"data": data, "federation": {"workers": 2, "batch_size": 2, "rounds": 2}, "model": {"name": "mlp"}}
    return load_data(parse_config(tree, "the test"))


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory):
    """What reading tables imports is not counted."""
    path = tmp_path_factory.mktemp("tables") / "small.csv"
    path.write_text("y,a\n" + "0,1\n1,2\n" * 6)
    table(path, "csv")


@pytest.mark.parametrize("columns", [TABLE_COLUMNS + 1, 400_000, 1_000_000])
def test_a_csv_file_of_very_many_columns_is_refused_before_it_is_parsed(tmp_path, columns):
    path = tmp_path / "wide.csv"
    path.write_text("y" + ",c" * columns + "\n" + ",".join("1" * (columns + 1)) + "\n")
    with little_memory(32 * MB), pytest.raises(UserError, match=r"columns or more, the limit is 100000"):
        table(path, "csv")


def test_a_csv_file_of_one_endless_cell_or_quote_is_refused(tmp_path):
    for name, text in (("cell", "y,a\n1," + "x" * (8 * MB)), ("quote", 'y,a\n1,"' + "x\n" * (4 * MB))):
        (tmp_path / name).write_text(text)
        with little_memory(64 * MB), pytest.raises(UserError) as refused:
            table(tmp_path / name, "csv")
        assert len(str(refused.value)) < 1_000


def test_a_parquet_file_of_very_many_columns_or_of_packed_ones_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("vfl.limits.TABLE_COLUMNS", 1_000)
    monkeypatch.setattr("vfl.limits.TABLE_BYTES", 16 * MB)
    wide = {f"c{i}": [1.0, 2.0] for i in range(1_000)}
    pq.write_table(pa.table({"y": [0, 1], **wide}), tmp_path / "wide.parquet")
    packed = pa.table({name: pa.array(np.zeros(4_000_000, np.int8)) for name in ("y", "a")})
    pq.write_table(packed, tmp_path / "packed.parquet", compression="zstd")
    assert (tmp_path / "packed.parquet").stat().st_size < MB
    with pytest.raises(UserError, match="has 1001 columns, the limit is 1000"):
        table(tmp_path / "wide.parquet", "parquet")
    with little_memory(16 * MB), pytest.raises(UserError, match="bytes when it is read, the limit is"):
        table(tmp_path / "packed.parquet", "parquet")
