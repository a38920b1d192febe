"""`active_completion`: a malicious worker makes its uploads larger, so that the top model leans on its output more."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from attacker.interface import Attack, Lack, Proposal, RefusalError, Setting, attacks
from attacker.labels.completion import Completing, ModelCompletion
from vfl.device import one_thread
from vfl.models import build_bottom
from vfl.observation import Tensors, WorkerObservation
from vfl.seeds import seeded

NAME = "active_completion"
TINY = 1e-12


@attacks.register(NAME)
class ActiveCompletion(ModelCompletion):
    """Active model completion (Fu et al. 2022): as `model_completion`, with a worker that learns faster than agreed.

    Fu's adversary has an optimiser of its own, whose learning rate grows where gradients keep their sign. Here the
    coordinator takes the steps: the worker uploads each number of its gradients up to `most` times as large.
    """

    active: ClassVar[bool] = True
    gamma: float = Field(1.0, ge=0, description="how much larger: 1 + gamma g / v, with v the mean of those before")
    most: float = Field(5.0, ge=1, description="the largest factor")
    momentum: float = Field(0.9, ge=0, lt=1, description="of v, the moving mean of what was uploaded")

    def start(self, setting: Setting) -> Attack:
        """Begin, if the worker's gradients follow from what it sees."""
        completing = super().start(setting)
        if setting.augmented or setting.local_steps > 1 or setting.frozen:
            found = "workers augment their slices, take local steps, or parameters never move"
            raise RefusalError(NAME, Lack("one plain step of training in each round", found))
        assert isinstance(completing, Completing)
        return _Enlarging(self, setting, completing)


class _Enlarging:
    def __init__(self, options: ActiveCompletion, setting: Setting, completing: Completing) -> None:
        self._options, self._setting, self._completing = options, setting, completing
        self.recover = completing.recover
        self._before: dict[str, Tensor] = {}
        self._last: WorkerObservation | None = None

    def observe(self, observation: WorkerObservation) -> None:
        self._completing.observe(observation)
        self._last = observation

    def propose(self, number: int) -> Proposal | None:
        """Return the gradients that the answers make, enlarged."""
        last = self._last
        if last is None or last.round != number:
            return None
        upload = {}
        for name, gradient in self._gradients(last).items():
            before = self._before.get(name)
            upload[name] = gradient if before is None else enlarged(gradient, before, self._options)
            moved = torch.zeros_like(gradient) if before is None else before
            self._before[name] = self._options.momentum * moved + (1 - self._options.momentum) * upload[name]
        return Proposal(upload=upload)

    def _gradients(self, seen: WorkerObservation) -> Tensors:
        setting = self._setting
        worker = setting.seats[0].worker
        assert worker is not None
        bottom = build_bottom(setting.model, setting.boxes[worker].shape, setting.seed, worker)
        parameters = {name: one.clone().requires_grad_() for name, one in seen.parameters.items()}
        x = setting.held.slices[worker].float()[seen.indices]
        with seeded(setting.seed, NAME, seen.round), one_thread():
            output = functional_call(bottom, parameters, (x,))
            found = torch.autograd.grad((output * seen.answer).sum(), [*parameters.values()], materialize_grads=True)
        return dict(zip(parameters, found, strict=True))


def enlarged(gradient: Tensor, before: Tensor, options: ActiveCompletion) -> Tensor:
    """Return a gradient whose numbers are larger where they have the sign of those before."""
    quotient = gradient * before / before.square().clamp(min=TINY)
    return gradient * (1 + options.gamma * quotient).clamp(1, options.most)
