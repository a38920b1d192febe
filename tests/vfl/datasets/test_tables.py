import bz2
import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from vfl import limits
from vfl.config import parse_config
from vfl.datasets import datasets
from vfl.datasets.slices import boxes_of, load_data
from vfl.errors import UserError
from vfl.registry import PluginSection

PEOPLE = """person,Größe,farbe, 年龄 ,income
007,1.5,rot,31,>50K
008,2.5,grün,40,<=50K
009,3.5,rot,55,<=50K
010,4.5,blau,28,>50K
"""


def load(**section):
    return datasets.build(PluginSection(**section)).load()


def checked(section):
    """Load data as a run does."""
    federation = {"workers": 1, "batch_size": 1, "epochs": 1}
    return load_data(parse_config({"data": section, "federation": federation}, "the test"))


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def people(folder, text=PEOPLE, **options):
    return load(
        **{"name": "csv", "path": written(folder / "people.csv", text), "label": "income", "id": "person"} | options
    )


def test_numbers_are_scaled_words_are_one_hot_and_both_can_be_read_back(tmp_path):
    data = people(tmp_path)
    assert [column.name for column in data.columns] == ["Größe", "farbe", "年龄"]
    assert data.ids == ("007", "008", "009", "010")
    assert data.class_names == ("<=50K", ">50K")
    assert data.y.tolist() == [1, 0, 0, 1]
    assert data.x.shape == (4, 5)
    assert torch.allclose(data.x[:, [0, 4]].mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(data.x[:, [0, 4]].std(0, correction=0), torch.ones(2), atol=1e-6)
    size, colour, age = data.columns
    assert size.decode(data.x[:, :1]) == [1.5, 2.5, 3.5, 4.5]
    assert colour.decode(data.x[:, 1:4] * 0.9 + 0.01) == ["rot", "grün", "rot", "blau"]
    assert age.decode(data.x[:, 4:]) == [31, 40, 55, 28]


def test_the_last_rows_are_for_testing_and_do_not_enter_the_scale(tmp_path):
    data = people(tmp_path, samples=2, test_samples=1)
    assert data.columns[0].mean == 2.0
    assert data.columns[1].categories == ("grün", "rot")
    assert data.x_test.shape == (1, 4)
    assert data.x_test[0].tolist() == [5.0, 0.0, 0.0, pytest.approx(-7.5 / 4.5)]  # blue was never seen
    assert data.y_test.tolist() == [1]


def test_parquet_reads_the_same_as_csv(tmp_path):
    table = pa.table(
        {
            "person": ["007", "008", "009", "010"],
            "Größe": [1.5, 2.5, 3.5, 4.5],
            "farbe": pa.array(["rot", "grün", "rot", "blau"]).dictionary_encode(),
            "年龄": pa.array([31, 40, 55, 28], pa.int16()),
            "income": [">50K", "<=50K", "<=50K", ">50K"],
        }
    )
    pq.write_table(table, tmp_path / "people.parquet")
    found = load(name="parquet", path=str(tmp_path / "people.parquet"), label="income", id="person")
    assert torch.equal(found.x, people(tmp_path).x)
    pq.write_table(table.append_column("born", pa.array([0] * 4, pa.timestamp("s"))), tmp_path / "dates.parquet")
    with pytest.raises(UserError, match=r"column 'born' of .* is of the type timestamp\[ms\]"):
        load(name="parquet", path=str(tmp_path / "dates.parquet"), label="income", id="person")


def test_whole_numbers_that_would_lose_digits_are_refused_with_their_column(tmp_path):
    table = pa.table({"account": pa.array([2**60 + 1, 2**60 + 2]), "y": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    section = {"name": "parquet", "path": str(tmp_path / "a.parquet"), "label": "y"}
    with pytest.raises(UserError, match=r"column 'account' of .*a\.parquet has whole numbers beyond 2\^53"):
        load(**section)
    assert load(**section, categorical=["account"]).columns[0].categories == (str(2**60 + 1), str(2**60 + 2))


def test_columns_belong_to_workers_by_name(tmp_path):
    path = written(tmp_path / "people.csv", PEOPLE)
    tree = {
        "data": {"name": "csv", "path": path, "label": "income", "columns": [["年龄"], ["farbe", "Größe"]]},
        "federation": {"workers": 2, "batch_size": 2, "epochs": 2},
    }
    config = parse_config(tree, "the test")
    data = load_data(config)
    assert [(box.start, box.stop) for box in boxes_of(data, config)] == [((0,), (1,)), ((1,), (5,))]
    tree["federation"]["workers"] = 3
    with pytest.raises(UserError, match=r"federation\.workers: 3, but data has columns for 2 workers"):
        boxes_of(data, parse_config(tree, "the test"))


def test_without_groups_no_column_is_cut_in_two(tmp_path):
    tree = {
        "data": {"name": "csv", "path": written(tmp_path / "people.csv", PEOPLE), "label": "income", "id": "person"},
        "federation": {"workers": 3, "batch_size": 2, "epochs": 2},
    }
    config = parse_config(tree, "the test")
    assert [box.shape for box in boxes_of(load_data(config), config)] == [(1,), (3,), (1,)]


def test_a_compressed_csv_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "TABLE_BYTES", 1 << 20)
    text = PEOPLE + "".join(f"x{number},1.5,rot,31,>50K\n" for number in range(100_000))
    for suffix, pack in (("gz", gzip.compress), ("bz2", bz2.compress)):
        packed = tmp_path / f"people.csv.{suffix}"
        packed.write_bytes(pack(text.encode()))
        assert packed.stat().st_size < 1 << 20
        with pytest.raises(UserError, match=rf"^data\.path: .*people\.csv\.{suffix} is compressed; unpack it first"):
            load(name="csv", path=str(packed), label="income", id="person")
        packed.rename(tmp_path / "packed.csv")
        with pytest.raises(UserError, match="cannot be read as a table"):
            load(name="csv", path=str(tmp_path / "packed.csv"), label="income", id="person")


def test_letters_with_marks_are_the_same_however_they_are_written(tmp_path):
    decomposed = PEOPLE.replace("ö", "o\u0308").replace("ü", "u\u0308").replace("007", "Zoe\u0308")
    data = people(tmp_path, decomposed, columns=[["Gro\u0308ße", "farbe"]])
    assert data.ids[0] == "Zo\u00eb"
    assert [column.name for column in data.columns] == ["Größe", "farbe"]
    assert data.columns[1].categories == ("blau", "grün", "rot")
    assert people(tmp_path, decomposed, columns=[["Größe"]]).columns[0].name == "Größe"


def test_a_row_that_is_dropped_does_not_hide_that_its_id_is_there_twice(tmp_path):
    twice = PEOPLE.replace("008,2.5", "007,?")
    with pytest.raises(UserError, match=r"has 1 ids more than once \('007' for one\)"):
        people(tmp_path, twice, missing="drop")


def test_rows_without_a_label_are_left_out_and_counted_whatever_becomes_of_other_gaps(tmp_path):
    holes = PEOPLE.replace("007,1.5", "007,").replace("31,>50K", "31,") + "011,,gelb,3,>50K\n012,1,gelb,4,\n"
    with pytest.raises(UserError, match=r"data\.label: 2 rows of .* have no label; set data\.missing to indicator or"):
        people(tmp_path, holes)
    kept = people(tmp_path, holes, missing="indicator")
    assert kept.ids == ("008", "009", "010", "011")
    assert kept.columns[0].decode(kept.x[:, :2]) == [2.5, 3.5, 4.5, None]
    (file,) = kept.tables.files
    assert (kept.tables.rows, file.rows, file.unlabelled, file.incomplete) == (4, 6, 2, 0)
    dropped = people(tmp_path, holes, missing="drop")
    assert dropped.ids == ("008", "009", "010")
    (file,) = dropped.tables.files
    assert (file.rows, file.unlabelled, file.incomplete) == (6, 2, 1)
    for text, left in ((PEOPLE.replace("rot", "").replace("grün", "").replace("blau", ""), "has all its values"),):
        with pytest.raises(UserError, match=f"no row of .* {left}, so none is left"):
            people(tmp_path, text, missing="drop")
    with pytest.raises(UserError, match=r"no row of .* has a label, so none is left"):
        people(tmp_path, PEOPLE.replace(">50K", "").replace("<=50K", ""), missing="indicator")


HOLES = PEOPLE.replace("2.5", "?").replace("blau", "")


def test_missing_values_are_refused_marked_or_dropped(tmp_path):
    with pytest.raises(UserError, match=r"missing values in 'Größe' \(1 rows\), 'farbe' \(1 rows\); set data\.missing"):
        people(tmp_path, HOLES)
    marked = people(tmp_path, HOLES, missing="indicator")
    size, colour, _ = marked.columns
    assert size.decode(marked.x[:, :2]) == [1.5, None, 3.5, 4.5]
    assert colour.decode(marked.x[:, 2:5]) == ["rot", "grün", "rot", "(missing)"]
    assert people(tmp_path, HOLES, missing="drop").ids == ("007", "009")


def test_rows_of_one_class_to_train_with_get_a_sentence_also_where_test_rows_have_another(tmp_path):
    text = PEOPLE.replace("008,2.5,grün,40,<=50K", "008,2.5,grün,40,>50K")
    table = {"name": "csv", "path": written(tmp_path / "people.csv", text), "label": "income", "test_samples": 2}
    with pytest.raises(UserError, match=r"data: all 2 samples to train with are of the class '>50K'; .* mix them"):
        checked(table | {"samples": 2})
    assert checked(table | {"samples": 1}).classes == 2  # one row is always of one class


@pytest.mark.parametrize("shape", [(6, 3), (6, 4, 4)])
def test_arrays_of_one_class_get_the_sentence_too(tmp_path, shape):
    draw = np.random.default_rng(0)
    for labels, called in ((np.ones(6, int), 1), (np.zeros(6, int), 0)):
        np.savez(tmp_path / "t.npz", x=draw.uniform(size=shape), y=labels)
        with pytest.raises(UserError, match=f"data: all 6 samples to train with are of the class {called}; there is"):
            checked({"name": "npz", "path": str(tmp_path / "t.npz")})


def test_values_that_are_missing_in_test_rows_alone_are_marked_too(tmp_path):
    text = PEOPLE.replace("4.5", "").replace("blau", "?")
    data = people(tmp_path, text, missing="indicator", test_samples=1)
    size, colour, _ = data.columns
    assert data.x[:, 1].tolist() == [0.0, 0.0, 0.0]
    assert data.x_test[0, :2].tolist() == [0.0, 1.0]
    assert size.decode(data.x_test[:, :2]) == [None]
    assert colour.decode(data.x_test[:, 2:5]) == ["(missing)"]
    assert data.x_test.isfinite().all()


def test_a_word_far_down_makes_the_whole_column_words(tmp_path):
    rows = "".join(f"{i % 50},{i % 2}\n" for i in range(300_000))
    data = load(name="csv", path=written(tmp_path / "long.csv", f"a,y\n{rows}many,1\n"), label="y")
    assert data.columns[0].kind == "category"
    assert len(data.columns[0].categories) == 51


def test_quoted_values_may_hold_line_breaks_in_a_file_of_any_size(tmp_path):
    rows = "".join(f'"{i}","first line\n{"x" * 50},\n{i % 3}",{i % 2}\n' for i in range(40_000))  # some blocks
    data = load(name="csv", path=written(tmp_path / "long.csv", f"a,note,y\n{rows}"), label="y")
    assert data.x.shape == (40_000, 4)
    assert data.columns[1].categories[2] == f"first line\n{'x' * 50},\n2"


@pytest.mark.parametrize(
    ("word", "kind"), [("", "numbers; training.loss to squared"), ("w", "words; group them first")]
)
def test_more_than_a_thousand_classes_are_refused(tmp_path, word, kind):
    rows = "".join(f"{i % 7},{word}{i}\n" for i in range(1001))
    told, do = kind.split("; ")
    with pytest.raises(UserError, match=rf"1001 different {told} in 1001 rows, and a class is made of each; .* {do}"):
        load(name="csv", path=written(tmp_path / "c.csv", f"a,y\n{rows}"), label="y")


def test_constant_columns_and_numbers_that_are_names(tmp_path):
    text = "same,word,code,y\n" + "".join(f"3.3,x,{code},{code % 2}\n" for code in (10, 20, 31))
    data = load(name="csv", path=written(tmp_path / "c.csv", text), label="y", categorical=["code"])
    assert [column.width for column in data.columns] == [1, 1, 3]
    assert data.x[:, :2].tolist() == [[0.0, 1.0]] * 3
    assert data.columns[0].decode(data.x[:, :1]) == [3.3] * 3
    assert data.columns[2].categories == ("10", "20", "31")


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (PEOPLE.replace("008", "007"), {}, r"has 1 ids more than once \('007' for one\)"),
        (PEOPLE.replace("008", ""), {}, r"data\.id: row 2 of .* has no id"),
        (PEOPLE, {"label": "salary"}, r"data\.label: .* has no column 'salary'; it has 'person', 'Größe'"),
        (
            PEOPLE.replace(",", ";"),
            {},
            r"no column 'income'; it has 'person;.* \(is it separated by ';'\? then set data\.separator\)",
        ),
        (PEOPLE.replace("008", ""), {"missing_values": ["?"]}, r"data\.id: row 2 of .* has no id"),
        (PEOPLE, {"columns": [["farbe"], ["ages"]]}, r"data\.columns: .* has no column 'ages'"),
        (PEOPLE, {"columns": [["farbe"], ["farbe"]]}, "'farbe' is held by more than one worker"),
        (PEOPLE, {"columns": [["farbe", "income"]]}, "'income' is the label or the id"),
        (PEOPLE, {"categorical": ["ages"]}, r"data\.categorical: there is no column 'ages' in .*people\.csv"),
        (PEOPLE, {"most_categories": 2}, "column 'farbe' holds 3 different words"),
        (PEOPLE, {"samples": 5}, "5 rows to train with and 0 to test are asked for, the table has 4"),
        (PEOPLE.replace(">50K", ""), {}, "2 rows of .* have no label"),
        (PEOPLE.replace("4.5", "inf"), {}, "column 'Größe' of .* has infinite values"),
        (PEOPLE.replace("farbe", "Größe"), {}, "more than one column called 'Größe'"),
        ("1,rot,rot,2,0\n" + PEOPLE, {}, r"seems to have no header line: its first one holds '1', 'rot', 'rot'"),
        (
            "1,rot,blau,2,0\n" + PEOPLE,
            {},
            r"data\.label: .* has no column 'income'; .* \(has the file no header line\?\)",
        ),
        (PEOPLE + "011,3\n", {}, "cannot be read as a table: .*[Ee]xpected 5 columns, got 2"),
        ("person;a;income\n1;2,5;0\n", {}, r"cannot be read as a table: .* \(is data\.separator right\?\)"),
        ("person,income\n1,2\n", {}, "has no columns besides"),
        ("", {}, "cannot be read as a table"),
    ],
)
def test_bad_tables_get_a_sentence(tmp_path, text, options, words):
    with pytest.raises(UserError, match=words):
        people(tmp_path, text, **options)


