"""`exact`: one gradient gives a batch away; with frozen parameters, two epochs give every sample away, cheaper."""

from typing import ClassVar

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
    needs_known: ClassVar[frozenset[str]] = frozenset({"parameters"})
    method: Wanted = Field(
        "auto", description="how steps I and II are solved; auto goes by the room in the layers, and by the outcome"
    )
    trust_indices: bool = Field(True, description="false: take the indices for made-up ones, and name no sample")
    step_three: bool = Field(True, description="go on from the representations to the data")
    inversion: InversionOptions = Field(InversionOptions(), description="the tunables of step III")

    def choice(self, setting: Setting) -> Choice:
        """Decide what to do."""
        trusts = self._trusts(setting)
        choice = choose(setting, "one_gradient" if self.method == "auto" and not trusts else self.method)
        if not trusts and choice.method != "one_gradient":
            name = f"exact by {choice.method.replace('_', ' ')}"
            found = "attack.trust_indices is false" if not self.trust_indices else "the recorded server knows none"
            raise RefusalError(name, Lack("indices to join rounds by", found))
        return choice

    def _trusts(self, setting: Setting) -> bool:
        return self.trust_indices and "indices" not in setting.unknown

    def start(self, setting: Setting) -> Attack:
        """Begin, unless the schedule or the model cannot give the samples away."""
        choice = self.choice(setting)
        inversion = self.inversion if self.step_three else None
        if inversion is not None:
            inversion.check_engine()
        if choice.method == "one_gradient":
            alone = OneGradient(setting, choice, inversion, trust_indices=self._trusts(setting))
            if choice.beside is None or inversion is None:
                return alone
            return OrTogether(alone, ExactAttack(setting, choice.beside, inversion))
        attack = ExactAttack(setting, choice, inversion)
        if choice.beside is None:
            return attack
        return Either(attack, ExactAttack(setting, choice.beside, inversion, beside=attack))
