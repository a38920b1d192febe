"""Data set plug-ins that return what nobody can use."""

import sys
import types
from dataclasses import replace

import pytest
import torch

from vfl.config import parse_config
from vfl.datasets import Data, DataSet
from vfl.datasets.columns import Column
from vfl.datasets.slices import data_facts, load_data
from vfl.errors import UserError

TABLE = Data("table", torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0]), 2, ("a", "b", "c"))
IMAGES = replace(TABLE, kind="image", x=torch.rand(3, 1, 4, 4))


@pytest.fixture
def config_of(monkeypatch):
    def make(loaded):
        class Mine(DataSet):
            """A data set of somebody else."""

            def load(self):
                return loaded

        module = types.ModuleType("mine")
        module.Set = Mine
        monkeypatch.setitem(sys.modules, "mine", module)
        federation = {"workers": 1, "batch_size": 2, "epochs": 1}
        return parse_config({"data": {"name": "mine:Set"}, "federation": federation}, "the test")

    return make


@pytest.mark.parametrize("data", [TABLE, IMAGES, replace(TABLE, x_test=TABLE.x, y_test=TABLE.y)])
def test_data_that_fit_are_taken(config_of, data):
    assert load_data(config_of(data)) is data
    assert data_facts(config_of(data)).samples == 3


@pytest.mark.parametrize(
    ("loaded", "words"),
    [
        (None, r"load\(\) of mine:Set returned NoneType, expected a vfl\.datasets\.Data"),
        ((TABLE.x, TABLE.y), r"load\(\) of mine:Set returned tuple"),
        (replace(TABLE, kind="text"), "mine:Set loaded data that cannot be used: kind is 'text'"),
        (replace(TABLE, x=TABLE.x.numpy()), "x is of the type ndarray"),
        (replace(TABLE, x=TABLE.x.double()), r"x is torch\.float64 of shape \(3, 2\), expected torch\.float32"),
        (replace(TABLE, x=TABLE.x.flatten()), r"of shape \(6,\), expected torch\.float32 of shape \(N, columns\)"),
        (replace(TABLE, x=TABLE.x / torch.zeros(2)), "x has missing or infinite values"),
        (replace(IMAGES, x=IMAGES.x * 255), "x has pixels from .* expected 0 to 1"),
        (replace(IMAGES, x=IMAGES.x[:, 0]), r"expected torch\.float32 of shape \(N, channels, height, width\)"),
        (replace(TABLE, y=TABLE.y[:2]), r"y is torch\.int64 of shape \(2,\), expected torch\.int64 of shape \(3,\)"),
        (replace(TABLE, y=TABLE.y.float()), r"y is torch\.float32"),
        (replace(TABLE, classes=1), "y has labels from 0 to 1, and classes is 1"),
        (replace(TABLE, classes=None), "classes is None"),
        (replace(TABLE, ids=("a",)), "there are 3 samples and 1 ids"),
        (replace(TABLE, ids=("a", "b", "a")), "two samples have the same id"),
        (replace(TABLE, ids=(1, 2, 3)), "ids is not a tuple of texts"),
        (replace(TABLE, x_test=TABLE.x), "of x_test and y_test one is None"),
        (replace(TABLE, x_test=TABLE.x[:, :1], y_test=TABLE.y), r"x_test has samples of shape \(1,\), x of \(2,\)"),
        (replace(TABLE, columns=(Column("a"),)), "its columns make 1 features"),
        (replace(TABLE, columns=(Column("a"), Column("b")), groups=(1,)), "groups divides 1 columns, and there are 2"),
        (replace(TABLE, class_names=("yes",)), "there are 2 classes and 1 class_names"),
    ],
)
def test_what_a_plug_in_should_not_have_loaded_gets_a_sentence(config_of, loaded, words):
    with pytest.raises(UserError, match=words):
        load_data(config_of(loaded))
    with pytest.raises(UserError, match=words):
        data_facts(config_of(loaded))
