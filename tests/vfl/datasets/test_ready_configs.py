"""The ready configs for tables pass the checks that `cafe run` begins with, and give away what they are to show."""

from pathlib import Path

import numpy as np
import pytest

from vfl.config import load_config
from vfl.datasets.slices import boxes_of, load_data
from vfl.errors import UserError
from vfl.folder.schema import as_json
from vfl.local.launch import check, run_federation
from vfl.referee import score_run

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "tables"
CREDIT = [
    *("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0"),
    *(f"PAY_{month}" for month in range(2, 7)),
    *(f"{kind}{month}" for kind in ("BILL_AMT", "PAY_AMT") for month in range(1, 7)),
]


@pytest.fixture
def credit(tmp_path, monkeypatch):
    """An archive laid out as the bank's is, with made-up numbers."""
    random = np.random.default_rng(0)
    x = random.normal(50_000, 20_000, (2100, len(CREDIT)))
    for name, kinds in (("SEX", 2), ("EDUCATION", 4), ("MARRIAGE", 3)):
        x[:, CREDIT.index(name)] = random.integers(1, kinds + 1, len(x))
    np.savez(tmp_path / "credit_default.npz", x=x, y=random.integers(0, 2, len(x)), feature_names=np.array(CREDIT))
    monkeypatch.setenv("CAFE_DATA", str(tmp_path))


@pytest.mark.usefixtures("credit")
def test_credit_passes_the_checks_before_round_one():
    config = load_config(CONFIGS / "credit.yaml")
    data = load_data(config)
    assert len(data.columns) == 23
    assert data.groups == (6, 6, 6, 5)
    assert [box.shape for box in boxes_of(data, config)] == [(12,), (6,), (6,), (5,)]  # 2, 4 and 3 categories
    check(config, data)


@pytest.mark.usefixtures("credit")
def test_credit_with_too_few_epochs_is_refused_before_round_one():
    config = load_config(CONFIGS / "credit.yaml", ["federation.epochs=2"])
    with pytest.raises(UserError, match="it needs 33 epochs "):
        check(config, load_data(config))


@pytest.mark.parametrize(("samples", "epochs"), [(250, 36), pytest.param(2000, 36, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("credit")
def test_credit_loses_its_rows_also_those_of_short_batches(samples, epochs, tmp_path):
    changes = [f"data.samples={samples}", f"federation.epochs={epochs}"]
    config = load_config(CONFIGS / "credit.yaml", changes)
    assert samples % config.federation.batch_size != 0
    data = load_data(config)
    run_federation(config, data, tmp_path / "out")
    found = as_json(score_run(tmp_path / "out", config, data).attack)
    assert found["share_exact"] >= 0.999
    assert found["label_accuracy"] == 1


def test_breast_cancer_passes_the_checks_before_round_one():
    config = load_config(CONFIGS / "breast_cancer.yaml")
    data = load_data(config)
    assert [box.shape for box in boxes_of(data, config)] == [(15,), (15,)]
    check(config, data)
