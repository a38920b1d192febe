"""Models as plain torch factories, and the `model` section's own keys."""

import random
import sys

import numpy as np
import pytest
import torch
from torch import nn

from vfl.config import ModelSection, parse_config
from vfl.errors import UserError
from vfl.models import build_bottom, build_top
from vfl.models.whole import whole_model

SOURCE = '''
import random
import numpy as np
import torch
from torch import nn

def bottom(shape, width: int = 5, deep=False):
    """A dense layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], width))

class Net(nn.Module):
    def __init__(self, shape, bias: bool = True):
        super().__init__()
        self.fc = nn.Linear(shape[0], 3, bias=bias)
    def forward(self, x):
        return self.fc(x)

def top(widths, classes, hidden: int = 4):
    return nn.Sequential(nn.Linear(sum(widths), hidden), nn.ReLU(), nn.Linear(hidden, classes))

def nothing():
    return nn.Identity()

def misnamed(shape, top=1):
    return nn.Identity()

def a_list(shape):
    return [1]

def crooked(shape):
    return nn.Linear(99, 2)

class Drawn(nn.Module):
    """Constants from whatever generator there is."""
    def __init__(self, shape):
        super().__init__()
        self.fc = nn.Linear(shape[0], 3)
        drawn = [random.random(), np.random.rand(), random.randrange(2**62), np.random.randint(2**31)]
        self.register_buffer("drawn", torch.tensor(drawn, dtype=torch.float64))
    def forward(self, x):
        return self.fc(x)

def failing(shape):
    return {}["weights"]

class Made(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.fc, self.make = nn.Linear(4, 3), make
    def forward(self, x):
        return self.make(self.fc(x))

MAKE = {
    "int64": lambda z: z.long(), "float64": lambda z: z.double(), "bfloat16": lambda z: z.bfloat16(),
    "complex": lambda z: z + 0j, "sparse": lambda z: z.to_sparse(), "flattened": lambda z: z.reshape(1, -1),
    "one number": lambda z: z.sum(), "no width": lambda z: z[:, :0], "a tuple": lambda z: (z,),
}

def made(shape, how: str):
    return Made(MAKE[how])

def made_top(widths, classes, how: str):
    return nn.Sequential(nn.Linear(sum(widths), 4), Made(MAKE[how]))

def configured(shape, model_config=1):
    return nn.Identity()

def validated(shape, model_validate=1):
    return nn.Identity()

def hidden(shape, _width=1):
    return nn.Identity()

def within(shape, factory=1):
    return nn.Identity()

def strange(shape, width: "a word" = 3):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], width))
'''


@pytest.fixture(autouse=True)
def _own_models(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_models", None)


def section(name: str, **more) -> ModelSection:
    return ModelSection(name=f"own_models:{name}", **more)


def test_a_function_or_a_module_class_is_a_model_and_its_parameters_are_options():
    assert build_bottom(section("bottom", width=7), (4,), 0, 0)[1].out_features == 7
    assert build_bottom(section("Net", bias=False), (4,), 0, 0).fc.bias is None
    first, again, other = (build_bottom(section("bottom"), (4,), 0, worker)[1].weight for worker in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_constants_are_the_same_at_every_party_whichever_generator_they_come_from():
    def drawn(worker, seed=0):
        return build_bottom(section("Drawn"), (4,), seed, worker).drawn

    random.seed(1)
    np.random.seed(1)
    first, states = drawn(0), (random.getstate(), np.random.get_state()[1].tolist())
    random.seed(2)  # as another process, or another draw before
    np.random.seed(2)
    assert torch.equal(drawn(0), first)
    assert not (drawn(1) == first).any()
    assert not (drawn(0, seed=1) == first).any()
    random.seed(1)
    np.random.seed(1)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states, "what was there before is there again"


def test_the_top_may_be_a_factory_too():
    top = build_top(section("bottom", top={"name": "own_models:top", "hidden": 6}), [5, 5], 3, 0)
    assert [layer.out_features for layer in top if isinstance(layer, nn.Linear)] == [6, 3]
    assert build_top(section("bottom"), [5, 5], 3, 0).fc.out_features == 3


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing", r"own_models:nothing' must be called as factory\(shape, …\)"),
        ("misnamed", "no option is called name, top"),
        ("a_list", "its bottom model is list, not a torch.nn.Module"),
        ("crooked", r"cannot run on a slice of shape \(4,\)"),
        (
            "failing",
            r"the model plug-in own_models:failing failed in bottom: KeyError: 'weights' \(own_models.py, line",
        ),
        ("missing", "'own_models:missing' cannot be imported"),
        ("configured", "an option cannot be called 'model_config'; rename this parameter of own_models:configured"),
        ("validated", "an option cannot be called 'model_validate'; rename this parameter of own_models:validated"),
        ("hidden", "an option cannot be called '_width'"),
        ("within", "an option cannot be called 'factory'"),
    ],
)
def test_what_is_wrong_with_a_factory_is_a_sentence_that_names_it(name, sentence):
    with pytest.raises(Exception, match=sentence) as caught:
        whole_model(section(name), [(4,)], 2, 0)
    assert isinstance(caught.value, UserError) or name == "failing"