def test_sentences_show_no_control_characters_of_a_file(tmp_path):
    with pytest.raises(UserError, match="cannot be read as a table") as caught:
        people(tmp_path, PEOPLE + "011,\x1b[31m\n")
    assert str(caught.value).isprintable()
    x, names = np.eye(2), np.array(["a", "b\x1b[31m"])
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(2), feature_names=names)
    with pytest.raises(UserError, match=r"there is no column 'c'; the columns are a, b \[31m"):
        load(name="npz", path=str(tmp_path / "t.npz"), columns=[["c"]])


def test_bad_options_get_a_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv("CAFE_DATA", raising=False)
    for options, words in (
        ({"label": "y"}, "give either path, one file for all, or files"),
        ({"label": "y", "files": ["a.csv"]}, "joined by an id"),
        ({"label": "y", "path": "a.csv", "id": "y"}, "data: label and id are both 'y'"),
        ({"path": "a.csv", "label": "y", "separator": "§"}, r"data\.separator: it is one ASCII character"),
        ({"path": "a.csv", "label": "y", "separator": ""}, r"data\.separator: it is one ASCII character"),
        ({"path": "a.csv", "label": "y", "separator": '"'}, "and no quote or line break"),
        ({"path": "nowhere.csv", "label": "y"}, "there is no file nowhere.csv"),
    ):
        with pytest.raises(UserError, match=words):
            load(name="csv", **options)
    (tmp_path / "latin.csv").write_bytes("größe,y\n1,0\n".encode("latin-1"))
    with pytest.raises(UserError, match="cannot be read as a table"):
        load(name="csv", path=str(tmp_path / "latin.csv"), label="y")


