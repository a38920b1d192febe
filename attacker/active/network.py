"""The network as a malicious coordinator sees it: layers whose weights it may set as it likes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.interface import Lack, Setting
from vfl.models.whole import WholeModel, first_model
from vfl.observation import ModelTensors, Tensors

GAIN = 1e-16
"""What a counting unit adds to a logit for each unit of its own: so little that the loss does not notice it."""


@dataclass(frozen=True)
class Counting:
    """What one worker's first layer is to count: the rows beyond each threshold along a direction."""

    direction: Tensor
    thresholds: Tensor


@dataclass(frozen=True)
class Telling:
    """What one worker is to tell the others' gradients of its rows: a line with bends, along a direction."""

    direction: Tensor
    bends: Tensor
    slopes: Tensor
    """What each bend adds to the slope."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the number that is told of each row."""
        along = (rows.double() @ self.direction.double()).unsqueeze(1)
        return (along - self.bends.double()).clamp(min=0) @ self.slopes.double()


@dataclass(frozen=True)
class Head:
    """What the top model makes of the first number of each worker's output: a weight and a bias for each class."""

    weights: Tensor
    biases: Tensor

    @staticmethod
    def one_against_all(classes: int, bias: float) -> "Head":
        """Return the head whose first class alone has a weight: its share is 1 / (1 + exp(-(bias + told)))."""
        weights, biases = torch.zeros(classes), torch.zeros(classes)
        weights[0], biases[0] = 1.0, bias + math.log(classes - 1)
        return Head(weights, biases)


@dataclass(frozen=True)
class Dense:
    """A bottom model of fully connected layers with ReLU between them: the names of the layers, first to last."""

    layers: tuple[str, ...]
    units: int
    features: int
    shapes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, bottom: nn.Module) -> "Dense | None":
        """Return a bottom model as layers; None if it is of another kind."""
        if not isinstance(bottom, nn.Sequential):
            return None
        parts = [(name, part) for name, part in bottom.named_children() if not isinstance(part, nn.Flatten)]
        linear = [(name, part) for name, part in parts[::2] if isinstance(part, nn.Linear) and part.bias is not None]
        if len(linear) < 2 or len(parts) != 2 * len(linear) - 1:
            return None
        if not all(isinstance(part, nn.ReLU) for _, part in parts[1::2]) or min(p.out_features for _, p in linear) < 1:
            return None
        if any(part.out_features < 2 for _, part in linear[:-1]):
            return None
        shapes = tuple((part.out_features, part.in_features) for _, part in linear)
        return cls(tuple(name for name, _ in linear), shapes[0][0], shapes[0][1], shapes)

    def gradients(self, gradients: Tensors) -> Tensor:
        """Return for each unit of the first layer the gradients of its weights and, last, of its bias."""
        first = self.layers[0]
        whole = torch.cat([gradients[f"{first}.weight"], gradients[f"{first}.bias"].unsqueeze(1)], dim=1)
        return whole.double()

    def parameters(self, counting: Counting | None, telling: Telling | None = None) -> Tensors:
        """Return parameters with which the first units tell, the next ones count, and the others stay silent."""
        weights, biases = torch.zeros(self.shapes[0]), torch.full((self.units,), -1.0)
        told, used = (0 if telling is None else len(telling.bends)), 0
        if telling is not None:
            weights[:told], biases[:told] = telling.direction.float(), -telling.bends.float()
        if counting is not None:
            used = len(counting.thresholds)
            weights[told : told + used] = counting.direction.float()
            biases[told : told + used] = -counting.thresholds.float()
        made = {f"{self.layers[0]}.weight": weights, f"{self.layers[0]}.bias": biases}
        slopes = torch.zeros(self.units)
        if telling is not None:
            slopes[:told] = telling.slopes.float()
        counts = torch.zeros(self.units)
        counts[told : told + used] = GAIN
        return made | self._onwards(slopes, counts)

    def _onwards(self, slopes: Tensor, counts: Tensor) -> dict[str, Tensor]:
        """Return the later layers, which hand both sums on to the first number of the output."""
        made: dict[str, Tensor] = {}
        for place, (name, shape) in enumerate(zip(self.layers[1:], self.shapes[1:], strict=True)):
            weights, biases = torch.zeros(shape), torch.zeros(shape[0])
            first, last = place == 0, place == len(self.shapes) - 2
            if last:
                weights[0] = slopes + counts if first else 0.0
                if not first:
                    weights[0, :2], biases[0] = 1.0, -1.0
            elif first:
                weights[0], weights[1], biases[0] = counts, slopes, 1.0  # 1: ReLU lets it pass, however small it is
            else:
                weights[0, 0] = weights[1, 1] = 1.0
            made |= {f"{name}.weight": weights, f"{name}.bias": biases}
        return made


@dataclass(frozen=True)
class Network:
    """All parties' layers."""

    bottoms: tuple[Dense, ...]
    top: str
    widths: tuple[int, ...]
    classes: int

    @classmethod
    def of(cls, setting: Setting) -> "Network | Lack":
        """Return the network of a setting, or what it lacks."""
        whole, bottoms = first_model(setting), dense_bottoms(setting)
        if isinstance(bottoms, Lack):
            return bottoms
        top = _linear_top(whole)
        if top is None:
            return Lack("a top model that is one fully connected layer with a bias", "it is another (model.top)")
        return cls(bottoms, top, tuple(whole.widths), setting.classes)

    def parameters(self, bottoms: Sequence[Tensors], head: Head) -> ModelTensors:
        """Return all parameters, given those of the bottom models."""
        weights = torch.zeros(self.classes, sum(self.widths))
        starts = [sum(self.widths[:worker]) for worker in range(len(self.widths))]
        weights[:, starts] = head.weights.unsqueeze(1)
        prefix = f"{self.top}." if self.top else ""
        return ModelTensors(tuple(bottoms), {f"{prefix}weight": weights, f"{prefix}bias": head.biases})


def dense_bottoms(setting: Setting) -> tuple[Dense, ...] | Lack:
    """Return all bottom models as layers, or what one of them lacks."""
    bottoms = [Dense.of(bottom) for bottom in first_model(setting).bottoms]
    if None in bottoms:
        needs = "bottom models of fully connected layers with biases, two at the least, and ReLU between them"
        return Lack(needs, f"worker {bottoms.index(None)}'s is another (model)")
    return tuple(bottom for bottom in bottoms if bottom is not None)


def _linear_top(whole: WholeModel) -> str | None:
    """Return the name of the top model's one layer; None if there is more to it."""
    found = [(name, part) for name, part in whole.top.named_modules() if isinstance(part, nn.Linear)]
    if len(found) != 1 or found[0][1].bias is None or len(list(whole.top.parameters())) != 2:
        return None
    name, layer = found[0]
    blank = torch.linspace(-1, 1, 2 * sum(whole.widths)).reshape(2, -1)
    with torch.no_grad():
        same = torch.allclose(whole.top(blank), nn.functional.linear(blank, layer.weight, layer.bias), atol=1e-6)
    return name if same else None
