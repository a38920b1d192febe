"""What a worker's check of output widths may cost."""

import subprocess
import sys

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
