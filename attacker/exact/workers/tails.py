"""The known layers after the attacked one: what a worker's h makes the label holder see, and what v says back."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.steady import ROWS, mixes
from vfl.partition import Shape

NEAR_ZERO = 1e-5
"""Outputs of the layer this close to zero (relative to its largest): rounding decides whether ReLU passes them."""

CHUNK = 1024
"""Samples whose derivatives are in memory at once: each has as many as outputs times the length of what is sent."""


@dataclass(frozen=True)
class Tail:
    """The rest of a worker's model at every sample's activation."""

    z: Tensor
    """(samples, width): the vector that the worker sends, NaN where h is unknown."""
    jacobian: Tensor
    """(samples, width, outputs): its derivative by the layer's outputs."""
    sure: Tensor
    """(samples, outputs): where the layer's output is so far from zero that its ReLU is beyond doubt."""


def run_tail(model: nn.Module, layer: str, shape: Shape, h: Tensor, *, x: Tensor | None = None) -> Tail:
    """Run a bottom model from the layer's inputs h (samples, inputs) to its end, in float64.

    Where data also go past the layer (`bypassed`), their slices x are needed too.
    """
    linear = model.get_submodule(layer)
    assert isinstance(linear, nn.Linear)
    known = h.isfinite().all(dim=1)
    with torch.no_grad():
        bias = 0.0 if linear.bias is None else linear.bias
        outputs = h[known] @ linear.weight.T + bias
    outputs.requires_grad_()
    sent = _from(model, linear, shape, outputs) if x is None else _with(model, linear, x[known].double(), outputs)
    width = sent.shape[1]
    rows = [torch.autograd.grad(sent[:, i].sum(), outputs, retain_graph=i + 1 < width)[0] for i in range(width)]
    z = h.new_full((len(h), width), torch.nan)
    jacobian = h.new_full((len(h), width, outputs.shape[1]), torch.nan)
    sure = torch.zeros(len(h), outputs.shape[1], dtype=torch.bool)
    if bool(known.any()):
        z[known] = sent.detach().to(z)
        jacobian[known] = torch.stack(rows, dim=1)
        sure[known] = outputs.detach().abs() > NEAR_ZERO * outputs.detach().abs().amax(dim=1, keepdim=True)
    return Tail(z, jacobian, sure)


def bypassed(model: nn.Module, layer: str, shape: Shape) -> bool:
    """Tell whether data reach the end of a model in float64 also past the layer, as in a residual block around it."""
    linear = model.get_submodule(layer)
    assert isinstance(linear, nn.Linear)
    probes = torch.rand(2, 1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs = torch.full((1, linear.out_features), 0.5, dtype=torch.float64)
    with torch.no_grad():
        one, other = (_with(model, linear, probe, outputs) for probe in probes)
    return not torch.equal(one, other)


def cut_off(model: nn.Module, layer: str, shape: Shape, h: Tensor, *, x: Tensor | None = None) -> Tensor:
    """Tell which of the layer's outputs (samples, outputs) have no way to the end of the model at these h."""
    found = []
    for rows in torch.arange(len(h)).split(CHUNK):
        tail = run_tail(model, layer, shape, h[rows], x=None if x is None else x[rows])
        found.append(tail.sure & (tail.jacobian == 0).all(dim=1))
    return torch.cat(found)


def affine_after(model: nn.Module, layer: str, shape: Shape) -> bool:
    """Tell whether nothing but affine maps follows a layer, so that all derivatives are the same everywhere."""
    model = copy.deepcopy(model).double().eval()
    linear = model.get_submodule(layer)
    assert isinstance(linear, nn.Linear)
    probes = torch.randn(2, linear.in_features, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, other = run_tail(model, layer, shape, 10 * probes).jacobian
    return torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def mixes_after(model: nn.Module, layer: str, shape: Shape) -> bool:
    """Tell whether what follows a layer makes something else of samples in other company, as batch norm does."""
    width = model.get_submodule(layer).out_features
    assert isinstance(width, int)
    draws = torch.Generator().manual_seed(0)
    x, outputs = torch.rand(len(ROWS), *shape, generator=draws), torch.randn(len(ROWS), width, generator=draws)

    def run(model: nn.Module, rows: Tensor) -> Tensor:
        linear = model.get_submodule(layer)
        assert isinstance(linear, nn.Linear)
        return _with(model, linear, x[rows], outputs[rows])

    return mixes(model, run)


def possible_v(model: nn.Module, layer: str, shape: Shape, h: Tensor, *, through: Tensor | None = None) -> Tensor:
    """Return what spans (samples, outputs, width) every v that the rest of the model can send back at these h.

    `through` (width, fewer) spans what comes back to the end of the model, where that is not everything.
    """
    found = torch.cat([run_tail(model, layer, shape, rows).jacobian.mT for rows in h.split(CHUNK)])
    return found if through is None else found @ through


def top_jacobian(top: nn.Module, widths: Sequence[int]) -> list[Tensor] | None:
    """Return d logits / d z for each worker (classes, width) if the top model is affine, else None."""
    total = sum(widths)
    probe = torch.randn(2, total, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    jacobians = [torch.autograd.functional.jacobian(top, point[None])[0, :, 0] for point in probe]
    if not torch.allclose(jacobians[0], jacobians[1], rtol=1e-9, atol=1e-12):
        return None
    return list(jacobians[0].split(list(widths), dim=1))


def _from(model: nn.Module, layer: nn.Linear, shape: Shape, outputs: Tensor) -> Tensor:
    """Return the model's output when the layer puts out `outputs`, whatever came before it."""
    blank = torch.zeros(1, *shape, dtype=torch.float64)
    every = blank.expand(len(outputs), *shape)
    try:
        # What comes before the layer does not matter, so one blank slice stands for all of them
        sent = _with(model, layer, blank, outputs)
    except RuntimeError:  # a model that reads the batch size off its input
        return _with(model, layer, every, outputs)
    return sent if sent.shape[0] == len(outputs) else _with(model, layer, every, outputs)


def _with(model: nn.Module, layer: nn.Linear, x: Tensor, outputs: Tensor) -> Tensor:
    """Return the model's output for x when the layer puts out `outputs`."""
    handle = layer.register_forward_hook(lambda *_: outputs)
    try:
        sent: Tensor = model(x)
    finally:
        handle.remove()
    return sent
