"""`exact`: one gradient gives a batch away; with frozen parameters, two epochs give every sample away, cheaper."""

from typing import ClassVar

from pydantic import Field

from attacker.exact.all_rounds.attack import AllRounds
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
    first_round: int = Field(1, ge=1, description="rounds before this one are not looked at; one gradient each then")
    step_three: bool = Field(True, description="go on from the representations to the data")
    inversion: InversionOptions = Field(InversionOptions(), description="the tunables of step III")

    def choice(self, setting: Setting) -> Choice:
        """Decide what to do."""
        trusts = self._trusts(setting)
        alone = self.method == "auto" and (not trusts or self.first_round > 1)
        choice = choose(setting, "one_gradient" if alone else self.method)
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
        if choice.method == "all_rounds":
            return AllRounds(setting, choice)
        if choice.method == "one_gradient":
            alone = OneGradient(
                setting, choice, inversion, trust_indices=self._trusts(setting), first_round=self.first_round
            )
            if choice.beside is None or inversion is None or self.first_round > 1:
                return alone
            return OrTogether(alone, ExactAttack(setting, choice.beside, inversion))
        if self.first_round > 1:
            needs = Lack("all rounds (attack.first_round 1)", f"it looks at none before round {self.first_round}")
            raise RefusalError(f"exact by {choice.method.replace('_', ' ')}", needs)
        attack = ExactAttack(setting, choice, inversion)
        if choice.beside is None:
            return attack
        return Either(attack, ExactAttack(setting, choice.beside, inversion, beside=attack))
