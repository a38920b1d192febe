"""`exact`: one gradient gives a batch away; with frozen parameters, two epochs give every sample away, cheaper."""

from pydantic import Field

from attacker.exact.attack import Either, ExactAttack
from attacker.exact.choice import Choice, Wanted, choose
from attacker.exact.one_gradient.recover import OneGradient, OrTogether
from attacker.interface import EVERY_LOSS, Attack, AttackPlugin, Lack, RefusalError, attacks
from attacker.inversion import InversionOptions
from vfl.observation import Setting


@attacks.register("exact")
class Exact(AttackPlugin):
    """Rays of one gradient, intersecting subspaces or least squares, then inversion: beyond Jin et al. 2021 (CAFE)."""

    losses, weighs = EVERY_LOSS, True
    method: Wanted = Field(
        "auto", description="how steps I and II are solved; auto goes by the room in the layers, and by the outcome"
    )
    trust_indices: bool = Field(True, description="false: take the indices for made-up ones, and name no sample")
    step_three: bool = Field(True, description="go on from the representations to the data")
    inversion: InversionOptions = Field(InversionOptions(), description="the tunables of step III")

    def choice(self, setting: Setting) -> Choice:
        """Decide what to do."""
        choice = choose(setting, "one_gradient" if self.method == "auto" and not self.trust_indices else self.method)
        if not self.trust_indices and choice.method != "one_gradient":
            name = f"exact by {choice.method.replace('_', ' ')}"
            raise RefusalError(name, Lack("indices to join rounds by", "attack.trust_indices is false"))
        return choice

    def start(self, setting: Setting) -> Attack:
        """Begin, unless the schedule or the model cannot give the samples away."""
        choice = self.choice(setting)
        inversion = self.inversion if self.step_three else None
        if inversion is not None:
            inversion.check_engine()
        if choice.method == "one_gradient":
            alone = OneGradient(setting, choice, inversion, trust_indices=self.trust_indices)
            if choice.beside is None or inversion is None:
                return alone
            return OrTogether(alone, ExactAttack(setting, choice.beside, inversion))
        attack = ExactAttack(setting, choice, inversion)
        if choice.beside is None:
            return attack
        return Either(attack, ExactAttack(setting, choice.beside, inversion, beside=attack))
