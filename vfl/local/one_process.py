"""The federation's computation in one process without any wire: the oracle of tests, the baseline of benchmarks."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from server.parameters import Parameters
from vfl.models.whole import first_model
from vfl.observation import ModelTensors, Observation, Setting
from vfl.observation.schedule import batches_of
from vfl.optimisers.training import TrainingConfig


def observations(setting: Setting, x: Tensor, y: Tensor, training: TrainingConfig) -> Iterator[Observation]:
    """Yield what the coordinator would see, from autograd on the undivided data."""
    parameters = Parameters(setting, training)
    compute = OneProcess(setting, x, y)
    drawn = batches_of(setting)
    for number, indices in enumerate(drawn, start=1):
        gradients, _ = compute(parameters.current, indices)
        yield Observation(number, indices, parameters.version, parameters.current, gradients)
        parameters.update(number, gradients)


class OneProcess:
    """All bottom models and the top model together, on whole samples."""

    def __init__(self, setting: Setting, x: Tensor, y: Tensor) -> None:
        self._slices = [box.cut(x).contiguous() for box in setting.boxes]
        self._y, self._loss = y, setting.loss
        whole = first_model(setting)
        # copies: each worker has a gradient of its own, also of parameters that all of them share
        self._bottoms, self._top = [copy.deepcopy(bottom) for bottom in whole.bottoms], whole.top
        self._version: ModelTensors | None = None

    def __call__(self, parameters: ModelTensors, indices: Tensor) -> tuple[ModelTensors, float]:
        """Return the gradients and the loss of one batch."""
        if parameters is not self._version:
            for module, tensors in zip([*self._bottoms, self._top], [*parameters.bottoms, parameters.top], strict=True):
                module.load_state_dict(dict(tensors), strict=False)  # what is no parameter is a constant of the model
            self._version = parameters
        z = [bottom(part[indices]) for bottom, part in zip(self._bottoms, self._slices, strict=True)]
        labels = self._y[indices]
        loss = self._loss.total(self._top(torch.cat(z, dim=1)), labels) / self._loss.divisor(labels)
        modules = [*self._bottoms, self._top]
        flat = [parameter for module in modules for parameter in module.parameters()]
        gradients = iter(torch.autograd.grad(loss, flat, materialize_grads=True))
        named = [{name: next(gradients) for name, _ in module.named_parameters()} for module in modules]
        return ModelTensors(tuple(named[:-1]), named[-1]), float(loss.detach())
