"""Tables in NumPy archives: the same keys as for CSV and Parquet, and the same result."""

import numpy as np
import pytest
import torch

from vfl.datasets import datasets
from vfl.errors import UserError
from vfl.registry import PluginSection

COLUMNS = {
    "person": np.array(["p1", "p2", "p3", "p4"]),
    "age": np.array([31, 40, 55, 28], np.int16),
    "size": np.array([1.5, 2.5, 3.5, 4.5], np.float32),
    "colour": np.array(["rot", "grün", "rot", "blau"]),
    "income": np.array([">50K", "<=50K", "<=50K", ">50K"]),
}


def load(**section):
    return datasets.build(PluginSection(**{"name": "npz"} | section)).load()


def saved(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def as_csv(path, columns):
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def people(folder, changes=None, **options):
    path = saved(folder / "people.npz", **COLUMNS | (changes or {}))
    return load(**{"path": path, "label": "income", "id": "person"} | options)


@pytest.mark.parametrize("options", [{}, {"columns": [["colour"], ["age", "size"]], "categorical": ["age"]}])
def test_arrays_by_name_are_read_as_the_columns_of_a_csv_are(tmp_path, options):
    data = people(tmp_path, test_samples=1, **options)
    told = {"label": "income", "id": "person", "test_samples": 1} | options
    same = load(name="csv", path=as_csv(tmp_path / "people.csv", COLUMNS), **told)
    assert torch.equal(data.x, same.x)
    assert torch.equal(data.x_test, same.x_test)
    assert data.y.tolist() == same.y.tolist()
    assert (data.ids, data.columns, data.class_names) == (same.ids, same.columns, same.class_names)
    assert (data.groups, data.label) == (same.groups, "income")


def test_the_columns_of_a_matrix_have_their_names_beside_it(tmp_path):
    x = np.array([[1, 5, 7], [2, 6, 8], [1, 5, 9]])
    arrays = {"x": x, "y": np.array([0, 1, 0]), "feature_names": np.array([b"sex", b"same", b"age"])}
    path = saved(tmp_path / "t.npz", **arrays, who=np.array([3, 1, 2]))
    data = load(path=path, label="y", id="who", columns=[["age"], ["sex"]], categorical=["sex"])
    assert [column.name for column in data.columns] == ["age", "sex"]
    assert data.columns[1].decode(data.x[:, 1:]) == ["1", "2", "1"]
    assert data.ids == ("3", "1", "2")
    assert load(path=path, label="sex").class_names == ("1", "2")
    path = saved(tmp_path / "u.npz", x=x, y=np.array([0.5, 1.5, 0.5]))
    assert [column.name for column in load(path=path, label="y").columns] == ["0", "1", "2"]
    assert load(path=path, label="y").class_names == ("0.5", "1.5")


def test_missing_values_are_those_of_any_table(tmp_path):
    holes = {"size": np.array([1.5, np.nan, 3.5, 4.5]), "colour": np.array(["rot", "", "?", "blau"])}
    with pytest.raises(UserError, match=r"missing values in 'size' \(1 rows\), 'colour' \(2 rows\); set data\.missing"):
        people(tmp_path, holes)
    assert people(tmp_path, holes, missing="drop").ids == ("p1", "p4")
    assert people(tmp_path, holes, missing="indicator").columns[1].indicator


def test_parties_with_archives_of_their_own_are_joined_by_id(tmp_path):
    bank = saved(tmp_path / "bank.npz", who=np.array([4.0, 1.0, 9.0, 3.0, 2.0]), debt=np.array([4, 1, 9, 3, 2]))
    shop = saved(
        tmp_path / "shop.npz",
        buys=np.array([20, 30, 10, 40, 70]),
        who=np.array(["2", "3", "1", "4", "8"]),
        good=np.array([False, True, True, False, False]),
    )
    data = load(files=[bank, shop], label="good", id="who")
    debt, buys = data.columns[0].decode(data.x[:, :1]), data.columns[1].decode(data.x[:, 1:])
    truth = {"1": (1, 10, "true"), "2": (2, 20, "false"), "3": (3, 30, "true"), "4": (4, 40, "false")}
    named = [data.class_names[label] for label in data.y.tolist()]
    assert list(zip(debt, buys, named, strict=True)) == [truth[who] for who in data.ids]
    assert [file.rows for file in data.tables.files] == [5, 5]


@pytest.mark.parametrize("order", ["<", ">"])
def test_text_and_numbers_in_any_byte_order(tmp_path, order):
    turned = {name: array.astype(array.dtype.newbyteorder(order)) for name, array in COLUMNS.items()}
    assert torch.equal(people(tmp_path, turned).x, people(tmp_path).x)


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"person": np.array(["a", "b", "a", "c"])}, {}, r"data\.id: .* has 1 ids more than once \('a' for one\)"),
        ({}, {"label": "salary"}, r"data\.label: .*people\.npz has no column 'salary'; it has 'person', 'age', 'size'"),
        ({"age": np.arange(3)}, {}, r"are not of one length: 'age' has 3 rows, 'income' has 4 rows"),
        ({"picture": np.zeros((4, 2, 2))}, {}, r"is no table: picture has the shape \(4, 2, 2\), and each array is a"),
        ({"x_train": np.zeros((4, 2))}, {}, r"is no table: x_train .* are read without data\.label"),
        (
            {"x": np.zeros((4, 2)), "feature_names": np.array(["a"])},
            {},
            r"has 2 columns in x, and feature_names is <U1",
        ),
        ({"x": np.zeros((4, 1)), "feature_names": np.array(["age"])}, {}, "more than one column called 'age'; rename"),
        ({"size": np.zeros(4, complex)}, {}, "cannot be read as a table: Unsupported numpy type"),
        ({"size": np.zeros(4, "M8[D]")}, {}, r"column 'size' of .* is of the type date32\[day\], expected numbers"),
        ({"colour": np.array(["a", "b", "c", chr(0xD800)])}, {}, "cannot be read as a table"),
        ({"colour": np.array([b"a", b"b", b"c", b"\xff"])}, {}, "cannot be read as a table"),
        ({"age": np.array([2**60, 1, 2, 3])}, {}, r"column 'age' of .* has whole numbers beyond 2\^53"),
        ({"age": np.array([None, 1, 2, 3])}, {}, "cannot be read as a table: .*allow_pickle"),
    ],
)
def test_archives_that_are_no_tables_get_a_sentence(tmp_path, changes, options, words):
    with pytest.raises(UserError, match=words):
        people(tmp_path, changes, **options)


def test_keys_of_tables_need_a_label(tmp_path):
    path = saved(tmp_path / "t.npz", x=np.eye(3), y=np.arange(3), ids=np.arange(3))
    for key, value in (("id", "ids"), ("missing", "drop"), ("missing_values", ["-"])):
        with pytest.raises(UserError, match=rf"data: {key} is for tables whose columns are arrays: give label"):
            load(path=path, **{key: value})
    with pytest.raises(UserError, match="data: files of several parties are joined by an id"):
        load(files=[path])
    with pytest.raises(UserError, match="data: give either path, one file for all, or files"):
        load()
    with pytest.raises(UserError, match=r"data\.path: there is no file nowhere\.npz"):
        load(path="nowhere.npz", label="y")
