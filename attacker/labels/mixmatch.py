"""Learning from few labels and many samples without (MixMatch, Berthelot et al. 2019), for images and table rows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, pad

BATCH = 32
SHARPER = 0.8
"""The temperature of guessed classes: below 1 they become clearer."""
MIXED = 0.75
"""Both parameters of the Beta distribution that two samples are mixed by."""
SHIFTED = 8
"""Images of sides this long and longer are also shifted by a pixel."""
NOISE = 0.1


@dataclass(frozen=True)
class Few:
    """A few samples with their classes, among all."""

    x: Tensor
    """All samples."""
    labelled: Tensor
    """Which of them have a class."""
    y: Tensor
    classes: int


def learn(model: nn.Module, few: Few, *, steps: int, rate: float, weight: float, each: Callable[[int], None]) -> None:
    """Train a model; `weight` is that of samples without a label, which grows from nothing to that over the steps."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    hot = torch.eye(few.classes)[few.y]
    for step in range(steps):
        each(step)
        some = torch.randint(len(few.labelled), (BATCH,))
        others = [changed(few.x[torch.randint(len(few.x), (BATCH,))]) for _ in range(2)]
        with torch.no_grad():
            guessed = [guesses(model, one) for one in others]
        x = torch.cat([changed(few.x[few.labelled[some]]), *others])
        targets = torch.cat([hot[some], *guessed])
        loss = _loss(model, x, targets, weight * step / steps)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()


def _loss(model: nn.Module, x: Tensor, targets: Tensor, weight: float) -> Tensor:
    """Mix every sample with another one, and compare what the model says with the classes mixed in the same way."""
    share = float(torch.distributions.Beta(MIXED, MIXED).sample())
    share = max(share, 1 - share)
    order = torch.randperm(len(x))
    x, targets = share * x + (1 - share) * x[order], share * targets + (1 - share) * targets[order]
    said = log_softmax(model(x), dim=1)
    right = -(targets[:BATCH] * said[:BATCH]).sum(1).mean()
    alike = (said[BATCH:].exp() - targets[BATCH:]).square().mean()
    return right + weight * alike


def guesses(model: nn.Module, x: Tensor) -> Tensor:
    """Return the classes' probabilities as the model has them now, made clearer; the mean over two changed copies."""
    said = (torch.softmax(model(changed(x)), dim=1) + torch.softmax(model(changed(x)), dim=1)) / 2
    clear = said.pow(1 / SHARPER)
    return clear / clear.sum(1, keepdim=True)


def changed(x: Tensor) -> Tensor:
    """Return samples a little changed, as their classes allow: images shifted by a pixel, rows with noise."""
    if x.dim() == 2:
        return x + NOISE * torch.randn(x.shape)
    noisy = x + 0.3 * NOISE * torch.randn(x.shape)
    height, width = x.shape[2:]
    if min(height, width) < SHIFTED:
        return noisy
    down, right = torch.randint(0, 3, (2,)).tolist()
    return pad(noisy, (1, 1, 1, 1), mode="replicate")[:, :, down : down + height, right : right + width]
