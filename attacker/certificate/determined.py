"""How far a sample could be from where it is while the gradients stay explained as they are."""

import math

import torch
from torch import Tensor

from attacker.certificate.network import SMALL, Network
from vfl.maths.factors import Factors
from vfl.recovery import CERTIFIED

FLAT = 1e-11
"""Added to a matrix of cosines before it is inverted: what is flatter is not told apart."""
MOST_TOGETHER = 3000
"""Samples whose rounds are looked at all together; of more, round by round."""
STEP = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Of finite differences."""


class Determined:
    """One worker's rounds: a bound on the relative error of each h.

    Three ways lead to one. Where the layer has many more inputs than a batch and a slice have numbers together, h
    must lie in the batch's space, which few slices' do. Where the spaces of a sample's rounds meet in one direction,
    it is h. And where all samples together explain gradients, h can differ only as far as the others make up for it,
    which they can if their v nearly span its v.
    """

    def __init__(self, samples: int, inputs: int, features: int) -> None:
        self._features = features
        self._roomy = torch.full((samples,), torch.inf, dtype=torch.float64)
        self._meets = inputs <= SMALL
        shape = (samples, inputs, inputs) if self._meets else (0, 0, 0)
        self._outside = torch.zeros(shape, dtype=torch.float64)
        self._direction = torch.zeros(samples, inputs if self._meets else 0, dtype=torch.float64)
        self._alone = torch.full((samples,), torch.inf, dtype=torch.float64)
        self._round = torch.full((samples,), torch.inf, dtype=torch.float64)
        together = samples if samples <= MOST_TOGETHER else 0
        self._gram = torch.zeros(together, together, dtype=torch.float64)
        self._rest = torch.zeros(samples, dtype=torch.float64)

    def roomy(self, factors: Factors) -> bool:
        """Tell whether a round that shows a sample alone determines it."""
        return len(factors.left) - factors.rank >= self._features

    def add(
        self,
        samples: Tensor,
        factors: Factors,
        h: Tensor,
        v: Tensor,
        *,
        alone: Tensor,
        part: Tensor,
        rest: Tensor | None,
    ) -> None:
        """Take in a round: how far each sample is from it `alone`, its own `part`, and what all leave as the `rest`."""
        h, v = h.double(), v.double()
        good = alone <= CERTIFIED
        if self.roomy(factors):
            self._roomy[samples] = torch.minimum(self._roomy[samples], alone)
        if self._meets and bool(good.any()):
            some = samples[good]
            self._outside[some] += torch.eye(h.shape[1], dtype=torch.float64) - factors.left @ factors.left.T
            self._direction[some] = h[good] / h[good].norm(dim=1, keepdim=True)
            self._alone[some] = torch.maximum(self._alone[some].nan_to_num(posinf=0.0), alone[good])
        if rest is not None:
            own = part[:, None] * v / v.norm(dim=1, keepdim=True).clamp_min(1e-300)
            gram = own @ own.T
            self._round[samples] = torch.minimum(self._round[samples], rest * _spread(gram))
            if len(self._gram):
                self._gram[samples[:, None], samples[None]] += gram
                self._rest[samples] = torch.maximum(self._rest[samples], rest)

    def bound(self) -> Tensor:
        """Return the bound for each sample (samples,), infinite where there is none."""
        bound = torch.minimum(self._roomy, self._round)
        open_still = (bound > CERTIFIED).nonzero()[:, 0]
        if self._meets and len(open_still):
            bound[open_still] = torch.minimum(bound[open_still], self._meeting(open_still))
        if len(self._gram) and bool((bound > CERTIFIED).any()):
            seen = (self._gram.diagonal() > 0).nonzero()[:, 0]
            together = self._rest[seen] * _spread(self._gram[seen[:, None], seen[None]])
            bound[seen] = torch.minimum(bound[seen], together)
        return bound

    def _meeting(self, samples: Tensor) -> Tensor:
        """Return the bound where h is what the spaces of all its rounds share."""
        direction = self._direction[samples]
        along = direction[:, :, None] * direction[:, None]
        flattest = torch.linalg.eigvalsh(self._outside[samples] + 1e3 * along)[:, 0]
        bound: Tensor = self._alone[samples] / flattest.clamp_min(1e-12).sqrt()
        return bound


def _spread(gram: Tensor) -> Tensor:
    """Return how large each sample's relative error may be for an error of one in the gradients."""
    size = gram.diagonal().sqrt().clamp_min(1e-300)
    cosines = gram / size[:, None] / size[None]
    cosines.diagonal().add_(FLAT)
    factor, failed = torch.linalg.cholesky_ex(cosines)
    if int(failed):
        return torch.full_like(size, torch.inf)
    spread: Tensor = torch.cholesky_inverse(factor).diagonal().sqrt() / size
    return spread


def data_of_inputs(network: Network, worker: int, x: Tensor, *, sees_data: bool) -> Tensor:
    """Return for slices x how much larger the relative error of the data may be than that of h; NaN: any size.

    Small slices by their Jacobian. Of larger ones it is looked at whether all their numbers reach the layer at all, and
    whether so many of its inputs are alive.
    """
    if sees_data:
        return torch.ones(len(x), dtype=torch.float64)
    features = math.prod(x.shape[1:])
    return _by_jacobian(network, worker, x) if features <= SMALL else _by_reach(network, worker, x)


def _by_jacobian(network: Network, worker: int, x: Tensor) -> Tensor:
    x = x.to(network.dtype)
    flat = x.flatten(1)
    with torch.no_grad():
        h = network.inputs(worker, x).flatten(1)
        columns = []
        for feature in range(flat.shape[1]):
            moved = flat.clone()
            moved[:, feature] += STEP[network.dtype]
            columns.append((network.inputs(worker, moved.reshape(x.shape)).flatten(1) - h) / STEP[network.dtype])
    jacobian = torch.stack(columns, dim=2).double()
    values = torch.linalg.svdvals(jacobian)
    least = values[:, -1] if jacobian.shape[1] >= jacobian.shape[2] else torch.zeros(len(x), dtype=torch.float64)
    times = h.norm(dim=1) / (least * flat.norm(dim=1))
    return torch.where(least > 1e-6 * values[:, 0], times.clamp_min(1.0), torch.nan)


def _by_reach(network: Network, worker: int, x: Tensor) -> Tensor:
    found = []
    for part in x.to(network.dtype).split(64):
        part = part.clone().requires_grad_()
        with torch.enable_grad():
            h = network.inputs(worker, part).flatten(1)
            weight = torch.randn(h.shape, generator=torch.Generator().manual_seed(0)).to(h)
            (reach,) = torch.autograd.grad((h * weight).sum(), part)
        reach = reach.flatten(1).abs()
        reached = reach.amin(dim=1) > 1e-9 * reach.amax(dim=1)
        alive = (h.detach() != 0).sum(dim=1) >= reach.shape[1]
        found.append(torch.where(reached & alive, 1.0, torch.nan))
    return torch.cat(found).double()
