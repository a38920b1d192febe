"""The rounds that recovered samples are held against: kept as they come, in bounded memory, and asked at the end.

A certificate is a bound, from the gradients alone, on the relative error of what a sample is to its worker's attacked
layer. It is the larger of two numbers: how badly the sample explains the gradients of *every* round that it took part
in (`explained.py`), and how far it could be from where it is with these gradients (`determined.py`). NaN: not known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attacker.certificate.case import Case, Round
from vfl.device import one_thread
from vfl.maths.factors import Factors, factorize
from vfl.models.layers import FullyConnected
from vfl.observation import ModelTensors, Observation, Setting
from vfl.seeds import generator

MOST_BYTES = 1 << 29
"""What may be kept of the rounds; those after them are not looked at, and the notes say how many were."""
SKETCH = 4096
"""Numbers that a worker's whole gradient is reduced to, if it has more: enough to tell its length to a few percent."""


class Evidence:
    """Rounds, and what they say of recovered samples."""

    def __init__(self, setting: Setting, layers: Sequence[FullyConnected], most_bytes: int = MOST_BYTES) -> None:
        self._setting, self._layers, self._left = setting, layers, most_bytes
        self._signs: dict[int, Tensor] = {}
        self._version = -1
        self._parameters: ModelTensors | None = None
        self.rounds: list[Round] = []
        self.shown = 0
        """How many rounds there were, kept or not."""

    def add(self, observation: Observation, factors: Sequence[Factors] | None = None) -> None:
        """Keep a round while there is room; `factors` are those of the attacked layers, if they are known already."""
        self.shown += 1
        if self._left < 0:
            return
        gradients = observation.gradients
        if factors is None:
            with one_thread():
                factors = [
                    factorize(own[f"{layer.name}.weight"], own.get(f"{layer.name}.bias"), len(observation.indices))
                    for own, layer in zip(gradients.bottoms, self._layers, strict=True)
                ]
        rows = [
            torch.cat([torch.zeros(0), *(part[name].detach().cpu().flatten() for name in sorted(part))]).double()
            for part in (*gradients.bottoms, gradients.top)
        ]
        if observation.version != self._version:
            self._version, self._parameters = observation.version, observation.parameters
            parts = (*observation.parameters.bottoms, observation.parameters.top)
            self._left -= sum(tensor.nbytes for part in parts for tensor in part.values())
        assert self._parameters is not None
        whole = tuple(self._sketch(at, row) for at, row in enumerate(rows))
        batch = observation.indices
        self.rounds.append(Round(observation.round, batch, len(batch), self._parameters, tuple(factors), whole))
        kept = [*whole, *(part for own in factors for part in (own.left, own.right))]
        self._left -= sum(tensor.nbytes for tensor in kept)

    def _sketch(self, at: int, row: Tensor) -> Tensor:
        """Reduce a party's gradient, all of it in one row, to fewer numbers with the same length, nearly."""
        if len(row) <= SKETCH:
            return row
        if at not in self._signs:
            draws = generator(self._setting.seed, "certificate", at)
            self._signs[at] = torch.randint(2, (len(row),), generator=draws, dtype=torch.int8).mul_(2).sub_(1)
        filled = torch.nn.functional.pad(row * self._signs[at], (0, -len(row) % SKETCH))
        sums: Tensor = filled.reshape(-1, SKETCH).sum(dim=0)
        return sums

    def certify(
        self, slices: Sequence[Tensor], labels: Tensor, *, batches: Mapping[int, Tensor] | None = None
    ) -> Tensor:
        """Return the certificates (samples, workers) of recovered slices and labels.

        `batches` has for each round's number which of the samples were in its batch, where they are not called by the
        indices of the observation; rounds that it lacks are not looked at.
        """
        rounds = self.rounds
        if batches is not None:
            rounds = [replace(one, samples=batches[one.number]) for one in rounds if one.number in batches]
        with one_thread():
            return Case(self._setting, self._layers, slices, labels, sketch=self._sketch).certificates(rounds)

    @property
    def notes(self) -> list[str]:
        """Return what is to be said of the rounds that were left out."""
        if len(self.rounds) == self.shown:
            return []
        return [f"Certificates rest on the first {len(self.rounds)} of {self.shown} rounds: more take too much memory."]
