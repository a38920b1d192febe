"""`model_completion`: a worker completes its trained bottom model to a classifier, with few labels that it knows."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attacker.interface import Attack, AttackPlugin, Lack, Progress, Recovery, RefusalError, Setting, attacks
from attacker.labels.known import check_known, told_words
from attacker.labels.mixmatch import Few, learn
from vfl.device import one_thread
from vfl.errors import UserError
from vfl.models import build_bottom, output_width
from vfl.observation import Tensors, WorkerObservation
from vfl.optimisers.training import LossName
from vfl.seats import SeatKind
from vfl.seeds import seeded

NAME = "model_completion"
AT_ONCE = 256
WEIGHT_DECAY = 1e-3


@attacks.register(NAME)
class ModelCompletion(AttackPlugin):
    """Passive model completion (Fu et al. 2022): a head on the worker's own bottom model, from few known labels.

    It uses the worker's slice and its parameters after the last round, and no answer: a defence of answers touches it
    only as far as it keeps the bottom model from learning.
    """

    seats: ClassVar[tuple[frozenset[SeatKind], ...]] = (frozenset({"worker"}),)
    losses: ClassVar[frozenset[LossName]] = frozenset({"cross_entropy", "binary"})  # it reads no gradient
    weighs: ClassVar[bool] = True
    known: dict[int, int] = Field({}, description="classes of samples that the worker knows, as {sample: class}")
    steps: int = Field(300, ge=1, description="of training, on 32 samples with a label and 64 without")
    rate: float = Field(0.0005, gt=0, description="the learning rate (Adam)")
    weight: float = Field(10.0, ge=0, description="of samples without a label, beside those with one")
    from_scratch: bool = Field(
        False, description="begin with a bottom model that has learned nothing: what the known labels are worth alone"
    )

    def start(self, setting: Setting) -> Attack:
        """Begin, if a sample of each class is known."""
        check_known(NAME, self.known, setting)
        there = len(set(self.known.values()))
        if there < setting.classes:
            found = f"attack.known has samples of {there} of {setting.classes} classes"
            raise RefusalError(NAME, Lack("a known sample of each class, at the least", found))
        return Completing(self, setting)


class Completing:
    """Keeps the last parameters, and completes them."""

    def __init__(self, options: ModelCompletion, setting: Setting) -> None:
        self._options, self._setting = options, setting
        self._parameters: Tensors | None = None
        self._last = 0

    def observe(self, observation: WorkerObservation) -> None:
        """Take in one round."""
        self._parameters, self._last = observation.parameters, observation.round

    def recover(self, progress: Progress) -> Recovery:
        """Return the labels that the completed model says."""
        if self._parameters is None:
            raise UserError("the worker has got no parameters yet: it takes one round at the least")
        options, setting = self._options, self._setting
        worker = setting.seats[0].worker
        assert worker is not None
        x = setting.held.slices[worker].float()
        few = Few(x, torch.tensor(list(options.known)), torch.tensor(list(options.known.values())), setting.classes)
        with seeded(setting.seed, NAME), one_thread():
            model = self._model(worker, few)
            learn(
                model,
                few,
                steps=options.steps,
                rate=options.rate,
                weight=options.weight,
                each=lambda step: progress("completing the model", step, options.steps),
            )
            with torch.no_grad():
                said = torch.cat([torch.softmax(model(part), dim=1) for part in x.split(AT_ONCE)])
        labels = said.argmax(1)
        labels[few.labelled] = few.y
        used = () if options.from_scratch else ("parameters",)
        return Recovery(
            labels=labels,
            label_scores=_scores(said) if setting.classes == 2 else None,
            told=tuple(sorted(options.known)),
            used=(*used, "own slice", told_words(options.known)),
            rounds=(self._last,),
            notes=(_NOTE,) if options.from_scratch else (),
        )

    def _model(self, worker: int, few: Few) -> nn.Module:
        """Return the worker's bottom model with a head for the classes, which knows the known samples."""
        setting = self._setting
        shape = setting.boxes[worker].shape
        bottom = build_bottom(setting.model, shape, setting.seed, worker)
        if not self._options.from_scratch:
            assert self._parameters is not None
            bottom.load_state_dict({**bottom.state_dict(), **self._parameters})
        head = nn.Linear(output_width(bottom, shape), setting.classes)
        with torch.no_grad():
            outputs = bottom(few.x[few.labelled])
        _regress(head, outputs, few.y)
        return nn.Sequential(bottom, head)


_NOTE = "The bottom model began anew: this is what the known labels are worth without the federation."


def _regress(head: nn.Linear, outputs: Tensor, y: Tensor) -> None:
    """Begin with logistic regression: a head that knew nothing would spoil the bottom model before it has learned."""
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> float:
        optimiser.zero_grad()
        found = cross_entropy(head(outputs), y) + WEIGHT_DECAY * head.weight.square().sum()
        found.backward()
        return float(found.detach())

    optimiser.step(loss)


def _scores(said: Tensor) -> Tensor:
    return said[:, 1].double()
