"""No attack: the run is just a federation."""

from attacker.interface import Attack, AttackPlugin, Progress, Recovery, attacks
from vfl.observation import Observation, Setting


@attacks.register("none")
class NoAttack(AttackPlugin):
    """Looks at nothing and recovers nothing."""

    def start(self, setting: Setting) -> Attack:  # noqa: ARG002
        """Begin."""
        return _Nothing()


class _Nothing:
    def observe(self, observation: Observation) -> None:
        """Look away."""

    def recover(self, progress: Progress) -> Recovery:  # noqa: ARG002
        """Recover nothing."""
        return Recovery(used=())
