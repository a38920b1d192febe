"""Tells altered gradients from true ones, by worker and round, from what the wire carried alone.

A fully connected layer's weight gradient is a sum of v h^T over the batch, so its rank is at most the batch's size,
and while the layer has room the bias's gradient, the sum of v, lies in its columns. Rounding moves that by parts in a
million. What else shows is how: zeros where small entries were, few distinct values, one norm for all rounds.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vfl.observation import Tensors

ROUNDING = 1e-5
"""Singular values beyond the batch, relative to the largest: of true float32 gradients they are some 1e-7."""
GAP = 20.0
"""The smallest of n true entries is about 1 / n of their typical size; this many times that is a gap around zero."""
FEW = 1 / 8
"""Distinct values beyond this share of the entries are a continuum."""
SAME_NORM = 1e-4
OVERSAMPLING = 8
ENTRIES = 32
"""Of fewer nothing is said but their rank."""
LOOKED_AT = 8192
"""Entries of a tensor whose values are counted: sorting all of a large one takes longer than the round."""


Sight = tuple[str, str]
"""What a gradient looks like, and a detail that may differ from round to round."""


@dataclass(frozen=True)
class Finding:
    """What was seen at one worker."""

    worker: int
    what: str
    rounds: int
    """Rounds in which it was seen."""
    of: int

    @property
    def sentence(self) -> str:
        """Say it in the report."""
        return f"Worker {self.worker}'s gradients look altered in {self.rounds} of {self.of} rounds: {self.what}."


class Detector:
    """Looks at rounds as they come; keeps three numbers a round."""

    def __init__(self, workers: int) -> None:
        self._seen: list[Counter[Sight]] = [Counter() for _ in range(workers)]
        self._norms: list[list[tuple[float, float, float]]] = [[] for _ in range(workers)]
        self._flagged = [0] * workers
        self._rounds = 0

    def look(self, size: int, bottoms: Sequence[Tensors], top: Tensors, layers: Sequence[str]) -> None:
        """Take in a round of a batch of so many samples: all workers' gradients, and the layers to look at."""
        self._rounds += 1
        of_top = _norm(top) ** 2
        for worker, (tensors, layer) in enumerate(zip(bottoms, layers, strict=True)):
            weight, bias = tensors[f"{layer}.weight"].detach().cpu(), tensors[f"{layer}.bias"].detach().cpu()
            sight = seen_in(weight, bias, size)
            if sight:
                self._seen[worker][sight] += 1
                self._flagged[worker] += 1
            own = _norm(tensors) ** 2
            self._norms[worker].append((own**0.5, (own + of_top) ** 0.5, float(bias.norm())))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return what was seen at each worker, the most frequent first."""
        found = []
        for worker, seen in enumerate(self._seen):
            kinds: Counter[str] = Counter()
            for (kind, _), count in seen.items():
                kinds[kind] += count
            for kind, count in kinds.most_common():
                detail = next(detail for (other, detail), _ in seen.most_common() if other == kind)
                found.append(Finding(worker, f"{kind}{detail}", count, self._rounds))
            clipped = self._clipped(worker)
            if clipped:
                found.append(Finding(worker, "the same norm, which none exceeds: clipped", clipped, self._rounds))
        return tuple(found)

    @property
    def shares(self) -> tuple[float, ...]:
        """Return for each worker the share of its rounds that look altered."""
        most = [max(flagged, self._clipped(worker)) for worker, flagged in enumerate(self._flagged)]
        return tuple(count / max(1, self._rounds) for count in most)

    def _clipped(self, worker: int) -> int:
        """Count the rounds whose norm is the largest that ever was: one, unless it is a limit."""
        best = 0
        norms = torch.tensor(self._norms[worker], dtype=torch.float64).reshape(-1, 3)
        for own in norms[:, :2].T:  # the label holder may clip the top model's gradient together with its own
            if len(own) and float(own.max()) > 0:
                there = own > (1 - SAME_NORM) * own.max()
                biases = norms[there, 2]
                # The same batch twice has the same norm; then its bias's gradient has, too
                distinct = len((biases / biases.max().clamp_min(1e-300) / SAME_NORM).round().unique())
                best = max(best, int(there.sum()) if distinct > 2 else 0)
        return best


def seen_in(weight: Tensor, bias: Tensor, size: int) -> Sight | None:
    """Return what shows that these gradients (outputs, inputs), (outputs,) are no true ones; None if nothing does."""
    nonzero = weight[weight != 0]
    # An output with a gradient in its weights has one in its bias, unless that was taken away
    orphans = bool(((bias == 0) & (weight != 0).any(dim=1)).any())
    if len(nonzero) == 0 or (true_rank(weight, bias, size) and not orphans):
        return None
    distinct = _few_values(nonzero)
    if distinct:
        return "few distinct values: quantised", f" ({_power(distinct)})"
    if orphans or _gap(weight, nonzero):
        zeros = 1 - len(nonzero) / weight.numel()
        return "small entries are zero: pruned", f" ({round(zeros, 1):.0%} zeros)"
    return "full rank: noise or fake values", ""


def true_rank(weight: Tensor, bias: Tensor, size: int) -> bool:
    """Tell whether a weight's gradient has no more rank than the batch has samples, and the bias's lies in its span."""
    if size >= min(weight.shape):
        # The batch fills the layer and any rank is possible: are the values a continuum down to zero?
        nonzero = weight[weight != 0]
        return not _few_values(nonzero) and not _gap(weight, nonzero)
    weight, bias = weight.double(), bias.double()
    width = min(size + OVERSAMPLING, *weight.shape)
    mixing = torch.randn(weight.shape[1], width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, sigma, _ = torch.linalg.svd(weight @ mixing, full_matrices=False)
    if float(sigma[size]) > ROUNDING * float(sigma[0]):
        return False
    rank = int((sigma > ROUNDING * sigma[0]).sum())
    if rank < size:  # samples alike in h or without v: then the bias may have parts that the weight has not
        return True
    outside = bias - u[:, :rank] @ (u[:, :rank].T @ bias)
    return float(outside.norm()) <= 1e-2 * float(bias.norm())


def _few_values(nonzero: Tensor) -> int:
    """Return how many values there are if that is few for so many entries, else 0."""
    some = nonzero[:LOOKED_AT]
    distinct = len(some.unique())
    return distinct if len(some) >= ENTRIES and distinct <= FEW * len(some) else 0


def _gap(weight: Tensor, nonzero: Tensor) -> bool:
    """Tell whether there are zeros and no small entries beside them."""
    if len(nonzero) < ENTRIES or len(nonzero) > 0.98 * weight.numel():
        return False
    return float(nonzero.abs().min()) > GAP / len(nonzero) * float(nonzero.square().mean().sqrt())


def _norm(tensors: Tensors) -> float:
    return math.sqrt(sum(float(torch.linalg.vector_norm(t, dtype=torch.float64)) ** 2 for t in tensors.values()))


def _power(distinct: int) -> str:
    """Say roughly how many: counts differ from round to round."""
    bits = max(1, (distinct - 1).bit_length())
    return f"at most {2**bits} in the layer's weight"
