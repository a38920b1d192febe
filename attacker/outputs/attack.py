"""`output_inversion`: the label holder has outputs, the coordinator parameters; together they solve for the data."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from attacker.interface import (
    EVERY_LOSS,
    Attack,
    AttackPlugin,
    Lack,
    Progress,
    Recovery,
    RefusalError,
    Setting,
    attacks,
)
from attacker.outputs.solve import Seen, Solved, solve
from vfl.errors import UserError
from vfl.models import build_bottom
from vfl.observation import CoalitionObservation, LabelHolderObservation, Observation, Tensors
from vfl.seats import SeatKind

MOST = 4_000_000
"""Samples times squared features that are solved for at once: 32 MB for each matrix of that size."""
FITS = 1e-6
"""The relative error of a sample's outputs from which on they are explained."""


@attacks.register("output_inversion")
class OutputInversion(AttackPlugin):
    """Our own, for a coalition of label holder and coordinator: outputs with known parameters, by least squares.

    Each time that a sample is in a batch its output is one more set of equations for its slice, at other parameters if
    they move. With a linear bottom model this is the equation solving attack of Luo et al. 2021.
    """

    seats: ClassVar[tuple[frozenset[SeatKind], ...]] = (frozenset({"coordinator", "label_holder"}),)
    losses, weighs = EVERY_LOSS, True
    iterations: int = Field(40, ge=1, description="of Levenberg's and Marquardt's method, from each start")
    restarts: int = Field(16, ge=1, description="starts for a sample that is not explained yet")

    def start(self, setting: Setting) -> Attack:
        """Begin, if all slices' shapes are known, and none is too large."""
        largest = max(_features(setting, worker) for worker in range(len(setting.boxes)))
        if largest**2 > MOST:
            found = f"worker {max(range(len(setting.boxes)), key=lambda one: _features(setting, one))} has {largest}"
            raise RefusalError("output_inversion", Lack(f"slices of at most {int(MOST**0.5)} features", found))
        return _Inverting(self, setting)


def _features(setting: Setting, worker: int) -> int:
    return int(torch.Size(setting.boxes[worker].shape).numel())


