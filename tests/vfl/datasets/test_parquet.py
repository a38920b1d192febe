"""What Parquet files have that CSV has not: types, nulls beside NaN, and dictionaries that are small until expanded."""

from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vfl import limits
from vfl.datasets import datasets
from vfl.errors import UserError
from vfl.registry import PluginSection

NAN = float("nan")


@pytest.fixture
def load(tmp_path):
    def make(columns, **options):
        path = tmp_path / "t.parquet"
        pq.write_table(pa.table(columns), path)
        return datasets.build(PluginSection(**{"name": "parquet", "path": str(path), "label": "y"} | options)).load()

    return make


@pytest.mark.parametrize(
    "own",
    [
        [1.0, NAN, 2.0],
        [1.0, None, 2.0],
        pa.array([1.0, NAN, 2.0], pa.float32()),
        pa.array([1, None, 2]),
        ["1", "", "2"],
        ["1", "NA", "2"],
        pa.array(["1", " ? ", "2"]).dictionary_encode(),
        pa.array(["1", None, "2"], pa.large_string()),
    ],
)
@pytest.mark.parametrize("categorical", [[], ["a"]])
def test_whatever_says_that_a_value_is_missing_is_no_value(load, own, categorical):
    columns = {"a": own, "y": [0, 1, 1]}
    with pytest.raises(UserError, match=r"has missing values in 'a' \(1 rows\)"):
        load(columns, categorical=categorical)
    data = load(columns, categorical=categorical, missing="indicator")
    gap = "(missing)" if categorical else None
    assert data.columns[0].decode(data.x) == (["1", gap, "2"] if categorical else [1.0, gap, 2.0])
    assert load(columns, categorical=categorical, missing="drop").ids == ("0", "1")


@pytest.mark.parametrize(
    "ids",
    [[1.0, NAN, 3.0], ["p", "", "q"], ["p", " ", "q"], ["p", "NA", "q"], ["p", None, "q"], [7, None, 8]],
)
def test_a_row_without_an_id_is_nobody(load, ids):
    with pytest.raises(UserError, match=r"data\.id: row 2 of .* has no id"):
        load({"who": ids, "a": [1, 2, 3], "y": [0, 1, 1]}, id="who")


def test_a_column_of_nulls_names_nobody(load):
    with pytest.raises(UserError, match=r"data\.id: row 1 of .* has no id"):
        load({"who": pa.nulls(2), "a": [1, 2], "y": [0, 1]}, id="who")


def test_ids_that_are_numbers_are_named_alike_in_any_type(load):
    for ids in ([7, 3 * 10**15], [7.0, 3e15], ["7", "3000000000000000"]):
        assert load({"who": ids, "a": [1, 2], "y": [0, 1]}, id="who").ids == ("7", "3000000000000000")
    for kind in (pa.float32(), pa.float64(), pa.int64(), pa.string()):
        ids = pa.array([16777216, 123456792]).cast(kind, safe=False)
        assert load({"who": ids, "a": [1, 2], "y": [0, 1]}, id="who").ids == ("16777216", "123456792")


def test_decimals_are_named_as_floats_are(load):
    ids = pa.array([Decimal("7.00"), Decimal("0.50"), Decimal("-1200"), Decimal("0.00000001")], pa.decimal128(20, 10))
    data = load({"who": ids, "a": [1, 2, 3, 4], "y": [0, 1, 0, 1]}, id="who", categorical=["a"])
    assert data.ids == ("7", "0.5", "-1200", "0.00000001")
    huge = pa.array([Decimal("9" * 38), Decimal(1)], pa.decimal128(38, 0))
    assert load({"who": huge, "a": [1, 2], "y": [0, 1]}, id="who").ids == ("9" * 38, "1")


@pytest.mark.parametrize("labels", [["no", "", "yes"], ["no", "NA", "yes"], [0.0, NAN, 1.0], [False, None, True]])
def test_a_label_that_is_missing_is_no_class(load, labels):
    columns = {"a": [1, 2, 3], "y": labels}
    with pytest.raises(UserError, match=r"1 rows of .* have no label"):
        load(columns)
    for missing in ("indicator", "drop"):
        assert load(columns, missing=missing).classes == 2


def test_words_for_what_is_missing_can_be_chosen(load):
    columns = {"a": ["x", "NA", "-"], "y": [0, 1, 1]}
    data = load(columns, missing="indicator", missing_values=["-"])
    assert data.columns[0].categories == ("NA", "x", "(missing)")
    with pytest.raises(UserError, match=r"column 'a' of .* holds numbers and empty words"):
        load({"a": ["1", "", "3"], "y": [0, 1, 1]}, missing_values=[])


WORDS = pa.DictionaryArray.from_arrays(pa.array([0] * 700, pa.int32()), pa.array(["x" * 100_000]))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a_long_word_in_every_row_is_refused_before_it_is_expanded(load, monkeypatch, kind):
    monkeypatch.setattr(limits, "TABLE_BYTES", 1 << 20)
    columns = {"a": WORDS.cast(pa.string()).cast(kind), "y": [0, 1] * 350}
    tables, read = [], pq.read_table
    monkeypatch.setattr(pq, "read_table", lambda *told, **options: tables.append(read(*told, **options)) or tables[0])
    with pytest.raises(UserError, match=r"column 'a' of .* takes 70000000 bytes when it is read, the limit is 1048576"):
        load(columns)
    assert tables[0].nbytes < 1 << 20
    monkeypatch.setattr(limits, "TABLE_BYTES", 100_000_000)
    assert load(columns).columns[0].categories == ("x" * 100_000,)


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.binary(100_000), pa.dictionary(pa.int32(), pa.binary())]
)
def test_what_is_neither_number_nor_text_is_refused_before_it_is_read(load, monkeypatch, kind):
    monkeypatch.setattr(pq, "read_table", lambda *_, **__: pytest.fail("it was read"))
    own = WORDS.cast(pa.string()).cast(pa.binary())
    own = own.dictionary_encode() if pa.types.is_dictionary(kind) else own.cast(kind)
    with pytest.raises(UserError, match=r"column 'a' of .* is of the type .*binary.*, expected numbers or text"):
        load({"a": own, "y": [0, 1] * 350})


@pytest.mark.parametrize(
    "own", [[2**53 + 1, 2], ["9007199254740993", "2"], [Decimal("9007199254740993.0"), Decimal(2)]]
)
def test_whole_numbers_that_would_lose_digits_are_refused_in_any_type(load, own):
    columns = {"a": own, "y": [0, 1]}
    with pytest.raises(UserError, match=r"column 'a' of .* has whole numbers beyond 2\^53, .* data\.categorical or da"):
        load(columns)
    assert len(load(columns, categorical=["a"]).columns[0].categories) == 2
