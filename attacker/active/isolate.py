"""`isolate`: a malicious coordinator's parameters tell the rows of a batch apart, and say which are certain."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from attacker.active.batch import BENDS, Apart, Batch
from attacker.active.network import Network
from attacker.interface import (
    Attack,
    AttackPlugin,
    Lack,
    Observation,
    Progress,
    Proposal,
    Recovery,
    RefusalError,
    Setting,
    attacks,
)
from vfl.errors import UserError
from vfl.recovery import CERTIFIED
from vfl.seeds import generator

FEWEST = 2 * BENDS
MOST_ROWS = 2048
"""Of a batch: with more, float32 does not tell counts apart."""


@attacks.register("isolate")
class Isolate(AttackPlugin):
    """Our own, for a malicious coordinator: parameters that isolate every row of a batch, with a certificate.

    After Boenisch et al. 2023 ("When the curious abandon honesty") and VGIA (arXiv 2604.15063), for a vertical
    federation: the coordinator also sets the top model, which makes the gradients count.
    """

    active: ClassVar[bool] = True
    measurements: int = Field(4, ge=1, le=32, description="times that each row is measured again, at the most")

    def start(self, setting: Setting) -> Attack:
        """Begin, if the network is one whose every weight can be put to use."""
        network = Network.of(setting)
        lacks = [network] if isinstance(network, Lack) else []
        if isinstance(network, Network) and min(one.units for one in network.bottoms) < FEWEST:
            fewest = min(one.units for one in network.bottoms)
            lacks.append(Lack(f"first layers of {FEWEST} units or more", f"one has {fewest} (model.hidden)"))
        if setting.batch_size > MOST_ROWS:
            lacks.append(Lack(f"batches of at most {MOST_ROWS}", f"federation.batch_size is {setting.batch_size}"))
        if setting.augmented or setting.local_steps > 1:
            lacks.append(Lack("plain gradients of the rows themselves", "the workers augment them, or take steps"))
        if setting.frozen:
            lacks.append(Lack("parameters that may change", "here they are frozen (training.lr)"))
        if lacks or isinstance(network, Lack):
            raise RefusalError("isolate", *lacks)
        return _Isolating(self, setting, network)


class _Isolating:
    def __init__(self, options: Isolate, setting: Setting, network: Network) -> None:
        self._options, self._setting, self._network = options, setting, network
        self._batches = list(torch.arange(setting.samples).split(setting.batch_size))
        self._apart: list[Batch] = []

    @property
    def _current(self) -> Batch | None:
        """The batch that is being taken apart; None after the last."""
        if not self._apart or self._apart[-1].done:
            place = len(self._apart)
            if place == len(self._batches):
                return None
            random = generator(self._setting.seed, "the directions of isolate", place)
            made = Batch(self._network, self._batches[place], random, measurements=self._options.measurements)
            self._apart.append(made)
        return self._apart[-1]

    def propose(self, number: int) -> Proposal | None:  # noqa: ARG002
        batch = self._current
        return None if batch is None else Proposal(batch.indices, batch.propose())

    def observe(self, observation: Observation) -> None:
        batch = self._current
        if batch is None or not torch.equal(batch.indices, observation.indices):
            return
        first = self._network.bottoms[0].layers[0]
        wanted = batch.propose().bottoms[0][f"{first}.bias"]  # in a recorded run nobody asked: the state moves here
        if torch.equal(observation.parameters.bottoms[0][f"{first}.bias"], wanted):
            batch.observe(observation)

    def recover(self, progress: Progress) -> Recovery:  # noqa: ARG002
        if not any(batch.rounds for batch in self._apart):
            raise UserError("isolate was shown no round that was played as it proposed")
        setting, samples = self._setting, self._setting.samples
        slices = [torch.full((samples, *box.shape), torch.nan) for box in setting.boxes]
        certificates = torch.full((samples, len(setting.boxes)), torch.nan)
        labels = torch.full((samples,), -1, dtype=torch.int64)
        notes: list[str] = []
        for batch in self._apart:
            found = batch.apart()
            if found is not None:
                self._put(batch.indices, found, slices, certificates=certificates, labels=labels)
            if batch.problem:
                notes.append(f"A batch was given up: {batch.problem}. Something alters the gradients.")
        return Recovery(
            slices=tuple(slices),
            labels=labels,
            cells=tuple(tuple(batch.indices.tolist()) for batch in self._apart if batch.rounds),
            certificates=certificates,
            used=("indices", "parameters", "gradients", "batches and parameters of its own choosing"),
            rounds=tuple(number for batch in self._apart for number in batch.rounds),
            notes=(self._note(), *notes),
        )

    def _put(
        self, indices: Tensor, found: Apart, slices: list[Tensor], *, certificates: Tensor, labels: Tensor
    ) -> None:
        for whole, rows in zip(slices, found.rows, strict=True):
            whole[indices] = rows.float().reshape(len(indices), *whole.shape[1:])
        certificates[indices] = found.errors.float()
        certain = ~found.errors.isnan().any(dim=1)
        others = 1 if self._setting.classes == 2 else -1
        labels[indices] = torch.where(certain, torch.where(found.one, 0, others), -1)

    def _note(self) -> str:
        used = [batch for batch in self._apart if batch.rounds]
        each = ", ".join(str(len(batch.rounds)) for batch in used[:6]) + (", …" if len(used) > 6 else "")
        taken = f"took {len(used)} of {len(self._batches)} batches apart, by the parameters it chose for {each} rounds"
        return f"The malicious coordinator {taken}. It certifies a row that it found twice, the same to {CERTIFIED:g}."
