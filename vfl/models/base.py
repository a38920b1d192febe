"""What a model plug-in is: how to build a party's bottom model and the label holder's top model."""

from collections.abc import Sequence

from torch import Tensor, nn

from vfl.partition import Shape
from vfl.registry import Plugin


class SplitModel(Plugin):
    """A model plug-in: how to build a party's bottom model and the label holder's top model."""

    def bottom(self, shape: Shape) -> nn.Module:
        """Build the model that maps slices of this shape to a vector."""
        raise NotImplementedError

    def top(self, widths: Sequence[int], classes: int) -> nn.Module:
        """Build the model that maps the workers' vectors, side by side, to the classes' logits."""
        return LinearTop(sum(widths), classes)


class NoFeatures(nn.Module):
    """The bottom model of a label holder that has only labels: a vector of length zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a vector of no numbers for each sample."""
        return x.new_zeros(len(x), 0)


class LinearTop(nn.Module):
    """The paper's top model: the outputs side by side through one dense layer."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(features, classes)

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.fc(z)
        return logits
