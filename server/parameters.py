"""The model's parameters at the coordinator: versions, snapshots, and the optimiser that moves them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vfl.config import TrainingConfig
from vfl.models import build_bottom, build_top, output_width
from vfl.observation import BOTTOM, TOP, ModelTensors, Setting, Tensors, with_prefix, without_prefix


class Parameters:
    """All parties' parameters. `version` goes up whenever they change."""

    def __init__(self, setting: Setting, training: TrainingConfig) -> None:
        bottoms = [build_bottom(setting.model, box.shape, setting.seed, m) for m, box in enumerate(setting.boxes)]
        widths = [output_width(bottom, box.shape) for bottom, box in zip(bottoms, setting.boxes, strict=True)]
        top = build_top(setting.model, widths, setting.classes, setting.seed)
        self.output_widths = widths
        self._bottoms = [_named(bottom) for bottom in bottoms]
        self._top = _named(top)
        self._optimizer = _optimizer([*bottoms, top], training)
        self.version = 1
        self.current = self._snapshot()

    def expected_from(self, worker: int, label_holder: int) -> Tensors:
        """Return what a worker receives and what it uploads: its bottom model, for the label holder the top too."""
        tensors = with_prefix(BOTTOM, self.current.bottoms[worker])
        if worker == label_holder:
            tensors |= with_prefix(TOP, self.current.top)
        return tensors

    def update(self, gradients: ModelTensors) -> None:
        """Take one optimiser step; frozen parameters stay as they are, and so do those without a gradient."""
        if self._optimizer is None:
            return
        for parameters, given in zip([*self._bottoms, self._top], [*gradients.bottoms, gradients.top], strict=True):
            for name, parameter in parameters.items():
                parameter.grad = given.get(name)
        self._optimizer.step()
        self.version += 1
        self.current = self._snapshot()

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


def _optimizer(modules: list[nn.Module], training: TrainingConfig) -> torch.optim.Optimizer | None:
    if training.frozen:
        return None
    parameters = [parameter for module in modules for parameter in module.parameters()]
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.lr)
    return torch.optim.SGD(parameters, lr=training.lr, momentum=training.momentum)
