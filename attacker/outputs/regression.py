"""From few pairs, what belongs to the input of another one: a small network or ridge regression, whichever is better.

Which of them is, pairs that were left out of the learning say: five parts, each left out once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from vfl.seeds import generator, seeded

PARTS = 5
RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
"""What is added to the squares of the inputs, beside their mean."""
PATIENCE = 50
"""Steps without a better result on the part that was left out, after which a network has learned enough."""

Predict = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Fit:
    """What was learned, and the mean squared error on what was left out, beside those of guesses."""

    predictors: tuple[Predict, ...]
    kind: str
    error: float
    mean_error: float
    """Of guessing the mean of the known ones."""
    class_error: float | None
    """Of guessing the mean of the known ones of the same class."""

    def predict(self, rows: Tensor) -> Tensor:
        """Return the mean of what the parts' predictors say."""
        return torch.stack([one(rows) for one in self.predictors]).mean(0)

    @property
    def sentence(self) -> str:
        """Say how good it is on what was left out."""
        of_class = "" if self.class_error is None else f", the mean of a sample's class {self.class_error:.3g}"
        return (
            f"on known samples that were left out of the learning, the {self.kind} has a mean squared error of "
            f"{self.error:.3g}; their mean has {self.mean_error:.3g}{of_class}."
        )


def fit(rows: Tensor, targets: Tensor, *, sizes: tuple[int, int], seed: int, classes: Tensor | None = None) -> Fit:
    """Learn targets from rows; `sizes` are the network's hidden units and its steps."""
    order = torch.randperm(len(rows), generator=generator(seed, "parts of known samples"))
    parts = [part for part in order.tensor_split(min(PARTS, len(rows))) if len(part)]
    ways: dict[str, list[tuple[Predict, float]]] = {"inverse network": [], "ridge regression": []}
    means, by_class = [], []
    for number, out in enumerate(parts):
        into = torch.cat([part for place, part in enumerate(parts) if place != number])
        pairs = (rows[into], targets[into], rows[out], targets[out])
        ways["ridge regression"].append(_ridge(*pairs))
        with seeded(seed, "inverse network", number):
            ways["inverse network"].append(_network(*pairs, sizes=sizes))
        mean = targets[into].mean(0)
        means.append(float(mse_loss(mean.expand_as(targets[out]), targets[out])) * len(out))
        if classes is not None:
            guess = torch.stack([_class_mean(targets[into], classes[into] == one, mean) for one in classes[out]])
            by_class.append(float(mse_loss(guess, targets[out])) * len(out))
    weights = torch.tensor([float(len(part)) for part in parts])
    errors = {
        way: float((torch.tensor([error for _, error in found]) * weights).sum() / len(rows))
        for way, found in ways.items()
    }
    kind = min(errors, key=lambda way: errors[way])
    return Fit(
        predictors=tuple(predict for predict, _ in ways[kind]),
        kind=kind,
        error=errors[kind],
        mean_error=sum(means) / len(rows),
        class_error=sum(by_class) / len(rows) if by_class else None,
    )


def _class_mean(targets: Tensor, here: Tensor, otherwise: Tensor) -> Tensor:
    return targets[here].mean(0) if bool(here.any()) else otherwise


def _ridge(rows: Tensor, targets: Tensor, left_rows: Tensor, left_targets: Tensor) -> tuple[Predict, float]:
    """Return the best linear way over all ridges, and its error on what was left out."""
    middle, mean = rows.mean(0), targets.mean(0)
    left, values, right = torch.linalg.svd(rows - middle, full_matrices=False)
    along = left.T @ (targets - mean)
    scale = values.square().mean().clamp(min=1e-300)
    found: list[tuple[Predict, float]] = []
    for ridge in RIDGES:
        weight = right.T @ ((values / (values.square() + ridge * scale)).unsqueeze(1) * along)

        def predict(some: Tensor, weight: Tensor = weight) -> Tensor:
            return (some - middle) @ weight + mean

        found.append((predict, float(mse_loss(predict(left_rows), left_targets))))
    return min(found, key=lambda one: one[1])


def _network(
    rows: Tensor, targets: Tensor, left_rows: Tensor, left_targets: Tensor, *, sizes: tuple[int, int]
) -> tuple[Predict, float]:
    """Return a network of two hidden layers as it was when it did best on what was left out, and its error there."""
    hidden, steps = sizes
    model = nn.Sequential(
        nn.Linear(rows.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, targets.shape[1]),
    )  # fmt: skip
    mean = targets.mean(0).float()
    spread = (targets.float() - mean).square().mean().sqrt().clamp(min=1e-6)

    def predict(some: Tensor) -> Tensor:
        made: Tensor = model(some.float())
        return made * spread + mean

    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    best, error, since = _copied(model), float("inf"), 0
    for _ in range(steps):
        optimiser.zero_grad()
        noisy = rows.float() + 0.05 * torch.randn(rows.shape)  # few pairs: the network would learn them by heart
        loss = mse_loss(predict(noisy), targets.float())
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            now = float(mse_loss(predict(left_rows), left_targets.float()))
        best, error, since = (_copied(model), now, 0) if now < error else (best, error, since + 1)
        if since > PATIENCE:
            break
    model.load_state_dict(best)

    def predict_best(some: Tensor) -> Tensor:
        with torch.no_grad():
            return predict(some).double()

    return predict_best, error


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in model.state_dict().items()}
