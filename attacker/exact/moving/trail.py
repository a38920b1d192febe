"""What is kept of rounds whose parameters differ: per worker the gradient's factors and the layers before h."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.exact.choice import LEAST, Choice
from vfl.maths.factors import Factors, factorize
from vfl.models import build_bottom
from vfl.models.layers import representation
from vfl.observation import ModelTensors, Observation, Setting, Tensors

EPOCHS = 10
"""Epochs that are kept at most: each sample is then in so many batches."""


@dataclass(frozen=True)
class Stop:
    """One round at one worker."""

    batch: Tensor
    factors: Factors
    before: Tensors
    """The parameters that h depends on."""


class Trail:
    """One worker's rounds in their order."""

    def __init__(self, model: nn.Module, layer: str) -> None:
        self.layer = layer
        self.model = copy.deepcopy(model).float().eval().requires_grad_(False)
        self.stops: list[Stop] = []

    def model_at(self, t: int) -> nn.Module:
        """Return the model as far as the layer with the parameters of a round."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(dict(self.stops[t].before), strict=False)
        return model

    def representations(self, t: int, x: Tensor) -> Tensor:
        """Return what these slices were to the layer in a round."""
        with torch.no_grad():
            return representation(self.model_at(t), self.layer, x).double()


class Trails:
    """All workers' rounds, and the whole parameters of those in the middle."""

    def __init__(self, setting: Setting, choice: Choice) -> None:
        bottoms = [build_bottom(setting.model, box.shape, setting.seed, m) for m, box in enumerate(setting.boxes)]
        self._choice, self._samples = choice, setting.samples
        self._before = [
            _before(bottom, layer.name, box.shape)
            for bottom, layer, box in zip(bottoms, choice.layers, setting.boxes, strict=True)
        ]
        self.workers = [Trail(bottom, layer.name) for bottom, layer in zip(bottoms, choice.layers, strict=True)]
        self._per_epoch = -(-setting.samples // setting.batch_size)
        self._last_middle = self._middle_of(setting.rounds)
        self.whole: dict[int, ModelTensors] = {}
        """The parameters of the rounds in the middle, and of those that will be there if more rounds come."""
        self.numbers: list[int] = []
        self.versions: set[int] = set()

    @property
    def middle(self) -> range:
        """Return the rounds that every sample is recovered from: half way, so that h has moved least from there."""
        return self._middle_of(len(self.numbers))

    @property
    def drawn(self) -> Tensor:
        """Return in how many of the rounds each sample was."""
        return torch.bincount(torch.cat([torch.zeros(0, dtype=torch.long), *self.batches]), minlength=self._samples)

    @property
    def enough(self) -> bool:
        """Whether every sample can be followed."""
        return bool((self.drawn >= LEAST).all())

    def _middle_of(self, rounds: int) -> range:
        middle = min(EPOCHS, rounds // self._per_epoch) // 2
        return range(middle * self._per_epoch, (middle + 1) * self._per_epoch)

    @property
    def batches(self) -> list[Tensor]:
        """Return the indices of each round."""
        return [stop.batch for stop in self.workers[0].stops]

    def add(self, observation: Observation) -> None:
        """Keep a round, as long as there are not enough."""
        t = len(self.numbers)
        if t == EPOCHS * self._per_epoch:
            return
        self.numbers.append(observation.round)
        self.versions.add(observation.version)
        for trail, names, layer, parameters, gradients in zip(
            self.workers, self._before, self._choice.layers, observation.parameters.bottoms,
            observation.gradients.bottoms, strict=True,
        ):  # fmt: skip
            factors = factorize(
                gradients[f"{layer.name}.weight"], gradients[f"{layer.name}.bias"], len(observation.indices)
            )
            before = {name: parameters[name].detach().cpu().clone() for name in names}
            trail.stops.append(Stop(observation.indices, factors, before))
        if t < self._last_middle.stop:  # a run may end before its planned end, and the middle with it
            self.whole[t] = observation.parameters
        for past in [early for early in self.whole if early < self.middle.start]:
            del self.whole[past]


def _before(model: nn.Module, layer: str, shape: tuple[int, ...]) -> list[str]:
    """Return the names of the parameters that a layer's input depends on."""
    named = dict(model.named_parameters())
    h = representation(model, layer, torch.full((1, *shape), 0.5))
    if not h.requires_grad:
        return []
    found = torch.autograd.grad(h.sum(), list(named.values()), allow_unused=True)
    return [name for name, gradient in zip(named, found, strict=True) if gradient is not None]
