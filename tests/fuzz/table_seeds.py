"""Tables for the corpus, as text and as Parquet."""

import io

import pyarrow as pa
from pyarrow import parquet

CSV = {
    "good": b"person,a,b,y\np1,1,x,0\np2,2,y,1\np3,3,x,0\n",
    "quotes": b'person,a,b,y\n"p\n1",1,"x,""y",0\np2,2,y,1\n',
    "ragged": b"person,a,b,y\np1,1\np2,2,y,1,9,9\n",
    "huge_numbers": b"person,a,b,y\np1,1e999,x,0\np2,-1e308,y,1\n",
    "not_text": bytes(range(256)) * 4,
    "header": b"person,a,b,y\n",
    "twice": b"person,a,a,y\np1,1,2,0\n",
}


def parquets() -> dict[str, bytes]:
    """Tables of pyarrow; a few bytes that are many rows, and many times a long word."""
    rows = 3_000_000
    word = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000, pa.int32()), pa.array(["x" * 2_000_000]))
    tables = {
        "good": pa.table({"person": ["p1", "p2"], "a": [1.0, None], "b": ["x", "y"], "y": [0, 1]}),
        "odd_types": pa.table({"person": ["p1"], "a": [[1, 2]], "b": [b"x"], "y": [{"z": 1}]}),
        "many_rows": pa.table({name: pa.nulls(rows, pa.float64()) for name in ("person", "a", "b", "y")}),
        "long_word": pa.table({"person": [str(n) for n in range(3_000)], "a": [1.0] * 3_000, "b": word, "y": word}),
    }
    few, long = pa.array(range(700)), ["x" * 1_000_000] * 700
    for kind in (pa.large_string(), pa.binary()):
        columns = {"person": few, "a": few, "b": pa.array(long, kind), "y": pa.array([0, 1] * 350)}
        tables[f"long_{kind}"] = pa.table(columns)
    made = {}
    for name, table in tables.items():
        file = io.BytesIO()
        parquet.write_table(table, file, compression="zstd")
        made[name] = file.getvalue()
    return made
