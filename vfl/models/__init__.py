"""Models split over the parties: a bottom model at each worker, a top model at the label holder."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vfl.errors import UserError
from vfl.partition import Shape
from vfl.registry import Plugin, PluginSection, Registry
from vfl.seeds import seeded


class SplitModel(Plugin):
    """A model plug-in: how to build a party's bottom model and the label holder's top model."""

    def bottom(self, shape: Shape) -> nn.Module:
        """Build the model that maps slices of this shape to a vector."""
        raise NotImplementedError

    def top(self, widths: Sequence[int], classes: int) -> nn.Module:
        """Build the model that maps the workers' vectors, side by side, to the classes' logits."""
        return LinearTop(sum(widths), classes)


class LinearTop(nn.Module):
    """The paper's: the outputs side by side through one dense layer."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(features, classes)

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.fc(z)
        return logits


models: Registry[SplitModel] = Registry(
    "model",
    SplitModel,
    "cafe.models",
    ["vfl.models.cafe_cnn", "vfl.models.lenet", "vfl.models.mlp", "vfl.models.strided_cnn"],
)


def build_bottom(section: PluginSection, shape: Shape, seed: int, worker: int) -> nn.Module:
    """Build a worker's bottom model, initialised from the seed whatever process does it."""
    plugin = models.build(section)
    with seeded(seed, "bottom", worker):
        try:
            return plugin.bottom(shape)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"model {section.name} cannot be built for a slice of shape {shape}: {error}") from None


def build_top(section: PluginSection, widths: Sequence[int], classes: int, seed: int) -> nn.Module:
    """Build the top model, initialised from the seed whatever process does it."""
    plugin = models.build(section)
    with seeded(seed, "top", 0):
        try:
            return plugin.top(widths, classes)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"model {section.name} cannot be built for {classes} classes: {error}") from None


def output_width(bottom: nn.Module, shape: Shape) -> int:
    """Return the length of the vector that a bottom model puts out."""
    with torch.no_grad():
        z = bottom(torch.zeros(1, *shape))
    if z.dim() != 2 or z.shape[0] != 1:
        raise UserError(
            f"model: a bottom model must map (batch, …) to (batch, features), got {tuple(z.shape)} for one sample"
        )
    return int(z.shape[1])
