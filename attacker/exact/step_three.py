"""From every worker's representations to its slices: h itself where the layer sees the data, else by inversion."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.exact.choice import Choice
from attacker.interface import Progress, Recovery, share
from attacker.inversion import InversionOptions, Wanted, invert_together
from attacker.inversion.values import likeliest_length
from vfl.models.layers import FullyConnected
from vfl.observation import ModelTensors, Setting, Tensors
from vfl.partition import Shape


@dataclass(frozen=True)
class Inverted:
    """The data that were found."""

    slices: tuple[Tensor, ...]
    """For each worker (samples, *slice shape), NaN where h is unknown."""
    residual: Tensor
    """(samples, workers): how far its representation is from the one recovered, relative; NaN where that is unknown."""
    acceptable: float
    """The residual above which no data with these representations was found; the slice is then the nearest."""

    @property
    def missed(self) -> Tensor:
        """Tell for which slices (samples, workers) no data was found."""
        return self.residual > self.acceptable

    def reordered(self, orders: Sequence[Tensor]) -> "Inverted":
        """Return the same with every worker's samples in another order."""
        slices = tuple(part[order] for part, order in zip(self.slices, orders, strict=True))
        residual = [self.residual[order, worker] for worker, order in enumerate(orders)]
        return Inverted(slices, torch.stack(residual, dim=1), self.acceptable)


def step_three(
    setting: Setting,
    choice: Choice,
    bottoms: Sequence[nn.Module],
    found: Sequence[Tensor],
    *,
    options: InversionOptions | None,
    cells: tuple[tuple[int, ...], ...],
    progress: Progress,
    versions: Sequence[ModelTensors] = (),
    version_of: Tensor | None = None,
) -> Inverted | None:
    """Return the slices with these representations (samples, inputs); None where that takes what was switched off.

    Where the parameters moved, `versions` has them, and `version_of` (samples,) says which each sample's are.
    """
    if options is None and not all(layer.sees_data for layer in choice.layers):
        return None
    slices = [torch.full((len(h), *box.shape), torch.nan) for h, box in zip(found, setting.boxes, strict=True)]
    residual = torch.full((len(found[0]), setting.workers), torch.nan)
    hidden: list[_Hidden] = []
    for worker, (layer, box, h) in enumerate(zip(choice.layers, setting.boxes, found, strict=True)):
        if layer.sees_data:
            part = h.reshape(-1, *box.shape)
            slices[worker] = (part if layer.bias else likeliest_length(part)).float()
            residual[:, worker] = torch.where(h.isfinite().all(dim=1), 0.0, torch.nan)
        elif bool(h.isfinite().all(dim=1).any()):
            moved = tuple(version.bottoms[worker] for version in versions)
            model, shape = bottoms[worker], box.shape
            own = _Hidden.of(worker, layer, model, h, shape=shape, versions=moved, version_of=version_of)
            hidden.append(own)

    def offer(parts: Sequence[Tensor]) -> None:
        share(progress, lambda: unfinished(setting, fill(parts), cells))

    def fill(parts: Sequence[Tensor]) -> list[Tensor]:
        for own, x in zip(hidden, parts, strict=True):
            slices[own.worker][own.known] = x.float().cpu()[own.which]
        return slices

    if hidden:
        assert options is not None
        done = invert_together(
            [own.wanted for own in hidden], seed=setting.seed, device=setting.device, options=options,
            progress=lambda at, of: progress("step III", at, of), offer=offer,
        )  # fmt: skip
        fill([one.x for one in done])
        for own, one in zip(hidden, done, strict=True):
            residual[own.known, own.worker] = one.residual.float().cpu()[own.which]
    return Inverted(tuple(slices), residual, options.acceptable if options else 0.0)


@dataclass(frozen=True)
class _Hidden:
    """One worker's representations to invert: those that are known, identical ones once."""

    worker: int
    wanted: Wanted
    known: Tensor
    which: Tensor
    """(known,): which of the wanted each of them is."""

    @classmethod
    def of(
        cls, worker: int, layer: FullyConnected, model: nn.Module, h: Tensor, *, shape: Shape,
        versions: tuple[Tensors, ...], version_of: Tensor | None,
    ) -> "_Hidden":  # fmt: skip
        """Look for identical ones."""
        known = h.isfinite().all(dim=1).nonzero()[:, 0]
        version = torch.zeros(len(known)) if version_of is None else version_of[known]
        both = torch.cat([h[known].float(), version[:, None].float()], dim=1)
        distinct, which = both.unique(dim=0, return_inverse=True)
        wanted = Wanted(
            model.float(), layer.name, distinct[:, :-1], shape,
            unit=not layer.bias, versions=versions, version_of=distinct[:, -1].long(),
        )  # fmt: skip
        return cls(worker, wanted, known, which)


def unfinished(setting: Setting, slices: Sequence[Tensor], cells: tuple[tuple[int, ...], ...]) -> Recovery:
    """Return an estimate on the way: as many rows as there are samples, NaN for those to come."""
    whole = [torch.full((setting.samples, *box.shape), torch.nan) for box in setting.boxes]
    for part, own in zip(whole, slices, strict=False):
        rows = min(len(part), len(own))
        part[:rows] = own[:rows]
    return Recovery(slices=tuple(whole), cells=cells)
