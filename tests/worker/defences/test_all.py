"""What every registered defence must keep, whatever the gradients look like."""

import json
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.worker.defences.support import numbers, played, started
from worker.defences import defences

NEEDED: dict[str, dict[str, Any]] = {"dp": {"noise_multiplier": 1.0, "batches": "known"}, "fake_gradients": {"nu": 20}}
NOT_OF_UPLOADS = [name for name in defences.names() if "uploads" not in defences.find(name).places]
VARIANTS: list[tuple[str, dict[str, Any]]] = [  # `breaker` may withhold
    *((name, NEEDED.get(name, {})) for name in defences.names() if name not in ("breaker", *NOT_OF_UPLOADS)),
    *(("fake_gradients", {"nu": 5, "reading": reading}) for reading in ("bounded", "unscaled", "printed")),
    *(("fake_gradients", {"nu": 5, "zeros": zeros}) for zeros in ("ordered", "kept")),
    ("noise", {"kind": "laplace", "scale": 2.0}),
    ("noise", {"relative": False}),
    ("quantize", {"bits": 1}),
    ("quantize", {"bits": 2, "stochastic": True}),
    ("soteria", {"mask": "batch"}),
]
HARMLESS: list[tuple[str, dict[str, Any], float]] = [
    ("none", {}, 0.0),
    ("noise", {"scale": 0.0}, 0.0),
    ("noise", {"scale": 0.0, "kind": "laplace", "relative": False}, 0.0),
    ("prune", {"keep": 1.0}, 0.0),
    ("quantize", {"bits": 16}, 2**-15),
    ("clip", {"norm": 1e38}, 0.0),
    ("soteria", {"share": 0.0}, 0.0),
]


@st.composite
def rounds(draw: st.DrawFn) -> tuple[nn.Module, Tensor, dict[str, Tensor]]:
    inputs, outputs, batch = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 5))
    shapes = draw(st.lists(st.lists(st.integers(1, 7), max_size=4), max_size=3))
    size, zeros = 10.0 ** draw(st.integers(-25, 12)), draw(st.sampled_from([0.0, 0.5, 1.0]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    model = nn.Sequential(OrderedDict(fc=nn.Linear(inputs, outputs)))
    named = {"bottom.fc.weight": [outputs, inputs], "bottom.fc.bias": [outputs]}
    named |= {f"top.{at}": shape for at, shape in enumerate(shapes)}
    gradients = {}
    for at, (name, shape) in enumerate(named.items()):
        values = numbers(*shape, seed=at)
        kept = torch.rand(shape, generator=torch.Generator().manual_seed(at)) >= zeros
        gradients[name] = (values * kept * size).to(dtype)
    return model, numbers(batch, inputs), gradients


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@settings(max_examples=25, deadline=None)
@given(case=rounds())
def test_names_shapes_and_dtypes_stay_and_all_is_finite(
    name: str, options: dict[str, Any], case: tuple[nn.Module, Tensor, dict[str, Tensor]]
) -> None:
    model, x, gradients = case
    before = {key: tensor.clone() for key, tensor in gradients.items()}
    found = started(name, **options).apply(gradients, played(model, x))
    assert list(found) == list(gradients)
    for key, tensor in found.items():
        assert tensor.shape == gradients[key].shape
        assert tensor.dtype == gradients[key].dtype
        assert bool(tensor.isfinite().all())
        assert torch.equal(gradients[key], before[key]), "a defence must not write into the true gradients"


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@settings(max_examples=10, deadline=None)
@given(case=rounds())
def test_same_generator_same_upload(
    name: str, options: dict[str, Any], case: tuple[nn.Module, Tensor, dict[str, Tensor]]
) -> None:
    model, x, gradients = case
    first, second = (started(name, **options).apply(gradients, played(model, x)) for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in gradients)


@pytest.mark.parametrize(("name", "options", "error"), HARMLESS)
@settings(max_examples=20, deadline=None)
@given(case=rounds())
def test_without_strength_nothing_changes(
    name: str, options: dict[str, Any], error: float, case: tuple[nn.Module, Tensor, dict[str, Tensor]]
) -> None:
    model, x, gradients = case
    found = started(name, **options).apply(gradients, played(model, x))
    for key, tensor in gradients.items():
        assert float((found[key] - tensor).abs().max()) <= error * float(tensor.abs().max())


@pytest.mark.parametrize("name", [name for name in defences.names() if name not in ("breaker", *NOT_OF_UPLOADS)])
def test_report_can_be_written_as_json(name: str) -> None:
    shield = started(name, **NEEDED.get(name, {}))
    gradients = {"bottom.fc.weight": numbers(3, 6), "bottom.fc.bias": numbers(3)}
    shield.apply(gradients, played(nn.Sequential(OrderedDict(fc=nn.Linear(6, 3))), numbers(2, 6)))
    json.dumps(shield.report(), allow_nan=False)