@pytest.mark.parametrize(
    ("how", "made"),
    [
        ("int64", r"int64 \(2, 3\)"),
        ("float64", r"float64 \(2, 3\)"),
        ("bfloat16", r"bfloat16 \(2, 3\)"),
        ("complex", r"complex64 \(2, 3\)"),
        ("sparse", r"sparse_coo \(2, 3\)"),
        ("flattened", r"\(1, 6\)"),
        ("one number", r"\(\)"),
        ("no width", r"\(2, 0\)"),
        ("a tuple", "tuple"),
    ],
)
def test_a_bottom_model_puts_out_a_dense_float32_vector_for_each_sample(how, made):
    told = rf"model own_models:made: a bottom model must .* a dense float32 tensor; it made {made} of two samples"
    with pytest.raises(UserError, match=told):
        whole_model(section("made", how=how), [(4,)], 2, 0)


@pytest.mark.parametrize(("how", "made"), [("int64", r"int64 \(2, 3\)"), ("sparse", r"sparse_coo \(2, 3\)")])
def test_a_top_model_puts_out_numbers_that_a_loss_can_be_made_of(how, made):
    with pytest.raises(UserError, match=rf"the top model of own_models:made_top must .*; it made {made} of two"):
        build_top(section("bottom", top={"name": "own_models:made_top", "how": how}), [5], 3, 0)


@pytest.mark.parametrize("name", ["torch:relu", "builtins:dict"])
def test_what_does_not_tell_its_parameters_is_no_model(name):
    with pytest.raises(
        UserError, match=rf"'{name}' does not tell its parameters, .* name a function factory\(shape, …"
    ):
        build_bottom(ModelSection(name=name), (4,), 0, 0)


def test_an_annotation_that_means_nothing_is_no_type():
    assert build_bottom(section("strange", width=6), (4,), 0, 0)[1].out_features == 6


def test_an_unknown_option_is_named_with_those_that_there_are():
    with pytest.raises(
        UserError, match=r"model.widht: there is no such key \(own_models:bottom has the options width, d"
    ):
        build_bottom(section("bottom", widht=3), (4,), 0, 0)


def test_workers_may_have_different_bottom_models():
    mixed = section("bottom", bottoms={1: {"name": "own_models:Net"}})
    whole = whole_model(mixed, [(4,), (2,), (1,)], 2, 0)
    assert whole.widths == [5, 3, 5]
    assert [next(bottom.parameters()).shape[1] for bottom in whole.bottoms] == [4, 2, 1]


def test_shared_bottom_models_are_one_and_need_slices_of_one_shape():
    whole = whole_model(section("bottom", shared=True), [(4,), (4,)], 2, 0)
    assert whole.bottoms[0] is whole.bottoms[1]
    mine = build_bottom(section("bottom", shared=True), (4,), 0, 1)
    assert torch.equal(mine[1].weight, whole.bottoms[0][1].weight)
    with pytest.raises(UserError, match=r"worker 0 holds slices of shape \(4,\), worker 1 of \(3,\)"):
        whole_model(section("bottom", shared=True), [(4,), (3,)], 2, 0)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"bottoms": {4: {"name": "mlp"}}}, "model.bottoms names worker 4, but the workers are 0 to 3"),
        ({"bottoms": {1: {}}}, "model.bottoms.1.name: is missing"),
        ({"shared": True, "bottoms": {1: {"name": "mlp"}}}, "cannot share parameters"),
    ],
)
def test_the_sections_own_keys_are_checked(model, sentence):
    tree = {"data": {"name": "digits"}, "federation": {"batch_size": 4, "epochs": 1}, "model": {"name": "mlp", **model}}
    with pytest.raises(UserError, match=sentence):
        parse_config(tree, "the test")
