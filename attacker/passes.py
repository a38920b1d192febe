"""What a party saw of each sample, time after time: one row for each time that the sample was in a batch."""

from collections.abc import Sequence

import torch
from torch import Tensor


def by_passes(rounds: Sequence[tuple[Tensor, Tensor]], samples: int) -> list[Tensor]:
    """Return rows by how often a sample had been seen before: (samples, width) each, NaN where it was not.

    `rounds` are each round's samples and a row for each of them. With epochs each pass is one of them; with other
    schedules the k-th pass has every sample's k-th row.
    """
    width = rounds[0][1].shape[1]
    seen = torch.zeros(samples, dtype=torch.int64)
    found: list[Tensor] = []
    for indices, rows in rounds:
        for times in seen[indices].unique().tolist():
            while len(found) <= times:
                found.append(torch.full((samples, width), torch.nan, dtype=torch.float64))
            now = seen[indices] == times
            found[times][indices[now]] = rows[now].double()
        seen[indices] += 1
    return found
