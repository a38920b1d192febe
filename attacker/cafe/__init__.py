"""`cafe`: the paper's attack as it is printed, three steps of stochastic gradient descent over the rounds."""

from typing import Annotated

from pydantic import Field

from attacker.cafe.attack import CafeAttack
from attacker.cafe.optimiser import Name
from attacker.cafe.steps import Loop
from attacker.interface import Attack, AttackPlugin, attacks
from attacker.least_squares import first_layers
from attacker.steady import refuse_unsteady
from vfl.errors import UserError
from vfl.observation import Setting

Share = Annotated[float, Field(ge=0)]


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
    final_two: float = Field(0.02, ge=0, le=1, description="what Adam's lr_two falls to along a cosine, as a share")
    final_three: float = Field(1.0, ge=0, le=1, description="the same for lr_three; 1: constant, as in the paper")
    replay: int = Field(
        0,
        ge=0,
        description="beyond the paper: step I again on so many earlier rounds each round; frozen parameters only",
    )
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    epsilon: float = Field(1e-8, gt=0, description="Adam's, in all steps")
    alpha: float = Field(
        1e-2, ge=0, description="weight of the gradients' distance; 0 leaves out all second derivatives"
    )
    beta: float = Field(1e-4, ge=0, description="weight of the total variation")
    gamma: float = Field(1e-3, ge=0, description="weight of the representations' distance")
    xi: float = Field(25.0, ge=0, description="the total variation of a slice below which it costs nothing")
    clip: bool = Field(False, description="keep the guessed data in [0, 1]")
    scale_v: float | None = Field(
        None, gt=0, description="V begins uniform in plus or minus this; null: a K-th of the first bias gradient's size"
    )
    scale_h: float = Field(8e-2, ge=0, description="H begins uniform between 0 and this")

    def start(self, setting: Setting) -> Attack:
        """Begin, unless the batches or the model rule the attack out."""
        if setting.batch_size >= setting.samples > 1:
            raise UserError(
                f"attack cafe: every batch holds all {setting.samples} samples, so nothing tells them apart; "
                f"choose federation.batch_size below {setting.samples}"
            )
        if self.shares is not None and sum(self.shares) == 0:
            raise UserError("attack cafe: shares are all 0; give at least one step a share of the rounds")
        if self.optimiser_one == "sgd" and self.lr_one * setting.batch_size >= 1:
            raise UserError(
                f"attack cafe: step I diverges, as lr_one {self.lr_one:g} times the batch size {setting.batch_size} is "
                f"not below 1; choose lr_one {0.5 / setting.batch_size:g}, or optimiser_one scaled_sgd"
            )
        if not (self.alpha or self.beta or self.gamma):
            raise UserError("attack cafe: alpha, beta and gamma are all 0, so step III has nothing to go by")
        if self.replay and not setting.frozen:
            raise UserError("attack cafe: replay needs frozen parameters; set training.lr to 0, or replay to 0")
        refuse_unsteady(setting, "cafe")
        return CafeAttack(setting, self, first_layers(setting, "cafe"))
