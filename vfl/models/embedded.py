"""A network for tables that looks categories up in a table of vectors."""

from pydantic import Field
from torch import Tensor, cat, nn, randn

from vfl.models import SplitModel, models
from vfl.partition import Shape


@models.register("embedded")
class Embedded(SplitModel):
    """Columns of numbers as they are, categories by a table of vectors, then fully connected layers with ReLU."""

    numbers: int = Field(0, ge=0, description="so many of a worker's first features are numbers, the others categories")
    width: int = Field(8, ge=1, description="length of a category's vector; those of several categories are added")
    hidden: tuple[int, ...] = Field((64,), description="outputs of the hidden layers")
    output: int = Field(10, ge=1, description="length of the vector that a worker sends to the label holder")

    def bottom(self, shape: Shape) -> nn.Module:
        """Build the network for rows of a table."""
        if len(shape) != 1 or shape[0] <= self.numbers:
            raise ValueError(f"it is for rows of more than {self.numbers} features (numbers), the last ones categories")
        layers: list[nn.Module] = [_Embedding(self.numbers, shape[0] - self.numbers, self.width)]
        features = self.numbers + self.width
        for width in self.hidden:
            layers += [nn.Linear(features, width), nn.ReLU()]
            features = width
        return nn.Sequential(*layers, nn.Linear(features, self.output))


class _Embedding(nn.Module):
    """Numbers and the vectors of categories, which come as one feature each that is 1 or 0, side by side."""

    def __init__(self, numbers: int, categories: int, width: int) -> None:
        super().__init__()
        self._numbers = numbers
        self.vectors = nn.Parameter(randn(categories, width) / 2)

    def forward(self, x: Tensor) -> Tensor:
        """Look the categories up."""
        return cat([x[:, : self._numbers], x[:, self._numbers :] @ self.vectors], dim=1)
