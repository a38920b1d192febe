"""Which layers are found by running a sample through, and what lies before them."""

import pytest
import torch
from torch import nn

from examples import architectures
from vfl.models import output_width
from vfl.models.layers import evaluating, fully_connected, representation
from vfl.models.stem import dense_functions, stem

SHAPE = (1, 8, 4)


@pytest.mark.parametrize(
    ("name", "inputs", "sees_data", "before"),
    [
        ("gelu_mlp", 32, True, ()),
        ("residual_mlp", 32, True, ()),
        ("small_transformer", 32, True, ()),
        ("layernorm_mlp", 32, False, ("layer norm",)),
        ("tanh_cnn", 256, False, ("convolution", "tanh")),
        ("gap_cnn", 16, False, ("convolution", "ReLU", "average pooling")),
        ("groupnorm_cnn", 256, False, ("convolution", "group norm", "ReLU")),
        ("resnet18_stem", 128, False, ("convolution", "batch norm", "ReLU", "max-pooling")),
    ],
)
def test_the_first_fully_connected_layer_and_what_lies_before_it(name, inputs, sees_data, before):
    model = getattr(architectures, name)(SHAPE)
    first = fully_connected(model, SHAPE)[0]
    assert (first.inputs, first.sees_data, first.bias) == (inputs, sees_data, True)
    assert stem(model, first.name, SHAPE) == before


def test_a_layer_that_meets_a_sample_in_several_rows_is_none():
    model = architectures.patch_transformer(SHAPE)
    first = fully_connected(model, SHAPE)[0]
    assert first.inputs == 2 * 64
    assert {"dense layers", "attention"} <= set(stem(model, first.name, SHAPE))


def test_a_layer_that_is_used_twice_is_none():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.again, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.again(self.again(x)))

    assert [layer.name for layer in fully_connected(Twice(), (4,))] == ["out"]


def test_looking_at_a_model_leaves_its_modes_and_statistics_alone():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[0].eval()
    fully_connected(model, (4,))
    assert output_width(model, (4,)) == 2
    with evaluating(model):
        assert not model[1].training
    assert [part.training for part in model] == [False, True, True]
    assert torch.equal(model[0].running_mean, torch.zeros(4))


class ByHand(nn.Module):
    """Dense layers as functions, in four ways, then one as a module."""

    def __init__(self, shape, out: bool = True):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Parameter(torch.randn(shape[0], shape[0])) for _ in range(4))
        self.bias = nn.Parameter(torch.zeros(shape[0]))
        self.out = nn.Linear(shape[0], 3) if out else nn.Identity()

    def forward(self, x):
        h = torch.relu(nn.functional.linear(x, self.a, self.bias))
        h = torch.relu(h @ self.b.T)
        h = torch.addmm(self.bias, h, self.c)
        return self.out(torch.einsum("nd,qd->nq", h, self.d))


def test_dense_layers_that_are_written_as_functions_are_named():
    assert dense_functions(ByHand((6,)), "out", (6,)) == ("a", "b", "c", "d")
    assert dense_functions(ByHand((6,), out=False), None, (6,)) == ("a", "b", "c", "d")
    transformer = architectures.patch_transformer(SHAPE)
    assert dense_functions(transformer, fully_connected(transformer, SHAPE)[0].name, SHAPE) == ()


class Shifted(nn.Module):
    """Changes its input in place."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        x -= 0.5
        return self.out(x)


@pytest.mark.parametrize(
    "first", [nn.ReLU(), nn.LeakyReLU(), nn.ELU(), nn.Hardtanh(), nn.ReLU6(), nn.Hardshrink(), nn.Hardtanh(-4, 4)]
)
@pytest.mark.parametrize("size", [1, 5])
def test_an_activation_before_the_layer_is_seen_where_small_positive_numbers_pass_it(first, size):
    assert not fully_connected(nn.Sequential(first, nn.Linear(size, 3)), (size,))[0].sees_data
    assert fully_connected(nn.Sequential(nn.Flatten(), nn.Linear(size, 3)), (size,))[0].sees_data


def test_a_model_that_changes_its_input_in_place_does_not_hide_it():
    assert not fully_connected(Shifted(), (5,))[0].sees_data
    x = torch.zeros(2, 5, requires_grad=True)
    assert torch.equal(representation(Shifted(), "out", x), torch.full((2, 5), -0.5))


def test_a_model_that_refuses_large_numbers_is_still_looked_at():
    class Bounded(nn.Sequential):
        def forward(self, x):
            if float(x.abs().max()) > 1:
                raise ValueError("not an image")
            return super().forward(x)

    assert not fully_connected(Bounded(nn.Linear(4, 2)), (4,))[0].sees_data
