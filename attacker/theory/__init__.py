"""`theory`: samples that alone activate some neurons of their batch are read off the gradient, without optimisation."""

from pydantic import Field

from attacker.interface import Attack, AttackPlugin, attacks
from attacker.inversion import InversionOptions
from attacker.theory.attack import TheoryAttack
from vfl.observation import Setting


@attacks.register("theory")
class Theory(AttackPlugin):
    """Pan et al. 2020 (Theory-oriented deep leakage via linear equations): exclusively activated neurons.

    A neuron of a worker's first fully connected layer that passes gradient for one sample of the batch alone has that
    sample's v h^T as its weight gradient and its v as its bias gradient: the quotient is h, exactly. Two neurons that
    agree on h certify it, which is the paper's condition on a sample. The paper looks for such neurons in the last
    hidden layer and solves its way forward; in the first layer the equations need no further ones.

    Needs: a fully connected layer with a bias at each worker, ReLU behind it, and each sample's own two neurons, so
    small batches in wide layers. The batch's indices tell which samples it holds, not which is which: within a batch
    the order is arbitrary. Works with moving parameters, batch by batch; of a `uniform` schedule it uses
    batches that share no sample. Samples with identical slices in a batch hide each other. With `disaggregate` each
    batch is one sample, whose neurons are all exclusive.
    """

    disaggregate: bool = Field(False, description="take batch gradients apart into samples' own first (frozen, rounds)")
    rounds: int | None = Field(None, ge=1, description="batches to attack at most; by default those of one epoch")
    samples: int | None = Field(None, ge=1, description="samples to attack at most, the first, with disaggregate")
    step_three: bool = Field(True, description="go on from the representations to the data")
    inversion: InversionOptions = Field(InversionOptions(), description="the tunables of step III")

    def start(self, setting: Setting) -> Attack:
        """Begin, unless a worker's model has no fully connected layer with a bias."""
        inversion = self.inversion if self.step_three else None
        if inversion is not None:
            inversion.check_engine()
        return TheoryAttack(
            setting, disaggregate=self.disaggregate, rounds=self.rounds, samples=self.samples, inversion=inversion
        )
