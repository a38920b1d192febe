"""`cafe`: the paper's attack, three steps of stochastic gradient descent over the rounds."""

from typing import Annotated

from pydantic import Field

from attacker.cafe.attack import CafeAttack
from attacker.cafe.objective import Match, Terms
from attacker.cafe.phases import Loop
from attacker.cafe.steps import Name
from attacker.interface import Attack, AttackPlugin, attacks
from attacker.least_squares import first_layers
from attacker.matching.engine import Engine
from attacker.refusal import FROZEN, Lack, RefusalError
from attacker.steady import refuse_unsteady
from vfl.errors import UserError
from vfl.observation import Setting

__all__ = ["Cafe", "CafeAttack"]

Share = Annotated[float, Field(ge=0)]
Weight = Annotated[float, Field(ge=0)]


@attacks.register("cafe")
class Cafe(AttackPlugin):
    """Jin et al., CAFE: Catastrophic Data Leakage in Vertical Federated Learning, NeurIPS 2021, Algorithms 1 to 4.

    It needs the batch indices, the parameters, all gradients, and a fully connected layer with a bias at every worker.
    One round of the federation is one iteration of the paper. The paper's guarantees are for frozen parameters, K < N,
    and for step II N < d2; with parameters that move each iteration uses those of its own round, and recovers the
    less the faster they move. The defaults are Table 9's for MNIST.
    """

    loop: Loop = Field("single", description="nested: the steps one after the other; single: all in one loop")
    shares: tuple[Share, Share, Share] | None = Field(
        None,
        description="how the rounds are divided among the steps (nested; null: 1, 1, 1), "
        "or when they begin at the latest (single; null: 1, 2, 7)",
    )
    switch_one: float | None = Field(1e-9, ge=0, description="single: step II begins below this F1; null: at once")
    switch_two: float | None = Field(5e-9, ge=0, description="single: step III begins below this F2; null: at once")
    optimiser_one: Name = Field("sgd", description="of step I")
    optimiser_two: Name = Field("adam", description="of step II; step III has Adam")
    lr_one: float = Field(1e-2, gt=0)
    lr_two: float = Field(1e-2, gt=0)
    lr_three: float = Field(1e-2, gt=0)
    final_two: float = Field(1.0, ge=0, le=1, description="what Adam's lr_two falls to along a cosine; 1: constant")
    final_three: float = Field(1.0, ge=0, le=1, description="the same for lr_three; both are 1 in the paper")
    replay: int = Field(
        0,
        ge=0,
        description="beyond the paper: step I again on so many earlier rounds each round; frozen parameters only",
    )
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    epsilon: float = Field(1e-8, gt=0, description="Adam's, in all steps")
    alpha: Weight = Field(1e-2, description="weight of the gradients' distance; 0 leaves out all second derivatives")
    match: Match = Field("squared", description="that distance: squared (CAFE, DLG), cosine, or gaussian (SAPAG)")
    width: float = Field(1.0, gt=0, description="of the Gaussian kernel, in units of each layer's own")
    beta: Weight = Field(1e-4, description="weight of the total variation")
    gamma: Weight = Field(1e-3, description="weight of the representations' distance; 0 leaves out steps I and II")
    xi: float = Field(25.0, ge=0, description="the total variation of a slice below which it costs nothing")
    statistics: Weight = Field(
        0.0, description="weight of GradInversion's batch-norm statistics; models that have them"
    )
    consistency: Weight = Field(0.0, description="weight of GradInversion's distance from the mean of all starts")
    starts: int = Field(1, ge=1, le=64, description="first guesses of the data that are moved side by side")
    clip: bool = Field(False, description="keep the guessed data in [0, 1]")
    scale_v: float | None = Field(
        None, gt=0, description="V begins uniform in plus or minus this; null: a K-th of the first bias gradient's size"
    )
    scale_h: float = Field(8e-2, ge=0, description="H begins uniform between 0 and this")

    def terms(self) -> Terms:
        """Return what equation (9) is made of."""
        return Terms(
            self.alpha,
            self.beta,
            self.gamma,
            self.xi,
            match=self.match,
            width=self.width,
            statistics=self.statistics,
            consistency=self.consistency,
        )

    def start(self, setting: Setting) -> Attack:
        """Begin, unless the batches or the model rule the attack out."""
        if setting.batch_size >= setting.samples > 1:
            same = f"here every batch holds all {setting.samples} samples, so nothing tells them apart"
            raise RefusalError("cafe", Lack("batches that differ", same))
        self._check_options(setting)
        if self.replay and not setting.frozen:
            raise RefusalError("cafe with replay", FROZEN)
        if self.statistics and not Engine(setting).norms:
            needs = "a model with batch norm whose statistics the coordinator knows (as cafe_cnn with batch_norm true)"
            raise RefusalError("cafe with statistics", Lack(needs, f"{setting.model.name} has none"))
        refuse_unsteady(setting, "cafe")
        return CafeAttack(setting, self, first_layers(setting, "cafe"))

    def _check_options(self, setting: Setting) -> None:
        if self.shares is not None and sum(self.shares) == 0:
            raise UserError("attack cafe: shares are all 0; give at least one step a share of the rounds")
        if self.gamma and self.optimiser_one == "sgd" and self.lr_one * setting.batch_size >= 1:
            raise UserError(
                f"attack cafe: step I diverges, as lr_one {self.lr_one:g} times the batch size {setting.batch_size} is "
                f"not below 1; choose lr_one {0.5 / setting.batch_size:g}, or optimiser_one scaled_sgd"
            )
        if self.terms().none:
            raise UserError("attack cafe: the weights of all terms are 0, so step III has nothing to go by")
        if bool(self.consistency) != (self.starts > 1):
            raise UserError("attack cafe: consistency draws several starts together; give both, or neither")
