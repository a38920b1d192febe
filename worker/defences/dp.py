"""Differential privacy: clipped uploads, Gaussian noise, and what epsilon that really is.

scipy is imported where it is needed: that takes a second, and every worker imports this module.
"""

import math
from typing import Any, Literal

import torch
from pydantic import Field, model_validator

from vfl.errors import UserError, missing_extra
from vfl.observation import Tensors
from worker.defences import Defence, Plan, Played, WithheldError, defences
from worker.defences.clip import clipped

ALONE = "This worker's uploads, and no other shows its samples. The batch losses that it reports are not covered."
COVERS = (
    "This worker's uploads. A sample shows in the other workers' too: epsilon_all_workers is for all of them, if they "
    "add the same noise. The batch losses that the label holder reports are not covered."
)


@defences.register("dp")
class DifferentialPrivacy(Defence):
    """Clips each upload to an L2 norm and adds Gaussian noise (Abadi et al. 2016, as Jin et al. 2021 apply it).

    The upload is clipped as a whole, so one sample added, removed or replaced moves it by up to twice `clip`: that is
    the sensitivity, and the noise's standard deviation is noise_multiplier * 2 * clip. `batches` says what epsilon is
    about: `secret` counts on Poisson batches that the coordinator does not know, `known` on nothing of the kind.
    """

    epsilon: float | None = Field(None, gt=0, description="the budget for the whole run; gives the noise multiplier")
    noise_multiplier: float | None = Field(None, gt=0, description="instead: the noise in units of the sensitivity")
    delta: float = Field(1e-5, gt=0, lt=1)
    clip: float = Field(3.0, gt=0, description="the largest L2 norm of an upload before the noise")
    batches: Literal["secret", "known"] = Field("secret", description="what the coordinator is assumed to know of them")

    @model_validator(mode="after")
    def _one_of_two(self) -> "DifferentialPrivacy":
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("dp: give either epsilon or noise_multiplier, and not both")
        return self

    keeps_count = True

    def start(self, plan: Plan) -> "_Private":
        """Begin with the noise that the plan's number of rounds asks for."""
        return _Private(self, plan)


class _Private:
    def __init__(self, options: DifferentialPrivacy, plan: Plan) -> None:
        self._options, self._plan = options, plan
        self._most = participations(plan.schedule, plan.samples, plan.batch_size, plan.rounds)
        rate, aim, delta = min(1.0, plan.batch_size / plan.samples), options.epsilon or 0.0, options.delta
        if options.batches == "known":
            self._multiplier = options.noise_multiplier or gaussian_multiplier(aim, self._most, delta)
            self._epsilon = gaussian_epsilon(self._multiplier, self._most, delta)
            self._sampling = f"none: the batches are known, and no sample takes part in more than {self._most} rounds"
        else:
            self._multiplier = options.noise_multiplier or sampled_multiplier(aim, rate, plan.rounds, delta)
            self._epsilon = sampled_epsilon(self._multiplier, rate, plan.rounds, delta)
            self._sampling = f"Poisson with rate {rate:.4g}, batches secret"
        self._seen = torch.zeros(plan.samples, dtype=torch.int64)
        self._rounds: set[int] = set()
        self._newest: Tensors | None = None

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return the clipped gradients with noise, or nothing once the budget is spent."""
        self._count(played)
        deviation = self._multiplier * 2 * self._options.clip
        return {
            name: tensor + deviation * played.draws.normal(tensor.shape).to(tensor)
            for name, tensor in clipped(gradients, self._options.clip).items()
        }

    def report(self) -> dict[str, Any]:
        """Return the epsilon that was aimed at, what it assumes, and the one that needs no assumption."""
        counted = int(self._seen.max()) if self._rounds else 0
        workers, delta = self._plan.workers, self._options.delta
        return {
            "epsilon": self._epsilon,
            "delta": delta,
            "sampling": self._sampling,
            "epsilon_batches_known": gaussian_epsilon(self._multiplier, counted, delta),
            "participations": counted,
            "epsilon_all_workers": workers and gaussian_epsilon(self._multiplier, counted * workers, delta),
            "noise_multiplier": self._multiplier,
            "clip": self._options.clip,
            "sensitivity": 2 * self._options.clip,
            "neighbours": "one sample added, removed or replaced",
            "covers": ALONE if workers == 1 else COVERS,
            "rounds": len(self._rounds),
            "warning": self._warning(),
        }

    def counted(self) -> Tensors | None:
        """Return the newest round's rows, once."""
        newest, self._newest = self._newest, None
        return newest

    def count_again(self, number: int, counted: Tensors) -> None:
        """Count a round."""
        self._rounds.add(number)
        self._seen[counted["rows"]] += 1

    def _count(self, played: Played) -> None:
        if played.number in self._rounds:
            return  # the same noise again: no second look
        self._newest = {"rows": played.rows.cpu()}
        self.count_again(played.number, self._newest)
        if len(self._rounds) > self._plan.rounds:
            raise WithheldError(f"its dp budget was for {self._plan.rounds} rounds, and this is one more")
        if self._options.batches == "known" and int(self._seen.max()) > self._most:
            raise WithheldError(f"its dp budget was for {self._most} rounds a sample, and this round takes one more")

    def _warning(self) -> str | None:
        if self._options.batches == "known":
            return None
        holds = "What holds against a coordinator that knows the batches is epsilon_batches_known."
        if self._plan.schedule == "poisson":
            return f"epsilon holds only while the workers' key for the rows is secret. {holds}"
        return (
            f"EPSILON DOES NOT HOLD HERE: it assumes Poisson batches that the coordinator does not know, and this "
            f"schedule ({self._plan.schedule}) is neither. {holds}"
        )


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
        aim = {"target_epsilon": epsilon, "epsilon_tolerance": epsilon / 1000, "target_delta": delta, "alphas": ORDERS}
        found = _opacus().utils.get_noise_multiplier(sample_rate=rate, steps=rounds, accountant="rdp", **aim)
        return float(found)
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
        raise missing_extra("defence dp (without `batches: known`)", "the accountant opacus", "dp") from None
    return accountants