def test_files_of_several_parties_are_joined_by_id(tmp_path):
    bank = written(tmp_path / "bank.csv", "who,debt\nd,4\na,1\nx,9\nc,3\nb,2\n")
    shop = written(tmp_path / "shop.csv", "buys,who,good\n20,b,no\n30,c,yes\n10,a,yes\n40,d,no\n70,z,no\n")
    data = load(name="csv", files=[bank, shop], label="good", id="who")
    assert sorted(data.ids) == ["a", "b", "c", "d"]
    debt, buys = data.columns[0].decode(data.x[:, :1]), data.columns[1].decode(data.x[:, 1:])
    truth = {"a": (1, 10, 1), "b": (2, 20, 0), "c": (3, 30, 1), "d": (4, 40, 0)}
    assert list(zip(debt, buys, data.y.tolist(), strict=True)) == [truth[who] for who in data.ids]
    assert data.tables.rows == 4
    assert [(file.source, file.rows) for file in data.tables.files] == [(bank, 5), (shop, 5)]
    lonely = written(tmp_path / "lonely.csv", "who\nq\n")
    with pytest.raises(UserError, match="no id is in all of"):
        load(name="csv", files=[bank, written(tmp_path / "other.csv", "who,w,good\nq,1,1\n")], label="good", id="who")
    with pytest.raises(UserError, match=r"data\.categorical: there is no column 'debts' in the files"):
        load(name="csv", files=[bank, shop], label="good", id="who", categorical=["buys", "debts"])
    columns = {"columns": [["debt"]], "path": bank, "label": "good", "id": "who"}
    with pytest.raises(UserError, match=r"data\.columns: lists the columns of 1 workers, none of worker 1"):
        datasets.build(PluginSection(name="csv", **columns)).holding(tmp_path / "shop.csv", 1, False, "--data")
    with pytest.raises(UserError, match="has no columns besides"):
        load(name="csv", files=[shop, lonely], label="good", id="who")


