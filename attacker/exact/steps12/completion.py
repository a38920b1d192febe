"""Fewer rounds than least squares needs: a sample's gradient is of rank one, which completes what rounds leave open.

Sample n sends G_n = v_n (h_n, 1)^T, weight and bias gradient side by side. The rounds show S G with S of rank r, and
r < N leaves N - r matrices free. But each G_n is a product of few numbers: given all h, the v solve a linear system
with the matrix (S^T S) * (H H^T), entry by entry, and given all v, the h do. Taking turns from the least-norm solution
(alternating least squares) finds both if there are a few times as many equations as numbers in the factors. With a
single output, as in logistic regression, every matrix is of rank one anyway, and this says nothing.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attacker.exact.steps12.solve import Solved
from attacker.least_squares import SKETCH
from attacker.refusal import Lack
from vfl.maths.least_squares import batch_matrix
from vfl.models.layers import FullyConnected
from vfl.observation import Setting

MARGIN = 3.0
"""Equations per unknown; measured on tables, where 2.3 was too few and 3.6 enough."""
MOST_SAMPLES = 5_000
"""Each turn solves systems of as many equations as there are samples."""
MOST_TURNS = 300
SETTLED = 1e-6
"""A relative residual that is only the gradients' rounding."""
ALL_OUTPUTS = 128
"""Layers up to this width are kept whole, so that v is known in full; wider ones are sketched."""


def too_few_rounds(setting: Setting, layers: Sequence[FullyConnected]) -> Lack | None:
    """Return what rank one lacks to complete these rounds, None when it should."""
    n = setting.samples
    if n > MOST_SAMPLES:
        return Lack(f"at most {MOST_SAMPLES} samples", f"there are {n}")
    shares = [MARGIN * (kept(layer) + layer.inputs) / (kept(layer) * (layer.inputs + 1)) for layer in layers]
    worker = max(range(len(shares)), key=shares.__getitem__)
    if shares[worker] >= 1:
        own = layers[worker]
        return Lack("larger first layers", f"worker {worker}'s has {own.inputs} inputs and {own.outputs} outputs")
    per_epoch = math.ceil(n / setting.batch_size)
    epochs = setting.rounds / per_epoch
    if epochs < 2:
        return Lack("2 epochs or more", f"the run has {epochs:g}")
    rank = min(n, setting.rounds) if setting.schedule == "uniform" else epochs * (per_epoch - 1)
    if rank >= shares[worker] * n:
        return None
    needed = math.ceil(shares[worker] * n / max(1, per_epoch - 1))
    return Lack(f"about {needed} epochs ({needed * per_epoch} rounds)", f"the run has {epochs:g}")


def kept(layer: FullyConnected) -> int:
    """Return how many rows are kept of a layer's gradient."""
    return layer.outputs if layer.outputs <= ALL_OUTPUTS else SKETCH


def complete(
    batches: Sequence[Tensor], samples: int, gradients: Tensor, *, whole: bool, progress: Callable[[int], None]
) -> tuple[Solved, Tensor]:
    """Return h, v and residuals from one worker's gradients (rounds, outputs or fewer, inputs and bias)."""
    means = batch_matrix(batches, samples)
    together, sums = means.T @ means, torch.einsum("tn,tqd->nqd", means, gradients)
    start = _least_norm(means, gradients)
    right = torch.linalg.eigh(start.transpose(1, 2) @ start)[1][:, :, -1]
    for turn in range(MOST_TURNS):
        left = _unit(_solve(together, right, torch.einsum("nqd,nd->nq", sums, _unit(right))))
        right = _solve(together, left, torch.einsum("nqd,nq->nd", sums, left))
        progress(turn)
        if turn % 8 == 7:
            rest = gradients - torch.einsum("tn,nq,nd->tqd", means, left, right)
            if rest.norm() < SETTLED * gradients.norm():
                break
    last = right[:, -1:]
    v = left * last
    h = right[:, :-1] / last
    h[v.norm(dim=1) < 1e-5 * v.norm(dim=1).median()] = torch.nan  # nothing of it leaked
    v[h.isnan().any(1) if whole else slice(None)] = torch.nan
    rest = gradients - torch.einsum("tn,nq,nd->tqd", means, left, right)
    drawn = (means > 0).double().T
    unexplained = (drawn @ rest.square().sum((1, 2)) / (drawn @ gradients.square().sum((1, 2)))).sqrt()
    return Solved(h, v), torch.where(h.isfinite().all(1), unexplained, torch.nan)


def _least_norm(means: Tensor, gradients: Tensor) -> Tensor:
    """Return the smallest (samples, outputs, inputs) that explain the rounds, as near as a start needs to be."""
    between = means @ means.T
    between.diagonal().add_(1e-9 * between.diagonal().mean())  # the batches of any two epochs have the same sum
    weights = torch.cholesky_solve(gradients.flatten(1), torch.linalg.cholesky(between))
    return (means.T @ weights).reshape(-1, *gradients.shape[1:])


def _solve(together: Tensor, factors: Tensor, right_side: Tensor) -> Tensor:
    """Solve for the other factors, given one factor of every sample."""
    factors = _unit(factors)
    matrix = together * (factors @ factors.T)
    matrix.diagonal().add_(1e-10 * matrix.diagonal().mean())
    found: Tensor = torch.cholesky_solve(right_side, torch.linalg.cholesky(matrix))
    return found


def _unit(rows: Tensor) -> Tensor:
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return unit
