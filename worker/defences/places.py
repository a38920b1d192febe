"""A worker's defences at all places: of its uploads, of its outputs and, at the label holder, of its answers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vfl.config import RunConfig
from vfl.config.places import Place
from vfl.maths.tensors import all_finite, kind_of
from vfl.observation import Tensors
from vfl.registry import OURS, PluginSection
from worker.defences import Chain, Plan, Swapped, built_for, checks, defences
from worker.keys import Draws


class Defences:
    """What a worker does to all that it sends."""

    def __init__(self, config: RunConfig, plan: Plan) -> None:
        topology = config.topology
        self._holds_labels, self._place = topology.holds_labels(plan.worker), topology.bottom_of(plan.worker)
        self._uploads = Chain(config.defence_of(plan.worker), plan)
        self.outputs = SwapChain(config.defence_of(plan.worker, "outputs"), plan, "outputs")
        self.answers = SwapChain(config.defence_of(plan.worker, "answers"), plan, "answers")

    def start_first(self) -> None:
        """Take note that no other process was this worker before."""
        self._uploads.start_first()

    def start_late(self) -> None:
        """Take note that another process was this worker before."""
        self._uploads.start_late()

    @property
    def mean_over(self) -> int | None:
        """Return what sums over a batch are divided by; None for the batch's own length."""
        return self._uploads.mean_over

    def rows(self, number: int, named: Tensor) -> Tensor:
        """Return which rows a round is played on."""
        return self._uploads.rows(number, named)

    def apply(self, gradients: Tensors, number: int, *, rows: Tensor, x: Tensor, model: nn.Module) -> Tensors:
        """Return what is uploaded, or raise WithheldError for nothing."""
        return self._uploads.apply(gradients, number, rows=rows, x=x, model=model)

    def sent(self, output: Tensor, number: int, rows: Tensor) -> Tensor:
        """Return an output as it leaves this worker; the label holder's own does not."""
        return output if self._holds_labels else self.outputs.apply(output, number, rows=rows)

    def penalty(self, x: Tensor, output: Tensor) -> Tensor | None:
        """Return what the loss of this worker's bottom model gets besides, if anything; the label holder's does not."""
        return None if self._holds_labels else self.outputs.penalty(x, output)

    def answered(
        self, answers: Sequence[Tensor], number: int, rows: Tensor, *, labels: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Return the answers to all outputs as they leave the label holder, given all labels; its own does not."""
        if not self.answers or labels is None:
            return tuple(answers)
        learned = labels[rows]
        return tuple(
            one
            if worker == self._place
            else self.answers.apply(one, number, rows=rows, to=f"to worker {worker}", labels=learned)
            for worker, one in enumerate(answers)
        )

    def report(self) -> dict[str, Any]:
        """Return what there is to say at the end, of each defence and of the whole."""
        report = self._uploads.report()
        chain = [*report["chain"], *self.outputs.report(), *self.answers.report()]
        return report | {"chain": chain}


class SwapChain:
    """Defences of what workers exchange, one after the other."""

    def __init__(self, sections: Sequence[PluginSection], plan: Plan, place: Place) -> None:
        self._plan, self._place = plan, place
        named = [section for section in sections if section.name != "none"]
        self._all = [(section.name, built_for(place, section)) for section in named]

    def __bool__(self) -> bool:
        return bool(self._all)

    def apply(self, tensor: Tensor, number: int, *, rows: Tensor, to: str = "", labels: Tensor | None = None) -> Tensor:
        """Return what is sent in place of an output or an answer of a round."""
        for order, (name, defence) in enumerate(self._all):
            swapped = Swapped(number, rows, self._draws(order, number, to), labels)
            foreign = type(defence).__module__.partition(".")[0] not in OURS
            kind, finite = kind_of(tensor), foreign and all_finite(tensor)
            with defences.guard(name, defence, "exchange"):
                made = {str(self._place): defence.exchange(tensor, swapped)}
                tensor = checks.fitting_upload(name, made, {str(self._place): kind}, finite)[self._place]
        return tensor

    def penalty(self, x: Tensor, output: Tensor) -> Tensor | None:
        """Return the sum of what the defences add to the loss of a batch; None if none of them does."""
        found = []
        for name, defence in self._all:
            with defences.guard(name, defence, "penalty"):
                found.append(checks.fitting_penalty(name, defence.penalty(x, output)))
        given = [one for one in found if one is not None]
        return torch.stack(given).sum() if given else None

    def check(self, classes: int) -> None:
        """Refuse defences that are not for so many classes."""
        for _, defence in self._all:
            defence.check(classes)

    def labels(self, labels: Tensor, classes: int) -> Tensor:
        """Return what is learned in place of the labels: drawn once, so that many rounds tell no more than one."""
        self.check(classes)
        for order, (name, defence) in enumerate(self._all):
            with defences.guard(name, defence, "labels"):
                labels = defence.labels(labels, classes, self._draws(order, 0, "labels"))
        return labels

    def report(self) -> list[dict[str, Any]]:
        """Return what there is to say at the end of each defence."""
        found = []
        for name, defence in self._all:
            with defences.guard(name, defence, "report"):
                found.append({"name": f"{name} on {self._place}", **checks.fitting_report(name, defence.report())})
        return found

    def _draws(self, order: int, number: int, to: str) -> Draws:
        plan = self._plan
        return plan.secret.draws(f"{self._place} {order} of worker {plan.worker} {to}", number)
