"""A horizontal federation as attacks see it: for each worker a vertical federation of one, and its samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from attacker.interface import Attack, Progress, Resumable, share
from vfl.errors import UserError
from vfl.observation import Observation, Setting, without_prefix
from vfl.recovery import Recovery
from vfl.topology import Topology


class Horizontal:
    """One attack on each worker; what they recover is put together in the samples' order."""

    def __init__(self, setting: Setting, start: Callable[[Setting], Attack]) -> None:
        self._topology = setting.topology
        alone = [replace(setting, samples=share, topology=Topology(1)) for share in self._topology.shares]
        self._attacks = [start(own) for own in alone]

    def observe(self, observation: Observation) -> None:
        """Show each attack its worker's part of a round, if the worker uploaded."""
        rows = self._topology.rows_of_each(observation.indices)
        for attack, own, upload in zip(self._attacks, rows, observation.uploads, strict=True):
            alone = replace(observation, indices=own, gradients=upload, uploads=())
            if alone.complete:
                attack.observe(alone)

    @property
    def resumable(self) -> bool:
        """Whether all of them can go on from a state."""
        return all(getattr(attack, "resumable", False) for attack in self._attacks)

    def state(self) -> dict[str, Tensor]:
        """Return the states of all of them."""
        each = [attack.state() for attack in self._attacks if isinstance(attack, Resumable)]
        return {f"{worker}.{name}": tensor for worker, own in enumerate(each) for name, tensor in own.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Let each of them go on from its own."""
        for worker, attack in enumerate(self._attacks):
            assert isinstance(attack, Resumable)
            attack.restore(without_prefix(f"{worker}.", state))

    def recover(self, progress: Progress) -> Recovery:
        """Return what all of them recover; a worker whose attack has too few rounds loses nothing."""
        found: list[Recovery | None] = []
        failures: list[str] = []
        for worker, attack in enumerate(self._attacks):
            try:
                found.append(attack.recover(_WorkerProgress(progress, worker, tuple(found), self._topology.shares)))
            except UserError as error:
                if not any(found) and worker == len(self._attacks) - 1:
                    raise
                failures.append(f"worker {worker}: nothing was recovered: {error}")
                found.append(None)
        whole = together(found, self._topology.shares)
        return replace(whole, notes=(*whole.notes, *failures))


@dataclass(frozen=True)
class _WorkerProgress:
    """The progress of the attack on one worker: steps bear its name, estimates have what is known of the others."""

    progress: Progress
    worker: int
    before: tuple[Recovery | None, ...]
    """What was recovered of the workers before it."""
    shares: tuple[int, ...]

    def __call__(self, step: str, done: int, total: int) -> None:
        self.progress(f"worker {self.worker}: {step}", done, total)

    def estimate(self, make: Callable[[], Recovery]) -> None:
        """Offer what there is of all workers so far."""
        later = (None,) * (len(self.shares) - self.worker - 1)
        share(self.progress, lambda: together((*self.before, make(), *later), self.shares))


def together(found: Sequence[Recovery | None], shares: Sequence[int]) -> Recovery:
    """Put the recoveries of all workers together; of a worker without one nothing is known."""
    each = [one or Recovery(used=()) for one in found]
    firsts = list(accumulate(shares, initial=0))
    cells = (tuple(first + i for i in cell) for first, one in zip(firsts, each, strict=False) for cell in one.cells)
    rounds = None
    if all(one is None or one.rounds is not None for one in found):
        rounds = tuple(sorted({number for one in each for number in one.rounds or ()}))
    layers = {one.layers for one in each if one.layers is not None}
    entered = [_only(one.representations) for one in each]
    widths = {one.shape[1:] for one in entered if one is not None}
    alike = len(layers) <= 1 and len(widths) <= 1  # else workers were attacked at different layers
    representations = _stacked(entered, shares) if alike else None
    slices = _stacked([_only(one.slices) for one in each], shares)
    return Recovery(
        slices=None if slices is None else (slices,),
        representations=None if representations is None else (representations,),
        layers=layers.pop() if alike and layers else None,
        labels=_stacked([one.labels for one in each], shares),
        cells=tuple(cells),
        certificates=_stacked([one.certificates for one in each], shares),
        used=tuple(dict.fromkeys(what for one in each for what in one.used)),
        rounds=rounds,
        altered=None if all(one.altered is None for one in each) else tuple((one.altered or (0.0,))[0] for one in each),
        notes=_notes([one.notes for one in each]),
    )


def _only(parts: tuple[Tensor, ...] | None) -> Tensor | None:
    return None if parts is None else parts[0]


def _stacked(parts: Sequence[Tensor | None], shares: Sequence[int]) -> Tensor | None:
    """Put rows of all workers below each other; None if no worker has any."""
    one = next((part for part in parts if part is not None), None)
    if one is None:
        return None
    unknown = torch.nan if one.is_floating_point() else -1
    blank = [one.new_full((count, *one.shape[1:]), unknown) for count in shares]
    return torch.cat([empty if part is None else part for part, empty in zip(parts, blank, strict=True)])


def _notes(notes: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Say once what is the same of several workers, and of whom."""
    said: dict[str, list[int]] = {}
    for worker, own in enumerate(notes):
        for note in own:
            said.setdefault(note, []).append(worker)
    return tuple(f"{_named(whom, len(notes))}: {note}" for note, whom in said.items())


def _named(workers: Sequence[int], of_all: int) -> str:
    if len(workers) == of_all > 1:
        return "each worker"
    return f"worker{'s' * (len(workers) > 1)} {', '.join(map(str, workers))}"
