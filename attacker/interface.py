"""What an attack is: it observes rounds, then recovers; it never sees more than `Observation` and `Setting`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from attacker.refusal import Lack, RefusalError
from vfl.observation import ModelTensors, Observation, Setting, Tensors
from vfl.observation.setting import UNKNOWN
from vfl.optimisers.training import LossName
from vfl.recovery import Recovery
from vfl.registry import Plugin, Registry
from vfl.seats import SeatKind

__all__ = [
    "EVERY_LOSS", "ActiveAttack", "Attack", "AttackPlugin", "Lack", "Observation", "Progress", "Proposal", "Recovery",
    "RefusalError", "Resumable", "Setting", "attacks", "share", "silent",
]  # fmt: skip

Progress = Callable[[str, int, int], None]
"""Called as progress("step III", done, total); may raise to interrupt the attack."""


def share(progress: Progress, make: Callable[[], Recovery]) -> None:
    """Offer an unfinished estimate; `make` is called only if the caller of `recover` wants to see one now."""
    estimate = getattr(progress, "estimate", None)
    if estimate is not None:
        estimate(make)


class Attack(Protocol):
    """A running attack."""

    def observe(self, observation: Any, /) -> None:
        """Take in one round as it comes: the observation of the seat that the attack is played from."""

    def recover(self, progress: Progress, /) -> Recovery:
        """Return the best estimate from the rounds so far; called after the last round, or now and then before."""


@dataclass(frozen=True)
class Proposal:
    """What a malicious party is to order or send in one round; None: as the protocol has it."""

    indices: Tensor | None = None
    """A coordinator's: the samples of the batch."""
    parameters: ModelTensors | None = None
    """A coordinator's: all parties' parameters, for this round alone; the model is not moved by its gradients."""
    answers: tuple[Tensor, ...] | None = None
    """A label holder's: what it answers to each worker's output; its own takes no part."""
    upload: Tensors | None = None
    """A worker's: what it uploads as its bottom model's gradients."""


@runtime_checkable
class ActiveAttack(Protocol):
    """An attack that tells a malicious party what to order or send; what it sees is observations alone, as ever."""

    def propose(self, number: int, /) -> Proposal | None:
        """Return what to do in a round, None for nothing.

        A coordinator asks when all rounds before it were observed; a worker and the label holder when it was itself.
        """


@runtime_checkable
class Resumable(Protocol):
    """An attack that can go on where it was: a resumed run then shows it only the rounds since its last state."""

    def state(self) -> dict[str, Tensor]:
        """Return all that it has come to, as tensors on the CPU."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from such a state; called before the first round."""


class AttackPlugin(Plugin):
    """An attack by name: its fields are its options."""

    seats: ClassVar[tuple[frozenset[SeatKind], ...]] = (frozenset({"coordinator"}),)
    """From where it can be played: each of these is enough. One of several seats is shown what all of them see."""
    active: ClassVar[bool] = False
    """Whether it is an `ActiveAttack`, for a malicious party."""
    needs_known: ClassVar[frozenset[str]] = frozenset(UNKNOWN)
    """What it cannot do without where the server of a recorded run does not know all of it."""

    losses: ClassVar[frozenset[LossName]] = frozenset({"cross_entropy"})
    """Under which losses it knows what comes back from a sample."""
    weighs: ClassVar[bool] = False
    """Whether it also does where classes have weights."""

    def start(self, setting: Setting) -> Attack:
        """Begin, or raise RefusalError with what the attack needs and the setting lacks."""
        raise NotImplementedError


_OURS = (
    "least_squares",
    "exact",
    "adaptive",
    "cafe",
    "theory",
    "rgap",
    "matching.rivals",
    "labels.clusters",
    "labels.batch",
    "labels.scoring",
    "labels.completion",
    "outputs.attack",
    "active.isolate",
    "active.single_out",
    "active.fsha",
    "active.completion",
    "outputs.inverse",
    "outputs.sdar",
    "outputs.grn",
)
EVERY_LOSS: frozenset[LossName] = frozenset({"cross_entropy", "binary", "squared"})
attacks = Registry("attack", AttackPlugin, "cafe.attacks", [f"attacker.{name}" for name in _OURS])


@attacks.register("none")
class NoAttack(AttackPlugin):
    """Looks at nothing and recovers nothing."""

    seats: ClassVar[tuple[frozenset[SeatKind], ...]] = (
        frozenset({"coordinator"}),
        frozenset({"label_holder"}),
        frozenset({"worker"}),
    )
    losses, weighs = EVERY_LOSS, True

    def start(self, setting: Setting) -> Attack:  # noqa: ARG002
        """Begin: nothing is kept from round to round."""
        return self

    def observe(self, observation: Any) -> None:
        """Look away."""

    def recover(self, progress: Progress) -> Recovery:  # noqa: ARG002
        """Recover nothing."""
        return Recovery(used=())


def silent(step: str, done: int, total: int) -> None:
    """Show nothing: the progress for callers that want none."""
