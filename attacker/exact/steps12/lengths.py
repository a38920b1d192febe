"""From directions to h and v themselves: the bias gradients are linear in the inverse lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.exact.steps12.directions import Directions
from attacker.exact.steps12.subspaces import inputs_side
from vfl.maths.factors import Factors

SLACK = 1e-5
"""How far beyond rounding a direction may lie from a batch's subspace: the error that earlier steps left in it."""


@dataclass(frozen=True)
class Parts:
    """One batch taken apart along the known directions."""

    numbers: Tensor
    """(k,): which directions take part."""
    rows: Tensor
    """(k, outputs): length times v for each, modulo `hidden`."""
    blur: Tensor
    """(k,): the noise in each row."""
    hidden: Tensor
    """(outputs, m), orthonormal: the v of samples without a known direction, which the rows cannot show."""
    inverse: Tensor
    """(k,): 1 / length as this batch alone has it."""
    variance: Tensor
    """(k,): how uncertain that is."""


@dataclass(frozen=True)
class Pairs:
    """What every direction turned out to be."""

    inverse: Tensor
    """(directions,): 1 / |h|, NaN where unknown."""
    sums: tuple[Tensor, ...]
    """For each batch (k, outputs), in the order of `Parts.numbers`: v, summed over the samples with the direction."""


def take_apart(factors: Factors, directions: Directions, batch: Tensor) -> Parts:
    """Write a batch's gradient as a sum over its directions."""
    numbers = directions.of[batch].unique()
    numbers = numbers[numbers >= 0]
    # A direction that the batch does not contain belongs to a sample which hides behind another one here
    numbers = numbers[inputs_side(factors).contains(directions.vectors[:, numbers], slack=SLACK)]
    inside = factors.left.T @ directions.vectors[:, numbers]  # (rank, k)
    spectrum = factors.sigma[:, None] * factors.right.T  # (rank, outputs)
    q, _ = torch.linalg.qr(inside, mode="complete")
    unknown = q[:, len(numbers) :].T @ spectrum  # what is left of the samples without a direction
    hidden = torch.linalg.qr(unknown.T).Q if len(unknown) else spectrum.new_zeros(spectrum.shape[1], 0)
    dual = torch.linalg.pinv(inside)
    rows = dual @ spectrum * factors.size
    rows = rows - (rows @ hidden) @ hidden.T
    blur = dual.norm(dim=1) * factors.noise * factors.size
    inverse, variance = _inverse_lengths(rows, factors, hidden)
    return Parts(numbers, rows, blur, hidden, inverse, variance)


def join(parts: Sequence[Parts], directions: int) -> Pairs:
    """Bring the batches together: one length for each direction, weighted by certainty."""
    weight = torch.zeros(directions, dtype=torch.float64)
    total = torch.zeros(directions, dtype=torch.float64)
    for part in parts:
        known = part.variance.isfinite()
        weight[part.numbers[known]] += 1 / part.variance[known]
        total[part.numbers[known]] += part.inverse[known] / part.variance[known]
    inverse = total / weight  # 0 / 0 is NaN: a direction without any equation
    return Pairs(inverse, tuple(part.rows * inverse[part.numbers][:, None] for part in parts))


def own_v(
    direction: int, rounds: Sequence[int], parts: Sequence[Parts], pairs: Pairs, *, cut_off: Tensor | None = None
) -> Tensor:
    """Return the v of a sample that alone has its direction, from the batch with the least noise.

    `cut_off` (outputs,) tells where the sample's v is known to be zero.
    """
    rows = []
    for t in rounds:
        for at in (parts[t].numbers == direction).nonzero()[:, 0].tolist():
            rows.append((parts[t].hidden.shape[1], float(parts[t].blur[at]), t, pairs.sums[t][at]))
    if not rows:
        return parts[0].rows.new_full((parts[0].rows.shape[1],), torch.nan)
    rows.sort(key=lambda row: row[:3])
    hidden, _, first, v = rows[0]
    if hidden == 0:
        return v
    # No batch shows all of v: each hides the span of its unknown samples. Where they hide different parts, two
    # batches together show it: v + Z a must agree with the others outside of what those hide. It must also be
    # zero where a ReLU has cut the sample off, which settles it even if all batches hide the same.
    basis = parts[first].hidden
    left, right = ([basis[cut_off]], [-v[cut_off]]) if cut_off is not None else ([], [])
    for _, _, t, other in rows[1:]:
        mask = parts[t].hidden
        difference, spread = other - v, basis
        left.append(spread - mask @ (mask.T @ spread))
        right.append(difference - mask @ (mask.T @ difference))
    if not left:
        return v
    answer = torch.linalg.lstsq(torch.cat(left), torch.cat(right)[:, None], rcond=1e-9, driver="gelsd").solution[:, 0]
    whole: Tensor = v + basis @ answer
    return whole


def _inverse_lengths(rows: Tensor, factors: Factors, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Solve sum of rows / length = bias for the inverse lengths; also their variance."""
    count = len(rows)
    if count == 0:
        return rows.new_zeros(0), rows.new_zeros(0)
    if factors.bias is None:  # nothing tells the lengths: the directions themselves are all there is
        return rows.new_ones(count), rows.new_ones(count)
    bias = factors.bias * factors.size
    bias = bias - hidden @ (hidden.T @ bias)
    size = rows.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    unit = rows / size[:, None]  # equal columns: lengths of very different samples stay comparable
    q, r = torch.linalg.qr(unit.T)
    solver = torch.linalg.pinv(r)
    solution = solver @ (q.T @ bias)
    left_over = (bias - unit.T @ solution).square().sum() / max(1, len(bias) - hidden.shape[1] - count)
    floor = (torch.finfo(torch.float32).eps * bias.norm()) ** 2 / len(bias)
    variance = solver.square().sum(dim=1) * (left_over + floor)
    return solution / size, variance / size.square()
