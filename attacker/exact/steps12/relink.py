"""Which samples two epochs' batches share, read off the gradients: without it, indices that mean nothing would protect.

Workers may map the coordinator's indices to rows by a secret of their own. But two batches meet in the span of the
samples that they share whatever these are called, and the dimension of that meeting is their number. So for all pairs
of batches of two epochs the counts are known, and names are made up that fit them. Who is who stays unknown.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.factors import Factors
from attacker.exact.steps12.subspaces import cell_subspaces, inputs_side, outputs_side
from vfl.errors import UserError


def relink(factors: Sequence[Sequence[Factors]], first_epoch: int) -> list[Tensor]:
    """Return made-up batches for the rounds of two epochs, the first with so many rounds; `factors` is by worker."""
    sizes = [one.size for one in factors[0]]
    misfits = []
    for own in factors:
        counts = _shared(own, first_epoch)
        misfit = _misfit(counts, sizes, first_epoch)
        if misfit == 0:
            return _names(counts, len(sizes), first_epoch)
        misfits.append(misfit)
    raise UserError(
        f"attack exact with relink: at no worker do the gradients say which batches share samples (the counts miss "
        f"{min(misfits)} of {sum(sizes[:first_epoch])} samples at best): samples that leak nothing or look alike, or "
        f"altered gradients"
    )


def _shared(own: Sequence[Factors], first_epoch: int) -> Tensor:
    """Return how many samples each batch of the first epoch shares with each of the second."""
    inputs, outputs = len(own[0].left), len(own[0].right)
    sides = [inputs_side(one) if inputs >= outputs else outputs_side(one) for one in own]
    pairs = [Cell((), (a, b)) for a in range(first_epoch) for b in range(first_epoch, len(sides))]
    return torch.tensor([own.shape[1] for own in cell_subspaces(pairs, sides)]).reshape(first_epoch, -1)


def _misfit(counts: Tensor, sizes: Sequence[int], first_epoch: int) -> int:
    """Return by how much the counts differ from what makes up whole batches."""
    rows = (counts.sum(1) - torch.tensor(sizes[:first_epoch])).abs().sum()
    columns = (counts.sum(0) - torch.tensor(sizes[first_epoch:])).abs().sum()
    return int(torch.maximum(rows, columns))


def _names(counts: Tensor, rounds: int, first_epoch: int) -> list[Tensor]:
    batches: list[list[int]] = [[] for _ in range(rounds)]
    name = 0
    for a, b in torch.nonzero(counts).tolist():
        for _ in range(int(counts[a, b])):
            batches[a].append(name)
            batches[first_epoch + b].append(name)
            name += 1
    return [torch.tensor(batch) for batch in batches]
