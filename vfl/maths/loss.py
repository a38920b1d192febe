"""The loss that is learned by: its value, and what comes back from it to the logits, which attacks read labels from."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from vfl.optimisers.training import LossName, TrainingConfig


@dataclass(frozen=True)
class Loss:
    """One of three: of classes with a logit each, of two classes with one logit, or of a number.

    u is the gradient of a sample's own loss by its logits: softmax minus label, sigmoid minus label, or twice the
    difference of two numbers; times the weight of the sample's class, where classes have weights.
    """

    name: LossName = "cross_entropy"
    weights: tuple[float, ...] = ()

    @property
    def of_number(self) -> bool:
        """Whether a label is a number, not a class."""
        return self.name == "squared"

    @property
    def hides_divisor(self) -> bool:
        """Whether a batch's sum is divided by its own labels' weights, which who does not know the labels cannot."""
        return self.name == "cross_entropy" and bool(self.weights)

    def problem(self, classes: int) -> str | None:
        """Return why labels of so many classes, or numbers (1), are none for this loss; None if they are."""
        if self.of_number != (classes == 1):
            held = "the label is a number" if classes == 1 else f"the labels are of {classes} classes"
            wanted = "that is what the loss squared is for" if classes == 1 else "the loss squared is for numbers"
            return f"training.loss: {held}, and {wanted}"
        if self.name == "binary" and classes != 2:
            return f"training.loss: binary is for two classes, and here are {classes}"
        if self.weights and len(self.weights) != classes:
            return f"training.class_weights: there are {len(self.weights)} weights for {classes} classes"
        return None

    def outputs(self, classes: int) -> int:
        """Return how many logits a sample has."""
        return classes if self.name == "cross_entropy" else 1

    def directions(self, classes: int) -> int:
        """Return in how many dimensions u lies: the entries of softmax minus label sum to zero."""
        return classes - 1 if self.name == "cross_entropy" else 1

    def total(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the samples' losses."""
        if self.name == "squared":
            return mse_loss(logits[:, 0], labels.to(logits), reduction="sum")
        if self.name == "binary":
            each = self._weights_of(labels, logits) if self.weights else None
            return binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits), weight=each, reduction="sum")
        weights = logits.new_tensor(self.weights) if self.weights else None
        return cross_entropy(logits, labels, weight=weights, reduction="sum")

    def divisor(self, labels: Tensor) -> float:
        """Return what the sum is divided by, as torch does: the number of samples, or their classes' weights."""
        return float(self._weights_of(labels, torch.zeros(())).sum()) if self.hides_divisor else len(labels)

    def u(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return u (samples, logits)."""
        if self.name == "squared":
            return 2 * (logits - labels.to(logits)[:, None])
        return self.possible_u(logits)[torch.arange(len(labels)), labels]

    def possible_u(self, logits: Tensor) -> Tensor:
        """Return u (samples, classes, logits) for each class that a sample may be of."""
        if self.name == "binary":
            p = logits.sigmoid()
            found = torch.stack([p, p - 1], dim=1)
        else:
            found = logits.softmax(dim=1)[:, None] - torch.eye(logits.shape[1]).to(logits)
        return found * logits.new_tensor(self.weights)[:, None] if self.weights else found

    def against(self, u: Tensor) -> Tensor:
        """Return (samples, classes) how much u speaks against each class: at the label alone it is negative."""
        return torch.cat([-u, u], dim=1) if self.name == "binary" else u

    def number(self, u: Tensor, logits: Tensor) -> Tensor:
        """Return the number that has this u at these logits."""
        return (logits - u / 2)[:, 0]

    def right(self, logits: Tensor, labels: Tensor) -> int:
        """Return how many samples are classified right; of numbers none is."""
        if self.name == "squared":
            return 0
        found = logits.argmax(1) if self.name == "cross_entropy" else (logits[:, 0] > 0).long()
        return int((found == labels).sum())

    def unknown(self, count: int) -> Tensor:
        """Return so many labels that are not known."""
        return torch.full((count,), torch.nan, dtype=torch.float64) if self.of_number else torch.full((count,), -1)

    def _weights_of(self, labels: Tensor, like: Tensor) -> Tensor:
        return like.new_tensor(self.weights)[labels]


CROSS_ENTROPY = Loss()


def loss_of(training: TrainingConfig) -> Loss:
    """Return the loss that a config names."""
    return Loss(training.loss, training.class_weights or ())


def is_known(labels: Tensor) -> Tensor:
    """Tell which labels are known: classes from 0 up, numbers that are numbers."""
    return labels.isfinite() if labels.is_floating_point() else labels >= 0
