"""`exact`: with frozen parameters steps I and II are linear algebra, and two epochs give every sample away."""

from typing import Literal

from pydantic import Field

from attacker.exact.attack import Either, ExactAttack
from attacker.exact.choice import Wanted, choose
from attacker.interface import Attack, AttackPlugin, attacks
from attacker.inversion import InversionOptions
from vfl.errors import UserError
from vfl.observation import Setting


@attacks.register("exact")
class Exact(AttackPlugin):
    """Intersecting subspaces (this project) or least squares, then inversion: beyond Jin et al. 2021 (CAFE)."""

    method: Wanted = Field(
        "auto", description="how steps I and II are solved; auto goes by the room in the layers, and by the outcome"
    )
    epochs: Literal[1] | None = Field(None, description="1: each sample from a single gradient, without the indices")
    relink: bool = Field(False, description="take the indices for made-up ones: which batches share samples is found")
    step_three: bool = Field(True, description="go on from the representations to the data")
    inversion: InversionOptions = Field(InversionOptions(), description="the tunables of step III")

    def start(self, setting: Setting) -> Attack:
        """Begin, unless the schedule or the model cannot give the samples away."""
        single = self.epochs == 1
        choice = choose(setting, self.method, single)
        if self.relink and (
            single or choice.method != "subspaces" or setting.schedule == "uniform" or not setting.frozen
        ):
            raise UserError(
                "attack exact with relink: needs the subspaces of two epochs (schedule epochs or orthogonal, "
                "training.lr 0, layers with room for two batches, attack.epochs not 1)"
            )
        inversion = self.inversion if self.step_three else None
        if inversion is not None:
            inversion.check_engine()
        attack = ExactAttack(setting, choice, inversion, relinks=self.relink)
        if choice.beside is None or self.relink:
            return attack
        return Either(attack, ExactAttack(setting, choice.beside, inversion))
