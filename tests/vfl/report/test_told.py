"""Samples that the adversary knew from elsewhere are no part of the report's pictures."""

import numpy as np
import pytest

from tests.support import small_config
from vfl.datasets.slices import load_data
from vfl.local.simulation import simulate
from vfl.report.folder import read_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("told")
    options = {"name": "inverse_network", "steps": 2}
    config = small_config(adversary="label_holder", auxiliary=12, attack=options)
    data = load_data(config)
    simulate(config, data, out)
    return out, data


def test_known_samples_are_left_out_and_the_others_keep_their_numbers(run):
    out, data = run
    found = read_run(out)
    assert found.numbers.tolist() == list(range(12, len(data.x)))
    assert np.array_equal(found.truth, data.x[12:].numpy())
    assert found.summary.scored == len(data.x) - 12


def test_a_file_that_says_it_of_other_samples_than_it_has_is_not_read(run, tmp_path):
    out, _ = run
    arrays = dict(np.load(out / "recovered.npz"))
    (tmp_path / "summary.json").write_text((out / "summary.json").read_text())
    np.savez(tmp_path / "recovered.npz", **{**arrays, "told": np.ones(3, dtype=bool)})
    assert "told for 3" in read_run(tmp_path).problem
