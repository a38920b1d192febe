"""Every sample's own gradient, taken out of any number of rounds in the memory of one per sample.

With S the matrix of batches, S^T S and S^T G are sums over rounds; (S^T S)^-1 S^T G is every sample's own gradient,
and noise of the rounds goes down with their number.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Own:
    """One worker's: of the weight's gradient some directions of the outputs, of the bias's all."""

    weight: Tensor
    """(samples, directions, inputs)."""
    bias: Tensor
    """(samples, outputs)."""
    directions: Tensor
    """(directions, outputs), orthonormal."""


class Sums:
    """S^T G of one worker."""

    def __init__(self, samples: int, directions: Tensor, inputs: int) -> None:
        self._directions = directions
        self._weight = torch.zeros(samples, len(directions), inputs, dtype=torch.float64)
        self._bias = torch.zeros(samples, directions.shape[1], dtype=torch.float64)

    def add(self, batch: Tensor, weight: Tensor, bias: Tensor) -> None:
        """Count a round in, its gradients of the layer's weight (outputs, inputs) and bias."""
        self._weight[batch] += (self._directions @ weight.double()) / len(batch)
        self._bias[batch] += bias.double() / len(batch)

    def solve(self, gram: Tensor) -> Own:
        """Return the samples' own gradients."""
        factor = torch.linalg.cholesky(gram)
        weight = torch.cholesky_solve(self._weight.flatten(1), factor).view_as(self._weight)
        return Own(weight, torch.cholesky_solve(self._bias, factor), self._directions)


TINY = 1e-12
"""Against division by zero where nothing leaked at all."""


@dataclass(frozen=True)
class RankOne:
    """The nearest v h^T of every sample, and what it says about the noise."""

    h: Tensor
    """(samples, inputs)."""
    v: Tensor
    """(samples, directions)."""
    error: Tensor
    """(samples,): the relative error of h that this much noise makes likely."""


def rank_one(weight: Tensor, bias: Tensor) -> RankOne:
    """Fit samples' gradients, the weight's (samples, directions, inputs) and the bias's (samples, directions)."""
    u, balance = _leading(weight, bias, 1.0), 1.0
    noise = _noise(weight, bias, u)
    if noise[0] > 0 and noise[1] > 0:
        balance = float(noise[0] / noise[1])  # noise of one size everywhere: then the nearest is the likeliest
        u = _leading(weight, bias, balance)
    across = torch.einsum("nqd,nq->nd", weight, u)  # |v| h
    length = _lengths(across.norm(dim=1), (bias * u).sum(1), _noise(weight, bias, u)[1])
    h = across / length.clamp_min(TINY)[:, None]
    left = (weight.square().sum((1, 2)) - across.square().sum(1)).clamp_min(0)
    q, d = weight.shape[1:]
    per_entry = left / max(1, (q - 1) * (d - 1)) if q > 1 and d > 1 else left
    error = (per_entry * d).sqrt() / across.norm(dim=1).clamp_min(TINY)
    return RankOne(h, u * length[:, None], error)


def _leading(weight: Tensor, bias: Tensor, balance: float) -> Tensor:
    """Return the direction of each v: the leading left singular vector, towards the bias's gradient."""
    gram = torch.einsum("nqd,npd->nqp", weight, weight) + balance**2 * bias[:, :, None] * bias[:, None, :]
    u = torch.linalg.eigh(gram).eigenvectors[:, :, -1]
    towards = (u * bias).sum(1, keepdim=True)
    return torch.where(towards < 0, -u, u)


def _noise(weight: Tensor, bias: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return the typical size of an entry of the weight's and of the bias's gradient outside of v."""
    off = (weight.square().sum((1, 2)) - torch.einsum("nqd,nq->nd", weight, u).square().sum(1)).clamp_min(0)
    of_bias = (bias - (bias * u).sum(1, keepdim=True) * u).square().sum(1)
    q, d = weight.shape[1:]
    return (off / max(1, q - 1) / d).mean().sqrt(), (of_bias / max(1, q - 1)).mean().sqrt()


def _lengths(product: Tensor, along: Tensor, noise: Tensor) -> Tensor:
    """Return |v|: the bias says it up to its noise, and |v| |h| says it up to how much the samples' |h| differ."""
    sure = along > 3 * noise
    if not bool(sure.any()) or not bool(noise > 0):
        return along.clamp_min(TINY)
    ratios = (product[sure] / along[sure]).log()
    middle = ratios.median()
    spread = ((ratios - middle).abs().median() * 1.5).clamp_min(0.05)
    guess = product / middle.exp()
    trust = 1 / (1 + (noise / (spread * guess).clamp_min(TINY)).square())  # of the bias, against the guess
    return (trust * along + (1 - trust) * guess).clamp_min(TINY)
