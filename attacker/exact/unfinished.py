"""An estimate on the way, for whoever watches: the workers' slices so far, NaN for those to come."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacker.interface import Recovery
from vfl.observation import Setting


def unfinished(setting: Setting, slices: Sequence[Tensor], cells: tuple[tuple[int, ...], ...]) -> Recovery:
    """Return what there is when the first workers' slices are known."""
    ahead = [torch.full((setting.samples, *box.shape), torch.nan) for box in setting.boxes[len(slices) :]]
    return Recovery(slices=(*slices, *ahead), cells=cells)
