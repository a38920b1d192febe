"""`averaging`: least squares over all rounds, none of which need be exact, and what a told attacker makes of them."""

from pydantic import Field

from attacker.adaptive.attack import AveragingAttack
from attacker.adaptive.told import Told
from attacker.interface import Attack, AttackPlugin, attacks
from attacker.inversion import InversionOptions
from attacker.least_squares import first_layers, undetermined
from attacker.steady import refuse_unsteady
from vfl.errors import UserError
from vfl.observation import Setting


@attacks.register("averaging")
class Averaging(AttackPlugin):
    """The adaptive attacker (this project): more rounds against noise, and what it was told of a worker's defence."""

    told: Told | None = Field(None, description="the kind of defence, as the attacker learnt it: {name: prune}")
    iterations: int = Field(40, ge=1, description="of filling in what a told defence hid, and solving again")
    memory: int = Field(1 << 30, gt=0, description="bytes for what is kept of the rounds, however many there are")
    step_three: bool = Field(True, description="go on from the representations to the data")
    smoothness: float = Field(
        0.4, ge=0, description="weight of roughness in step III for every 1 that h is off, relative"
    )
    inversion: InversionOptions = Field(InversionOptions(), description="the tunables of step III")

    def start(self, setting: Setting) -> Attack:
        """Begin, unless the schedule or the model cannot give the samples away."""
        if not setting.frozen:
            raise UserError(
                "attack averaging: the parameters move, and with them every sample's gradient; set training.lr to 0"
            )
        problem = undetermined(setting)
        if problem:
            raise UserError(f"attack averaging: {problem}")
        refuse_unsteady(setting, "averaging")
        if self.step_three:
            self.inversion.check_engine()
        return AveragingAttack(setting, first_layers(setting, "averaging"), self)
