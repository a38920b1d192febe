"""The config of the tests of the command: sixty digits, four workers, least squares."""

from pathlib import Path

import pytest

CONFIG = """
seed: 1
data: {name: digits, samples: 60, test_samples: 20}
federation: {workers: 4, batch_size: 6, epochs: 8, join_timeout: 60, round_timeout: 60}
model: {name: mlp, hidden: [16]}
attack: {name: least_squares}
"""


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path
