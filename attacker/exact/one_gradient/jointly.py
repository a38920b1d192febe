"""Step III of a whole batch at once: with batch norm in training mode a slice's h depends on all slices of its batch.

The batch's statistics are no unknowns of their own: they follow from the slices, which are all looked for together.
Slices of the batch whose h was not found are looked for too, as what they do to the statistics.
"""

import copy

import torch
from torch import Tensor, nn

from vfl.maths.variation import ACROSS, DOWN, differences
from vfl.models.layers import representation

STARTS, SEARCH, POLISH = 4, 300, 400
SMOOTH = 0.02
ENOUGH = 1e-6


def invert_batch(
    model: nn.Module, layer: str, targets: Tensor, shape: tuple[int, ...], *, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return slices of a batch of `size` whose representations are the targets (n, inputs), and how far they are."""
    model = copy.deepcopy(model).double().eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
    problem = _Problem(model, layer, targets.double())
    image = len(shape) == 3
    best, least = torch.full((size, *shape), torch.nan), torch.full((len(targets),), torch.inf).double()
    for _ in range(STARTS):
        drawn = torch.randn(size, *shape, generator=generator, dtype=torch.float64)
        x = problem.solve(0.5 + 0.1 * drawn if image else 0.5 * drawn, image=image)
        residual = problem.residual(x)
        if float(residual.median()) < float(least.median()):
            best, least = x, residual
        if float(least.max()) < ENOUGH:
            break
    return best[: len(targets)].float(), least.float()


def _roughness(x: Tensor) -> Tensor:
    return differences(x, DOWN).mean() + differences(x, ACROSS).mean()


class _Problem:
    """Slices that explain the representations of some of them."""

    def __init__(self, model: nn.Module, layer: str, targets: Tensor) -> None:
        self._model, self._layer, self._targets = model, layer, targets
        self._sizes = targets.norm(dim=1).clamp_min(1e-12)

    def residual(self, x: Tensor) -> Tensor:
        """Return how far each representation is from its target, relative."""
        with torch.no_grad():
            away = self._away(x)
        return away.sqrt()

    def _away(self, x: Tensor) -> Tensor:
        h = representation(self._model, self._layer, x)[: len(self._targets)].flatten(1)
        away: Tensor = ((h - self._targets) / self._sizes[:, None]).square().sum(dim=1)
        return away

    def solve(self, start: Tensor, *, image: bool) -> Tensor:
        """Search by Adam, images smooth at first, then go down to the end."""
        x = start.clone().requires_grad_()
        adam = torch.optim.Adam([x], lr=0.05)
        for step in range(SEARCH):
            adam.zero_grad()
            rough = SMOOTH * (1 - step / SEARCH) ** 2 * _roughness(x) if image else 0.0
            (self._away(x).sum() + rough).backward()
            adam.step()
            if image:
                x.data.clamp_(0, 1)
        descent = torch.optim.LBFGS(
            [x], max_iter=POLISH, history_size=50, line_search_fn="strong_wolfe", tolerance_grad=0, tolerance_change=0
        )

        def closure() -> Tensor:
            descent.zero_grad()
            loss = self._away(x).sum()
            loss.backward()
            return loss

        descent.step(closure)
        return self._in_scale(x.detach())

    def _in_scale(self, x: Tensor) -> Tensor:
        """Return slices of the size that explains most: batch norm hides it but for what it adds to each variance."""
        width = 0.1
        for _ in range(12):
            sizes = torch.linspace(1 - width, 1 + width, 9).tolist()
            x = x * min(sizes, key=lambda size: float(self.residual(x * size).norm()))
            width /= 2
        return x