class _Inverting:
    def __init__(self, options: OutputInversion, setting: Setting) -> None:
        self._options, self._setting = options, setting
        self._rounds: list[tuple[int, LabelHolderObservation]] = []
        self._parameters: dict[int, tuple[Tensors, ...]] = {}
        """Of all workers' bottom models, by version."""

    def observe(self, observation: CoalitionObservation) -> None:
        coordinator = next(part for part in observation.parts if isinstance(part, Observation))
        holder = next(part for part in observation.parts if isinstance(part, LabelHolderObservation))
        self._parameters.setdefault(coordinator.version, coordinator.parameters.bottoms)
        self._rounds.append((coordinator.version, holder))

    def recover(self, progress: Progress) -> Recovery:
        if not self._rounds:
            raise UserError("the label holder has seen no output yet: it takes one round at the least")
        slices, notes = [], []
        for worker in range(len(self._setting.boxes)):
            own = self._setting.held.slices.get(worker)
            if own is not None:
                slices.append(own.float())
                continue
            # Many small matrices: threads that wait for each other on a busy machine take longer than one alone.
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                solved = self._worker(worker, progress)
            finally:
                torch.set_num_threads(threads)
            slices.append(solved.x.float())
            notes.append(_note(worker, solved, _features(self._setting, worker)))
        held = ("own slice",) if self._setting.held.slices else ()
        used = ("indices", "parameters", "outputs", *held)
        return Recovery(slices=tuple(slices), used=used, notes=tuple(notes))

    def _worker(self, worker: int, progress: Progress) -> Solved:
        """Solve for one worker's slices; those that fail start again where a sample with like outputs was found."""
        setting, outputs_of = self._setting, self._seen(worker)
        bottom = build_bottom(setting.model, setting.boxes[worker].shape, setting.seed, worker)
        outputs, seen = _mean_outputs(outputs_of, setting.samples)
        size = max(1, MOST // _features(setting, worker) ** 2)
        best = Solved(
            self._middle(worker),
            torch.full((setting.samples,), torch.inf),
            torch.zeros(setting.samples, dtype=torch.int64),
        )
        for attempt in range(self._options.restarts):
            left = (seen & (best.misfit > FITS)).nonzero()[:, 0]
            if not len(left):
                break
            starts = self._starts(worker, attempt, best, outputs)
            for some in left.split(size):
                progress(f"outputs of worker {worker}", setting.samples - len(left), setting.samples)
                about = outputs_of.among(some, setting.samples)
                found = solve(bottom, about, starts[some], self._options.iterations)
                best = _better(best, found, some)
        best.x[~seen] = torch.nan
        return best

    def _seen(self, worker: int) -> Seen:
        """Return all that came out of one worker's bottom model."""
        places = {version: place for place, version in enumerate(self._parameters)}
        each = [own[worker] for own in self._parameters.values()]
        return Seen(
            samples=torch.cat([holder.indices for _, holder in self._rounds]),
            versions=torch.cat([torch.full((len(one.indices),), places[version]) for version, one in self._rounds]),
            outputs=torch.cat([holder.outputs[worker] for _, holder in self._rounds]).double(),
            parameters={name: torch.stack([own[name].double() for own in each]) for name in each[0]},
        )

    def _middle(self, worker: int) -> Tensor:
        shape = self._setting.boxes[worker].shape
        return torch.full((self._setting.samples, *shape), 0.5 if len(shape) > 1 else 0.0, dtype=torch.float64)

    def _starts(self, worker: int, attempt: int, best: Solved, outputs: Tensor) -> Tensor:
        """Return where to begin: the middle, then samples that were found, the nearest by their outputs first."""
        middle = self._middle(worker)
        draw = torch.Generator().manual_seed((self._setting.seed + 7919 * attempt + worker) % (1 << 62))
        noise = torch.randn(middle.shape, generator=draw, dtype=torch.float64)
        spread = 0.25 if middle.dim() > 2 else 1.0
        found = (best.misfit <= FITS).nonzero()[:, 0]
        if not attempt:
            return middle + 1e-3 * spread * noise  # not quite the same: ReLU has no slope at 0
        if len(found) < attempt:
            return middle + spread * noise
        nearest = torch.cdist(outputs, outputs[found]).argsort(dim=1)[:, attempt - 1]
        return best.x[found[nearest]]


def _mean_outputs(seen: Seen, samples: int) -> tuple[Tensor, Tensor]:
    """Return each sample's mean output, and whether there is one."""
    times = torch.bincount(seen.samples, minlength=samples)
    sums = torch.zeros(samples, seen.outputs.shape[1], dtype=torch.float64).index_add_(0, seen.samples, seen.outputs)
    return sums / times.clamp(min=1).unsqueeze(1), times > 0


def _better(best: Solved, found: Solved, some: Tensor) -> Solved:
    """Put what was found of some samples in the place of what is worse."""
    take = found.misfit < best.misfit[some]
    x, misfit, needed = best.x.clone(), best.misfit.clone(), best.rounds_needed.clone()
    x[some[take]], misfit[some[take]] = found.x[take], found.misfit[take].to(misfit)
    needed[some[take]] = found.rounds_needed[take].to(needed)
    return Solved(x, misfit, needed)


def _note(worker: int, solved: Solved, features: int) -> str:
    """Say how many slices the outputs determine, and after how many rounds."""
    fits = int((solved.misfit <= FITS).sum())
    determined = solved.rounds_needed[(solved.rounds_needed > 0) & (solved.misfit <= FITS)]
    if not len(determined):
        return f"Worker {worker}: the outputs do not determine any slice of {features} features; {fits} are explained."
    rounds = sorted(set(determined.tolist()))
    after = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    return (
        f"Worker {worker}: its outputs determine {len(determined)} of {len(solved.x)} slices of {features} features, "
        f"after {after} of a sample's rounds."
    )
