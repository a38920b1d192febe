"""CAFE's variables: V and H of each worker, and the guessed data and labels of each start, a row for each sample."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attacker.cafe.steps import optimiser_for
from vfl.maths.adam import RowAdam
from vfl.models.layers import FullyConnected
from vfl.observation import Setting
from vfl.seeds import generator

if TYPE_CHECKING:
    from attacker.cafe import Cafe


class Variables:
    """All of them begin uniform, from the seed, and have an optimiser each."""

    def __init__(
        self, setting: Setting, options: "Cafe", layers: Sequence[FullyConnected], device: torch.device
    ) -> None:
        def uniform(purpose: str, number: int, shape: Sequence[int], *, low: float = 0.0, high: float = 1.0) -> Tensor:
            random = generator(setting.seed, f"cafe {purpose}", number)
            return torch.rand(setting.samples, *shape, generator=random).mul_(high - low).add_(low).to(device)

        scale, boxes, adam = options.scale_v or 1.0, setting.boxes, (options.betas, options.epsilon)
        self.v = [uniform("V", m, (of.outputs,), low=-scale, high=scale) for m, of in enumerate(layers)]
        self.h = [uniform("H", m, (of.inputs,), high=options.scale_h) for m, of in enumerate(layers)]
        self.move_v = [optimiser_for(options.optimiser_one, v, *adam) for v in self.v]
        self.move_h = [optimiser_for(options.optimiser_two, h, *adam) for h in self.h]
        self.guesses: list[Start] = []
        """Of the data, side by side."""
        for start in range(options.starts):
            x = [uniform("data", start * len(boxes) + m, box.shape) for m, box in enumerate(boxes)]
            self.guesses.append(Start(x, uniform("labels", start, (setting.classes,)), *adam))

    @property
    def x(self) -> list[Tensor]:
        """Return the guessed slices: the mean over the starts, if there are several."""
        each = [guess.x for guess in self.guesses]
        return each[0] if len(each) == 1 else [torch.stack(parts).mean(0) for parts in zip(*each, strict=True)]

    @property
    def y(self) -> Tensor:
        """Return the guessed labels' scores: the mean over the starts, if there are several."""
        each = [guess.y for guess in self.guesses]
        return each[0] if len(each) == 1 else torch.stack(each).mean(0)

    def tensors(self) -> dict[str, Tensor]:
        """Return the variables and what their optimisers remember, by name."""
        kinds = {"v": (self.v, self.move_v), "h": (self.h, self.move_h)}
        for number, guess in enumerate(self.guesses):
            kinds[f"x{number}"] = (guess.x, [*guess.move_x])
            kinds[f"y{number}"] = ([guess.y], [guess.move_y])
        named: dict[str, Tensor] = {}
        for kind, (values, movers) in kinds.items():
            for worker, (value, mover) in enumerate(zip(values, movers, strict=True)):
                named[f"{kind}.{worker}"] = value
                named |= {f"{kind}.{worker}.{name}": one for name, one in mover.tensors.items()}
        return named


class Start:
    """One guess of the data and the labels, with its own Adam."""

    def __init__(self, x: list[Tensor], y: Tensor, betas: tuple[float, float], epsilon: float) -> None:
        self.x, self.y = x, y
        self.move_x = [RowAdam(part, betas, epsilon) for part in x]
        self.move_y = RowAdam(y, betas, epsilon)

    def move(self, rows: Tensor, slices: Sequence[Tensor], labels: Tensor | None, *, lr: float, clip: bool) -> None:
        """Take a step against the gradients of the batch's rows."""
        for x, adam, gradient in zip(self.x, self.move_x, slices, strict=True):
            adam.step(x, rows, gradient, lr)
            if clip:
                x[rows] = x[rows].clamp_(0.0, 1.0)
        if labels is not None:
            self.move_y.step(self.y, rows, labels, lr)
