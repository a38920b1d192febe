"""What the tests share: a config for the command (sixty digits, four workers), a coordinator for raw messages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.protocol_support import RawCoordinator, RawWorker

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


@pytest.fixture
def coordinator(tmp_path) -> Iterator[RawCoordinator]:
    raw = RawCoordinator(tmp_path)
    yield raw
    raw.close()


@pytest.fixture
def pair(coordinator):
    """Two workers in the first round."""
    workers = [RawWorker(coordinator, 0), RawWorker(coordinator, 1)]
    assert [worker.next_round().round for worker in workers] == [1, 1]
    return workers