def test_whole_numbers_name_the_same_with_and_without_a_point(tmp_path):
    bank = written(tmp_path / "bank.csv", "who,debt\n1.0,1\n2.,2\n3,3\n4,4\n01,5\n0.50,6\n10.0,7\n")
    shop = written(tmp_path / "shop.csv", "who,buys,good\n1,10,a\n2,20,b\n3.00,30,a\n4,40,b\n1.5,50,a\n10,60,b\n")
    data = load(name="csv", files=[bank, shop], label="good", id="who")
    assert sorted(data.ids) == ["1", "10", "2", "3", "4"]
    assert people(tmp_path, PEOPLE.replace("007", "07.0")).ids[0] == "07.0"
    with pytest.raises(UserError, match=r"has 1 ids more than once \('1' for one\)"):
        people(tmp_path, PEOPLE.replace("007", "1.0").replace("008", "1"))


def test_npz_tables_have_columns_by_name_too(tmp_path):
    x = np.array([[1, 5, 7], [2, 5, 8], [1, 5, 9]])
    np.savez(tmp_path / "t.npz", x=x, y=np.array([0, 1, 0]), feature_names=np.array(["sex", "same", "age"]))
    data = load(name="npz", path=str(tmp_path / "t.npz"), columns=[["age"], ["sex"]], categorical=["sex"])
    assert data.groups == (1, 1)
    assert [column.name for column in data.columns] == ["age", "sex"]
    assert data.columns[1].decode(data.x[:, 1:]) == ["1", "2", "1"]
    with pytest.raises(UserError, match=r"data\.columns: there is no column 'old'; the columns are sex, same, age"):
        load(name="npz", path=str(tmp_path / "t.npz"), columns=[["old"]])


