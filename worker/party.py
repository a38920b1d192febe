"""Local compute: the bottom model on the worker's slice, and the top model at the label holder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vfl.maths.loss import loss_of
from vfl.models import running
from vfl.models.layers import evaluating
from vfl.observation import Tensors
from vfl.optimisers.training import TrainingConfig
from worker.augment import augmented

TRAINING = TrainingConfig()

Penalty = Callable[[Tensor, Tensor], Tensor | None]


class Bottom:
    """A worker's bottom model on its slice of the samples."""

    def __init__(
        self, model: nn.Module, x: Tensor, x_test: Tensor | None, device: str, *, training: TrainingConfig = TRAINING
    ) -> None:
        self.model, self._training = model.to(device), training
        self._x, self._x_test = x.to(device), None if x_test is None else x_test.to(device)
        self.parameters: Tensors = dict(model.named_parameters())
        self._input, self._output = self._x[:0], torch.empty(0)
        """Of the last batch."""

    def load(self, tensors: Tensors) -> None:
        """Take over new parameters."""
        _load(self.model, tensors)

    def batch(self, indices: Tensor) -> Tensor:
        """Return the worker's slice of these samples, as this round trains on it."""
        return self._input if self._training.augment.any else self._x[indices]

    def forward(self, indices: Tensor) -> Tensor:
        """Return the outputs for a batch; the next `backward` belongs to it."""
        self._input = self._x[indices]
        if self._training.augment.any:
            self._input = augmented(self._input.cpu(), self._training.augment).to(self._x.device)
        with running(self.model, "forward"):
            self._output = self.model(self._input)
            return self._output.detach()

    def evaluate(self, indices: Tensor) -> Tensor:
        """Return the outputs for test samples."""
        assert self._x_test is not None
        with torch.no_grad(), evaluating(self.model), running(self.model, "forward"):
            output: Tensor = self.model(self._x_test[indices])
        return output

    def backward(self, output_gradient: Tensor, penalty: Penalty = lambda *_: None) -> Tensors:
        """Return the gradients of the parameters, given the loss's gradient of the last outputs.

        A worker that takes local steps returns their mean, each at the parameters that the steps before lead to, and
        all with the same gradient of the outputs (FedBCD, Liu et al. 2019). `penalty` is what the worker adds to the
        loss, as a function of its slice of the batch and the outputs.
        """
        output, self._output = self._output, torch.empty(0)
        first = self._gradients(output, output_gradient, penalty)
        steps = self._training.local_steps
        if steps == 1 or not first:
            return first

        def again() -> Tensors:
            with running(self.model, "forward"):
                output = self.model(self._input)
            return self._gradients(output, output_gradient, penalty)

        return mean_of_steps(self.model, first, again, steps=steps, lr=self._training.local_lr or 0.0)

    def _gradients(self, output: Tensor, output_gradient: Tensor, penalty: Penalty) -> Tensors:
        if not self.parameters:
            return {}
        # The same bits as grad(output, parameters, output_gradient), which would import SymPy just to compare shapes
        product = (output * output_gradient.to(output.device)).sum()
        more = penalty(self._input, output)
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
        self, model: nn.Module, y: Tensor, y_test: Tensor | None, device: str, *, training: TrainingConfig = TRAINING
    ) -> None:
        self._model, self._training, self._loss = model.to(device), training, loss_of(training)
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
        top: Tensors = dict(zip(self.parameters, gradients[len(leaves) :], strict=True))
        if self._training.local_steps > 1 and top:
            top = self._local_steps(top, torch.cat(leaves, dim=1).detach(), labels, mean_over)
        return Learned(float(loss.detach()), gradients[: len(leaves)], top)

    def _local_steps(self, first: Tensors, z: Tensor, labels: Tensor, mean_over: int | None) -> Tensors:
        """Return the mean gradient of the local steps, all on the same outputs of the workers."""

        def again() -> Tensors:
            with running(self._model, "forward"):
                loss = self._loss.total(self._model(z), labels) / (mean_over or self._loss.divisor(labels))
            found = torch.autograd.grad(loss, list(self.parameters.values()), materialize_grads=True)
            return dict(zip(self.parameters, found, strict=True))

        own = self._training
        return mean_of_steps(self._model, first, again, steps=own.local_steps, lr=own.local_lr or 0.0)

    def count_correct(self, outputs: Sequence[Tensor], indices: Tensor) -> Counted:
        """Return how many of these test samples are classified right, and their summed loss."""
        assert self._y_test is not None
        truth = self._y_test[indices]
        with torch.no_grad(), evaluating(self._model), running(self._model, "forward"):
            logits = self._model(torch.cat([output.to(self._device) for output in outputs], dim=1))
            loss = self._loss.total(logits, truth)
        return Counted(self._loss.right(logits, truth), len(indices), float(loss))


def mean_of_steps(model: nn.Module, first: Tensors, again: Callable[[], Tensors], *, steps: int, lr: float) -> Tensors:
    """Return the mean gradient of some steps of gradient descent, the first of which is known; undo them."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    total, last = dict(first), first
    for _ in range(steps - 1):
        _load(model, {name: parameter.detach() - lr * last[name] for name, parameter in model.named_parameters()})
        last = again()
        total = {name: gradient + last[name] for name, gradient in total.items()}
    _load(model, before)
    return {name: gradient / steps for name, gradient in total.items()}


def _load(model: nn.Module, tensors: Tensors) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])
