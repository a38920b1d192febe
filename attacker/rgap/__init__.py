"""`rgap`: one sample's gradients inverted layer by layer from the output to the input, each by linear equations."""

from pydantic import Field

from attacker.interface import Attack, AttackPlugin, attacks
from attacker.rgap.attack import RGapAttack
from vfl.observation import Setting


@attacks.register("rgap")
class RGap(AttackPlugin):
    """Zhu and Blaschko 2021 (R-GAP: Recursive Gradient Attack on Privacy), a closed form.

    The top model's bias gradient is p - y. From there every layer's input follows from its output (weight constraints,
    W x + b = z, where the activation can be inverted) and from its gradient (gradient constraints, both linear in x).
    A fully connected layer's gradient alone determines its input; a convolution needs both kinds together.

    Needs: models that are chains of nn.Linear, nn.Conv2d, ReLU, LeakyReLU, Sigmoid, Tanh and Flatten (no pooling,
    no branches), a bias in the last layer of the top model, and at each convolution equations of full rank. Uses the
    parameters of the round, which may move. It is made for batches of one sample; from a larger batch it returns one
    combination of the samples for all of them: exact (and their weights sum to one) where a fully connected layer sees
    the data, a rough estimate behind convolutions. With `disaggregate` every sample comes alone.
    """

    disaggregate: bool = Field(False, description="take batch gradients apart into samples' own first (frozen, rounds)")
    rounds: int | None = Field(None, ge=1, description="batches to attack at most; by default those of one epoch")
    samples: int | None = Field(None, ge=1, description="samples to attack at most, the first, with disaggregate")

    def start(self, setting: Setting) -> Attack:
        """Begin, unless a layer cannot be inverted."""
        return RGapAttack(setting, self.disaggregate, self.rounds, self.samples)
