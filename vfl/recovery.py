"""What an attack hands over: its best estimate, and what it used to get there."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Recovery:
    """The best estimate of an attack. What it could not recover is None; a single lost sample is a row of NaN."""

    slices: tuple[Tensor, ...] | None = None
    """The data: for each worker (samples, *slice shape)."""
    representations: tuple[Tensor, ...] | None = None
    """The internal representations: for each worker (samples, inputs of the layer)."""
    layers: tuple[str, ...] | None = None
    """For each worker the name of the layer whose inputs the representations are."""
    labels: Tensor | None = None
    """The class of each sample, -1 where unknown."""
    cells: tuple[tuple[int, ...], ...] = ()
    """Groups of samples that no batch tells apart: within one the order is arbitrary."""
    certificates: Tensor | None = None
    """(samples, workers): how badly the recovery explains the gradients, relative; NaN where nothing leaked."""
    used: tuple[str, ...] = ("indices", "parameters", "gradients")
    """What the attack made use of."""
    rounds: tuple[int, ...] | None = None
    """The rounds whose gradients it used; None for all that it was shown."""
    altered: tuple[float, ...] | None = None
    """For each worker the share of its rounds whose gradients look altered; None if the attack did not look."""
    notes: tuple[str, ...] = field(default=())
    """Sentences for the report."""

    def cell_of(self, samples: int) -> Tensor:
        """Return for each sample the first sample of its cell."""
        cell = torch.arange(samples)
        for members in self.cells:
            cell[list(members)] = min(members)
        return cell