@pytest.mark.parametrize(
    ("kinds", "numbers"),
    [
        (("f4", "i8"), (16777216, 123456792)),
        (("f8", "f4"), (0.5, 0.1)),
        (("i8", "f8"), (7, 10**16)),
        (("f4", "f4"), (0.1, 3)),
    ],
)
def test_a_category_of_an_npz_has_one_name_whatever_the_types_of_its_arrays(tmp_path, kinds, numbers):
    rows = np.array([[one] for one in numbers], "f4" if "f4" in kinds else "f8")
    arrays = {f"x_{part}": rows.astype(kind) for part, kind in zip(("train", "test"), kinds, strict=True)}
    labels = {f"y_{part}": np.array([0, 1]) for part in ("train", "test")}
    np.savez(tmp_path / "t.npz", **arrays, **labels, feature_names=np.array(["code"]))
    data = load(name="npz", path=str(tmp_path / "t.npz"), categorical=["code"])
    assert torch.equal(data.x, data.x_test)
    assert torch.equal(data.x.sum(1), torch.ones(2))


@pytest.mark.parametrize("key", ["ids", "feature_names"])
@pytest.mark.parametrize("name", [0xD800, 0xDC80])
def test_names_in_an_npz_that_are_no_text_are_refused(tmp_path, key, name):
    names = {"ids": np.array(["a", "b"]), "feature_names": np.array(["u", "v"])}
    names[key] = np.array(["x", chr(name)])  # half of a pair
    np.savez(tmp_path / "t.npz", x=np.eye(2), y=np.array([0, 1]), **names)
    with pytest.raises(UserError, match=rf"{key} in .* has .*, which is no text in UTF-8"):
        load(name="npz", path=str(tmp_path / "t.npz"))


@pytest.mark.slow
def test_a_million_rows(tmp_path):
    import resource

    with (tmp_path / "big.csv").open("w") as file:
        file.write("id," + ",".join(f"c{i}" for i in range(20)) + ",y\n")
        for row in range(1_000_000):
            file.write(f"r{row}," + ",".join(str((row * (i + 3)) % 1009) for i in range(20)) + f",{row % 2}\n")
    data = load(name="csv", path=str(tmp_path / "big.csv"), label="y", id="id")
    assert data.x.shape == (1_000_000, 20)
    assert data.columns[3].decode(data.x[-1:, 3:4]) == [(999_999 * 6) % 1009]
    # Everything as text, then as numbers, then as features: no more than a few gigabytes at the highest.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20
