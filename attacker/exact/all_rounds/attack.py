"""The running attack: rounds in as they come, then all samples at once."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attacker.certificate import Evidence
from attacker.exact.all_rounds.guess import Guess
from attacker.exact.all_rounds.settle import confirmed, settle
from attacker.exact.all_rounds.stack import Stack
from attacker.exact.all_rounds.stacking import stacked
from attacker.exact.choice import Choice
from attacker.exact.notes import notes_on_certificates
from attacker.exact.workers.labels import NOTE
from attacker.interface import Progress, Recovery
from vfl.device import one_thread
from vfl.errors import UserError
from vfl.models.whole import first_model
from vfl.observation import Observation, Setting
from vfl.seeds import generator

ENOUGH = 12
"""Rounds of each sample, as an epoch has them, that are kept: more would take longer and tell little."""
LOOKS = 4
"""How often the samples that are not yet right are looked for, each time beside fewer others."""
HELD = (
    "{} of {} samples explain no unit of the layers to which they add: what is shown of them is a guess; more epochs "
    "may tell"
)


class AllRounds:
    """Keeps the first rounds whole, as parameters move in each, and looks for all samples in them together."""

    def __init__(self, setting: Setting, choice: Choice) -> None:
        self._setting, self._choice = setting, choice
        self._rounds: list[Observation] = []
        self._evidence = Evidence(setting, choice.layers)

    def observe(self, observation: Observation) -> None:
        """Keep a round, if it is among the first."""
        self._evidence.add(observation)
        if len(self._rounds) < ENOUGH * self._setting.rounds_per_epoch:
            self._rounds.append(observation)

    def recover(self, progress: Progress) -> Recovery:
        """Guess all samples, then solve for them."""
        if not self._rounds:
            raise UserError("attack exact: no round was observed")
        setting, layers = self._setting, self._choice.layers
        known = None if setting.labels is None else torch.tensor(setting.labels)
        with one_thread():
            stack = stacked(self._rounds, layers, first_model(setting), loss=setting.loss, batch=setting.batch_size)
            stack = replace(stack, known=known is not None and setting.loss.of_number)
            x, classes, sure, left = _look(stack, setting, known=known, progress=progress)
        columns = sum(stack.columns)
        labels = x[:, columns] if setting.loss.of_number else classes
        rows = x[:, :columns].float().split(stack.columns, dim=1)
        slices = tuple(own.reshape(-1, *box.shape) for own, box in zip(rows, setting.boxes, strict=True))
        certificates = self._evidence.certify(slices, labels)
        solved = f"The attack solved for all samples of {len(stack)} rounds at once; half of the units are explained to"
        return Recovery(
            slices=slices,
            representations=rows,
            layers=tuple(layer.name for layer in layers),
            labels=labels,
            certificates=certificates,
            rounds=tuple(one.round for one in self._rounds),
            used=("indices", "parameters", "gradients", *(() if known is None else ("labels",)), "scaled columns"),
            notes=(
                f"{solved} {left:.0e} of what one sample adds to them.",
                *(() if bool(sure.all()) else (f"{HELD.format(int((~sure).sum()), setting.samples)}.",)),
                *((f"{self._choice.remark}.",) if self._choice.remark else ()),
                *notes_on_certificates(certificates, self._evidence),
                *(() if known is None else (NOTE,)),
            ),
        )


def _look(
    stack: Stack, setting: Setting, *, known: Tensor | None, progress: Progress
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return all samples with their classes, which of them are found right, and the median residual of a unit.

    Those that are found right are taken out of the rounds, and the others are looked for again in what is left.
    """
    draws = generator(setting.seed, "all rounds")
    x, classes = torch.zeros(setting.samples, stack.unknowns).double(), torch.zeros(setting.samples).long()
    sure, left = torch.zeros(setting.samples, dtype=torch.bool), math.inf
    for _ in range(LOOKS):
        chosen = torch.nn.functional.one_hot(classes, setting.classes)
        rest = stack.to(torch.float64).without(x, chosen.double(), sure).to(torch.float32) if sure.any() else stack
        others = (~sure).nonzero()[:, 0]
        guess = Guess(rest, len(others), setting.classes, labels=None if known is None else known[others], draws=draws)
        guess.run(progress)
        found, _ = settle(rest, guess.x, guess.classes, classes=setting.classes, progress=progress)
        x[others], classes[others] = found, guess.classes
        before = int(sure.sum())
        sure, left = confirmed(stack, x, classes, classes=setting.classes)
        if bool(sure.all()) or int(sure.sum()) <= before:
            break
    return x, classes, sure, left
