"""Local compute: the bottom model on the worker's slice, and the top model at the label holder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vfl.maths.loss import CROSS_ENTROPY, Loss
from vfl.models import running
from vfl.models.layers import evaluating
from vfl.observation import Tensors

Penalty = Callable[[Tensor, Tensor], Tensor | None]


class Bottom:
    """A worker's bottom model on its slice of the samples."""

    def __init__(self, model: nn.Module, x: Tensor, x_test: Tensor | None, device: str) -> None:
        self.model = model.to(device)
        self._x, self._x_test = x.to(device), None if x_test is None else x_test.to(device)
        self.parameters: Tensors = dict(model.named_parameters())
        self._batch = self._x[:0]
        self._output: Tensor | None = None

    def load(self, tensors: Tensors) -> None:
        """Take over new parameters."""
        _load(self.model, tensors)

    def batch(self, indices: Tensor) -> Tensor:
        """Return the worker's slice of these samples."""
        return self._x[indices]

    def forward(self, indices: Tensor) -> Tensor:
        """Return the outputs for a batch; the next `backward` belongs to it."""
        with running(self.model, "forward"):
            self._batch = self._x[indices]
            self._output = self.model(self._batch)
            return self._output.detach()

    def evaluate(self, indices: Tensor) -> Tensor:
        """Return the outputs for test samples."""
        assert self._x_test is not None
        with torch.no_grad(), evaluating(self.model), running(self.model, "forward"):
            output: Tensor = self.model(self._x_test[indices])
        return output

    def backward(self, output_gradient: Tensor, penalty: Penalty = lambda *_: None) -> Tensors:
        """Return the gradients of the parameters, given the loss's gradient of the last outputs.

        `penalty` is what the worker adds to the loss, as a function of its slice of the batch and the outputs.
        """
        assert self._output is not None
        output, self._output = self._output, None
        if not self.parameters:
            return {}
        # The same bits as grad(output, parameters, output_gradient), which would import SymPy just to compare shapes
        product = (output * output_gradient.to(output.device)).sum()
        more = penalty(self._batch, output)
        product = product if more is None else product + more
        if not product.requires_grad:  # the output depends on no parameter
            return {name: torch.zeros_like(parameter) for name, parameter in self.parameters.items()}
        with running(self.model, "backward"):
            gradients = torch.autograd.grad(product, list(self.parameters.values()), materialize_grads=True)
        return dict(zip(self.parameters, gradients, strict=True))


@dataclass(frozen=True)
class Learned:
    """What the label holder gets out of one batch."""

    loss: float
    output_gradients: tuple[Tensor, ...]
    top_gradients: Tensors


@dataclass(frozen=True)
class Upload:
    """What one worker sends the coordinator for one round."""

    gradients: Tensors
    loss: float | None = None
    """The batch's, from the label holder."""
    withheld: str | None = None
    """Why there are no gradients, where a defence holds them back."""


@dataclass(frozen=True)
class Counted:
    """How the label holder's model did on test samples."""

    correct: int
    total: int
    loss_sum: float


class Top:
    """The label holder's top model and its labels."""

    def __init__(
        self, model: nn.Module, y: Tensor, y_test: Tensor | None, device: str, *, loss: Loss = CROSS_ENTROPY
    ) -> None:
        self._model, self._loss = model.to(device), loss
        self._device = device
        self._y, self._y_test = y.to(device), None if y_test is None else y_test.to(device)
        self.parameters: Tensors = dict(model.named_parameters())

    def load(self, tensors: Tensors) -> None:
        """Take over new parameters."""
        _load(self._model, tensors)

    def learn(self, outputs: Sequence[Tensor], indices: Tensor, mean_over: int | None = None) -> Learned:
        """Return the loss of a batch and its gradients: of each worker's outputs, and of the top model."""
        leaves = [output.to(self._device).detach().requires_grad_() for output in outputs]
        with running(self._model, "forward"):
            logits = self._model(torch.cat(leaves, dim=1))
        labels = self._y[indices]
        loss = self._loss.total(logits, labels) / (mean_over or self._loss.divisor(labels))
        with running(self._model, "backward"):
            gradients = torch.autograd.grad(loss, [*leaves, *self.parameters.values()], materialize_grads=True)
        top = dict(zip(self.parameters, gradients[len(leaves) :], strict=True))
        return Learned(float(loss.detach()), gradients[: len(leaves)], top)

    def count_correct(self, outputs: Sequence[Tensor], indices: Tensor) -> Counted:
        """Return how many of these test samples are classified right, and their summed loss."""
        assert self._y_test is not None
        truth = self._y_test[indices]
        with torch.no_grad(), evaluating(self._model), running(self._model, "forward"):
            logits = self._model(torch.cat([output.to(self._device) for output in outputs], dim=1))
            loss = self._loss.total(logits, truth)
        return Counted(self._loss.right(logits, truth), len(indices), float(loss))


def _load(model: nn.Module, tensors: Tensors) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])
