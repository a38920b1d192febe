"""Marvell: of all Gaussian noise of one strength, that which hides best which of two classes an answer is of."""

import math
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from vfl.config.places import Place
from vfl.errors import UserError
from worker.defences import Defence, Swapped, defences

TINY = 1e-12


@defences.register("marvell")
class Marvell(Defence):
    """Marvell (Li et al. 2022): noise of optimised covariance, for two classes.

    The answers of a batch count as two normal distributions of equal covariance in all directions. Noise of each class
    has one variance along the difference of the two means and another across it; the four minimise the sum of the two
    KL divergences (which bounds every AUC) under a bound on the noise's mean power, `strength` times the squared
    difference of the means.
    """

    places: ClassVar[frozenset[Place]] = frozenset({"answers"})
    strength: float = Field(
        16.0, gt=0, description="the noise's power, in units of the squared difference of the means"
    )
    _bounds: list[float] = PrivateAttr(default_factory=list)

    def check(self, classes: int) -> None:
        """Refuse more classes than two."""
        if classes != 2:
            raise UserError(
                f"defence.answers: marvell is for two classes, and here are {classes}; random_labels is for any number"
            )

    def exchange(self, tensor: Tensor, swapped: Swapped) -> Tensor:
        """Return the answers with noise; a batch of one class has nothing to hide, and stays as it is."""
        assert swapped.labels is not None
        labels = swapped.labels.cpu()
        rows = tensor.detach().cpu().double()
        parts = [rows[labels == label] for label in (0, 1)]
        if not all(map(len, parts)):
            return tensor
        means = [part.mean(0) for part in parts]
        apart = means[1] - means[0]
        power = float(apart.square().sum())
        if power <= TINY * float(rows.square().mean() + TINY):
            return tensor
        across = rows.shape[1] - 1
        spreads = [
            float((part - mean).square().sum(1).mean()) / rows.shape[1] for part, mean in zip(parts, means, strict=True)
        ]
        share = len(parts[1]) / len(rows)
        noise = best_noise(np.array(spreads) / power, share, across, self.strength)
        self._bounds.append(leak_bound(noise, np.array(spreads) / power, across))
        axis = apart / math.sqrt(power)
        along = swapped.draws.normal((len(rows), 1)).double() * axis
        other = swapped.draws.normal(tuple(rows.shape)).double()
        other -= (other @ axis).unsqueeze(1) * axis
        deviations = torch.from_numpy(np.sqrt(noise * power))[labels]
        noisy = rows + deviations[:, :1] * along + deviations[:, 1:] * other
        return noisy.to(tensor)

    def report(self) -> dict[str, Any]:
        """Return what no scoring of one round's answers can exceed, if they are normal as assumed: the rounds' mean."""
        return {"AUC of one round at most, in theory": sum(self._bounds) / len(self._bounds)} if self._bounds else {}


def best_noise(spreads: "np.ndarray[Any, Any]", share: float, across: int, strength: float) -> "np.ndarray[Any, Any]":
    """Return the noise's variances by class, along the difference of the means and across it.

    In units of that difference squared, as are `spreads`, the classes' own variances; `share` is the second class's.
    """
    from scipy.optimize import minimize

    weights = np.array([[1 - share, (1 - share) * across], [share, share * across]])

    def divergence(flat: "np.ndarray[Any, Any]") -> float:
        return divergences(flat.reshape(2, 2), spreads, across)

    # All of it along the difference, equal in both classes: allowed, and where the search begins.
    begin = np.array([[strength, 0.0], [strength, 0.0]]) * 0.98 + 1e-6 * strength / (1 + across)
    budget = {"type": "ineq", "fun": lambda flat: strength - float((weights * flat.reshape(2, 2)).sum())}
    found = minimize(divergence, begin.ravel(), bounds=[(0, None)] * 4, constraints=[budget], method="SLSQP")
    best: np.ndarray[Any, Any] = np.clip(found.x, 0, None).reshape(2, 2)
    over = float((weights * best).sum()) / strength
    best = best / over if over > 1 else best
    return best if divergence(best.ravel()) <= divergence(begin.ravel()) else begin


def divergences(noise: "np.ndarray[Any, Any]", spreads: "np.ndarray[Any, Any]", across: int) -> float:
    """Return KL(first, second) + KL(second, first) of the two noisy distributions."""
    total = noise + spreads[:, None] + TINY
    along, rest = total[0, 0] / total[1, 0], total[0, 1] / total[1, 1]
    shift = 1 / total[1, 0] + 1 / total[0, 0]
    return float(0.5 * (along + 1 / along + shift - 2 + across * (rest + 1 / rest - 2)))


def leak_bound(noise: "np.ndarray[Any, Any]", spreads: "np.ndarray[Any, Any]", across: int) -> float:
    """Return what no AUC exceeds, given the divergences: 1/2 + sqrt(e)/2 - e/8 for their sum e below 4."""
    epsilon = min(4.0, divergences(noise, spreads, across))
    return 0.5 + math.sqrt(epsilon) / 2 - epsilon / 8
