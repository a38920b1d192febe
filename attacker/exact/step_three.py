"""From every worker's representations to its slices: h itself where the layer sees the data, else by inversion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.exact.choice import Choice
from attacker.interface import Progress, Recovery, share
from attacker.inversion import InversionOptions, invert
from attacker.inversion.values import likeliest_length
from vfl.models.layers import FullyConnected
from vfl.observation import Setting


@dataclass(frozen=True)
class Inverted:
    """The data that were found."""

    slices: tuple[Tensor, ...]
    """For each worker (samples, *slice shape), NaN where h is unknown."""
    missed: Tensor
    """(samples, workers): whether no data with these representations was found; the slice is then the nearest."""

    def reordered(self, orders: Sequence[Tensor]) -> "Inverted":
        """Return the same with every worker's samples in another order."""
        slices = tuple(part[order] for part, order in zip(self.slices, orders, strict=True))
        missed = [self.missed[order, worker] for worker, order in enumerate(orders)]
        return Inverted(slices, torch.stack(missed, dim=1))


def step_three(
    setting: Setting,
    choice: Choice,
    bottoms: Sequence[nn.Module],
    found: Sequence[Tensor],
    *,
    options: InversionOptions | None,
    cells: tuple[tuple[int, ...], ...],
    progress: Progress,
) -> Inverted | None:
    """Return the slices with these representations (samples, inputs); None where that takes what was switched off."""
    if options is None and not all(layer.sees_data for layer in choice.layers):
        return None
    slices: list[Tensor] = []
    missed: list[Tensor] = []

    def offer(part: Tensor) -> None:
        share(progress, lambda: unfinished(setting, [*slices, part], cells))

    for worker, (layer, box, h) in enumerate(zip(choice.layers, setting.boxes, found, strict=True)):
        if layer.sees_data:
            part = h.reshape(-1, *box.shape)
            slices.append((part if layer.bias else likeliest_length(part)).float())
            missed.append(torch.zeros(len(h), dtype=torch.bool))
        else:
            assert options is not None
            x, residual = _Inversion(setting, options, worker, layer, bottoms[worker]).run(h, progress, offer)
            slices.append(x)
            missed.append(residual > options.acceptable)
    return Inverted(tuple(slices), torch.stack(missed, dim=1))


@dataclass(frozen=True)
class _Inversion:
    """One worker's step III."""

    setting: Setting
    options: InversionOptions
    worker: int
    layer: FullyConnected
    model: nn.Module

    def run(self, h: Tensor, progress: Progress, offer: Callable[[Tensor], None]) -> tuple[Tensor, Tensor]:
        """Return the slices and how far their representations are from these; identical ones are inverted once."""
        known = h.isfinite().all(dim=1).nonzero()[:, 0]
        shape = self.setting.boxes[self.worker].shape
        slices, residual = torch.full((len(h), *shape), torch.nan), torch.full((len(h),), torch.nan)
        if len(known) == 0:
            return slices, residual
        distinct, which = h[known].float().unique(dim=0, return_inverse=True)

        def show(x: Tensor) -> None:
            part = torch.full_like(slices, torch.nan)
            part[known] = x.float()[which]
            offer(part)

        def step(at: int, of: int) -> None:
            done = int((self.worker + at / max(of, 1)) * self.setting.samples)
            progress("step III", done, self.setting.workers * self.setting.samples)

        done = invert(
            self.model.float(), self.layer.name, distinct, shape, seed=self.setting.seed, device=self.setting.device,
            options=self.options, progress=step, offer=show, unit=not self.layer.bias,
        )  # fmt: skip
        slices[known], residual[known] = done.x.float().cpu()[which], done.residual.float().cpu()[which]
        return slices, residual


def unfinished(setting: Setting, slices: Sequence[Tensor], cells: tuple[tuple[int, ...], ...]) -> Recovery:
    """Return an estimate on the way: the first workers' slices, NaN for those to come."""
    ahead = [torch.full((setting.samples, *box.shape), torch.nan) for box in setting.boxes[len(slices) :]]
    return Recovery(slices=(*slices, *ahead), cells=cells)
