"""What a worker's check of output widths may cost."""

import subprocess
import sys

import pytest
import torch

from tests.support import small_config
from vfl.datasets.slices import load_data, slice_for
from vfl.errors import UserError
from worker.widths import Widths

CHECK = """
import sys
from tests.support import small_config
from vfl.datasets.slices import load_data, slice_for
from worker.widths import Widths

config = small_config(model={"name": "cafe_cnn"}, federation={"workers": 2, "batch_size": 4})
widths = Widths(config, slice_for(load_data(config), config, 0), 0)
print(*widths.problems([10, 11]))
print("torch._dynamo" in sys.modules)
"""


def test_widths_are_checked_without_torchs_compiler_which_takes_a_second_to_import():
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    problems, imported = done.stdout.splitlines()
    assert "worker 1 has outputs of 11, this worker 10" in problems
    assert "worker 0" not in problems
    assert imported == "False"


def bounds(section, path, columns=5):
    """The label holder's word on outputs of 10 and 1 << 30, if it has so many of ten columns of a table."""
    torch.manual_seed(0)
    path.write_text(
        "a,b,c,d,e,f,g,h,i,j,label\n"
        + "".join(f"{','.join(map(str, torch.rand(10).tolist()))},{n % 2}\n" for n in range(8))
    )
    names = list("abcdefghij")
    config = small_config(
        data={
            "name": "csv",
            "path": str(path),
            "label": "label",
            "samples": 8,
            "test_samples": 0,
            "columns": [names[:columns], names[columns:]],
        },
        federation={"workers": 2, "batch_size": 4},
        model=section,
    )
    return list(Widths(config, slice_for(load_data(config), config, 0), 0).problems([10, 1 << 30]))


FIXED = "tests.worker.test_widths:six_columns"


def six_columns(shape):
    return torch.nn.Linear(6, 10)


@pytest.mark.parametrize(
    "section",
    [
        {"name": "embedded", "numbers": 4},  # takes five columns or more
        {"name": "mlp", "bottoms": {1: {"name": FIXED}}},  # takes six, which the other worker need not have
    ],
)
def test_another_workers_slice_is_none_that_its_model_cannot_be_built_for(section, tmp_path):
    (problem,) = bounds(section, tmp_path / "table.csv")
    assert "worker 1 has outputs of 1073741824, this worker 10" in problem


def test_a_model_that_takes_no_slice_of_the_table_is_said(tmp_path):
    with pytest.raises(UserError, match=r"model embedded cannot be built for a slice of shape \(10,\)"):
        bounds({"name": "mlp", "bottoms": {1: {"name": "embedded", "numbers": 40}}}, tmp_path / "table.csv")
