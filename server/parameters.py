"""The model's parameters at the coordinator: versions, snapshots, and the optimiser that moves them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from server.rates import learning_rate
from vfl.config import TrainingConfig
from vfl.models.whole import first_model
from vfl.observation import BOTTOM, TOP, ModelTensors, Setting, Tensors, with_prefix, without_prefix


class Parameters:
    """All parties' parameters. `version` goes up whenever they change."""

    def __init__(self, setting: Setting, training: TrainingConfig) -> None:
        whole = first_model(setting)
        self.output_widths = whole.widths
        self._setting, self._training = setting, training
        self._bottoms = [_named(bottom) for bottom in whole.bottoms]
        self._top = _named(whole.top)
        self._parameters = list(whole.parameters())
        self._optimizer = _optimizer(self._parameters, training)
        self.version = 1
        self.current = self._snapshot()

    def expected_from(self, worker: int, label_holder: int) -> Tensors:
        """Return what a worker receives and what it uploads: its bottom model, for the label holder the top too."""
        tensors = with_prefix(BOTTOM, self.current.bottoms[worker])
        if worker == label_holder:
            tensors |= with_prefix(TOP, self.current.top)
        return tensors

    def rate(self, number: int) -> float:
        """Return the learning rate of a round."""
        epoch = -(-self._setting.samples // self._setting.batch_size)
        return learning_rate(self._training, number, self._setting.rounds, epoch)

    def update(self, number: int, gradients: ModelTensors) -> None:
        """Take a round's optimiser step, none at rate 0; parameters without a gradient stay as they are."""
        rate = self.rate(number)
        if rate == 0.0:
            return
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        for parameters, given in zip([*self._bottoms, self._top], [*gradients.bottoms, gradients.top], strict=True):
            for name, parameter in parameters.items():
                parameter.grad = given.get(name)
        self._clip()
        self._optimizer.step()
        self.version += 1
        self.current = self._snapshot()

    def _clip(self) -> None:
        if self._training.clip_norm is None:
            return
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()  # observers keep what was uploaded
        nn.utils.clip_grad_norm_(self._parameters, self._training.clip_norm)

    def _snapshot(self) -> ModelTensors:
        return ModelTensors(tuple(_copy(bottom) for bottom in self._bottoms), _copy(self._top))


def gradients_of_round(uploads: Mapping[int, Tensors], workers: int, label_holder: int) -> ModelTensors:
    """Put the uploads of all workers together."""
    bottoms = tuple(without_prefix(BOTTOM, uploads[worker]) for worker in range(workers))
    return ModelTensors(bottoms, without_prefix(TOP, uploads[label_holder]))


def _named(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


def _copy(parameters: Mapping[str, Tensor]) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


def _optimizer(parameters: list[nn.Parameter], training: TrainingConfig) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.lr, weight_decay=training.weight_decay)
    return torch.optim.SGD(parameters, lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay)
