"""What differential privacy a series of Gaussian uploads gives, with and without amplification by sampling.

scipy is imported where it is needed: that takes a second, and every worker imports this module.
"""

import math
from typing import Any

from vfl.errors import UserError

ORDERS = [1.1, 1.25, 1.5, 1.75, *range(2, 64), 64, 80, 96, 128, 192, 256, 384, 512, 1024]
"""Renyi orders to choose from: opacus's own end at 63, which is too low for an epsilon of 0.1."""

UNLIKELY = 1e-6
"""How likely a random schedule may be to name some sample more often than `participations` says."""


def gaussian_epsilon(noise_multiplier: float, uploads: int, delta: float) -> float:
    """Return the exact epsilon of `uploads` Gaussian uploads (Balle and Wang 2018); no sampling helps it."""
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    if uploads == 0:
        return 0.0
    shift = math.sqrt(uploads) / noise_multiplier

    def excess(epsilon: float) -> float:
        left = math.exp(log_ndtr(shift / 2 - epsilon / shift))
        return left - math.exp(min(epsilon + log_ndtr(-shift / 2 - epsilon / shift), 700.0)) - delta

    if excess(0.0) <= 0:
        return 0.0
    highest = 1.0
    while excess(highest) > 0:
        highest *= 2
    return float(brentq(excess, 0.0, highest, xtol=1e-9))


def gaussian_multiplier(epsilon: float, uploads: int, delta: float) -> float:
    """Return the smallest noise multiplier with which so many uploads keep epsilon."""
    from scipy.optimize import brentq

    low = high = 1.0
    while gaussian_epsilon(high, uploads, delta) > epsilon:
        high *= 2
    while gaussian_epsilon(low, uploads, delta) < epsilon:
        low /= 2
    return float(brentq(lambda z: gaussian_epsilon(z, uploads, delta) - epsilon, low, high, xtol=1e-6 * low))


def sampled_epsilon(noise_multiplier: float, rate: float, rounds: int, delta: float) -> float:
    """Return opacus's epsilon of Poisson-sampled Gaussian uploads whose batches stay secret (Mironov et al. 2019)."""
    accountant = _opacus().RDPAccountant()
    accountant.history = [(noise_multiplier, rate, rounds)]
    return float(accountant.get_epsilon(delta, alphas=ORDERS))


def sampled_multiplier(epsilon: float, rate: float, rounds: int, delta: float) -> float:
    """Return opacus's smallest noise multiplier that keeps epsilon with secret Poisson batches."""
    try:
        return float(
            _opacus().utils.get_noise_multiplier(
                target_epsilon=epsilon,
                target_delta=delta,
                sample_rate=rate,
                steps=rounds,
                accountant="rdp",
                epsilon_tolerance=epsilon / 1000,
                alphas=ORDERS,
            )
        )
    except ValueError:
        raise UserError(
            f"defence.epsilon: no noise gives epsilon {epsilon:g} at delta {delta:g} in {rounds} rounds; raise it"
        ) from None


def participations(schedule: str, samples: int, batch_size: int, rounds: int) -> int:
    """Return how many rounds a sample takes part in at most; for random schedules, but for a chance of 1e-6."""
    from scipy.stats import binom

    if schedule in ("epochs", "orthogonal"):
        return -(-rounds // -(-samples // batch_size))
    rate = min(1.0, batch_size / samples)
    return min(rounds, int(binom.isf(UNLIKELY / samples, rounds, rate)) + 1)


def _opacus() -> Any:
    try:
        from opacus import accountants
    except ImportError:
        raise UserError(
            "defence dp: the accountant opacus is not installed: install the extra `dp`, or set batches: known"
        ) from None
    return accountants
