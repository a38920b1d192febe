"""One altered gradient, for an attacker who was told of the defence: the true one nearest to it that a batch can have.

The gradient of a batch has rank K at most, and `Kind.consistent` says which gradients explain an upload. Both in turn,
with Nesterov's acceleration, fill in what was hidden; no other round is needed.
"""

import torch
from torch import Tensor

from attacker.adaptive.told import Kind

ITERATIONS = 300
STILL = 1e-7
"""The relative change in a step at which it ends."""
FLOOR = 3e-4
"""Of a tensor's root mean square: the attack's own noise, so that the search expects errors such as may be left."""
DUST = 1e-6
"""The share of the largest row or column up to which one is that of a dead unit: nothing but what was filled in."""


def restored(weight: Tensor, bias: Tensor, kind: Kind, *, batch: int, iterations: int = ITERATIONS) -> Tensor:
    """Return the gradient [weight | bias] (outputs, inputs + 1) of rank `batch` that explains what was uploaded.

    It has white noise of `FLOOR`.
    """
    uploads = [part.detach().double().flatten()[None] for part in (weight, bias)]
    limits = [torch.tensor([[kind.limit(part)]], dtype=torch.float64) for part in (weight, bias)]
    places = [part.argsort(1) if kind.by_order else part for part in uploads]

    def explaining(whole: Tensor) -> Tensor:
        """Move a prediction to what would have been uploaded like this."""
        predicted = [whole[:, :-1].reshape(1, -1), whole[:, -1].reshape(1, -1)]
        return joined([kind.consistent(*each) for each in zip(places, predicted, limits, strict=True)])

    def joined(parts: list[Tensor]) -> Tensor:
        return torch.cat([parts[0].view_as(weight), parts[1].view(-1, 1)], dim=1)

    estimate = before = _of_rank(joined([kind.first(part) for part in uploads]), batch)
    momentum, last = 0, float("inf")
    for _ in range(iterations):
        ahead = estimate + momentum / (momentum + 3) * (estimate - before)
        explained = explaining(ahead)
        misfit = float((explained - ahead).norm())
        before, estimate = estimate, _of_rank(explained, batch)
        momentum, last = (momentum + 1, misfit) if misfit <= last else (0, misfit)
        if float((estimate - before).norm()) <= STILL * float(estimate.norm()):
            break
    return _with_noise(_without_dust(estimate))


def _of_rank(whole: Tensor, rank: int) -> Tensor:
    """Return the nearest matrix of a rank; its narrow side's products tell the space, which is quicker than an SVD."""
    _, vectors = torch.linalg.eigh(whole @ whole.T)
    space = vectors[:, -rank:]
    nearest: Tensor = space @ (space.T @ whole)
    return nearest


def _without_dust(whole: Tensor) -> Tensor:
    """Return the matrix with zeros for dead units."""
    rows, columns = whole.norm(dim=1, keepdim=True), whole.norm(dim=0, keepdim=True)
    return torch.where((rows > DUST * rows.max()) & (columns > DUST * columns.max()), whole, 0.0)


def _with_noise(whole: Tensor) -> Tensor:
    """Return the matrix with white noise: of exact rank it would say that nothing is wrong with it."""
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(whole.shape, generator=draws, dtype=whole.dtype)
    sizes = whole.new_full((whole.shape[1],), float(whole[:, :-1].square().mean().sqrt()))
    sizes[-1] = whole[:, -1].square().mean().sqrt()
    return whole + FLOOR * sizes * noise
