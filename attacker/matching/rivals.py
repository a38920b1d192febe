"""The attacks that CAFE is compared with: each a composition of an objective, regularisers and an optimiser."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from attacker.disaggregate import Collector
from attacker.interface import Attack, AttackPlugin, attacks
from attacker.matching import labels as labelling
from attacker.matching import objectives, optimisers, regularisers
from attacker.matching.engine import Engine
from attacker.matching.objectives import Objective
from attacker.matching.regularisers import Regulariser
from attacker.matching.solve import MatchingAttack, Recipe
from attacker.refusal import Lack, RefusalError
from vfl.observation import Setting

Labels = Literal["optimised", "from_gradient"]

STEPS = "steps for each batch, or for each sample when taken apart"
MOVES = "how guesses move"
STEP_SIZE = "the optimiser's step size"
LABELS = "optimised along with the data, or from_gradient, read off first"
SMOOTH = "weight of total variation; images only"


class Matching(AttackPlugin):
    """What all of them have in common: rounds to keep, iterations, restarts, and the recipe's tunables."""

    name: ClassVar[str]

    iterations: int = Field(300, ge=1, description=STEPS)
    restarts: int = Field(1, ge=1, description="first guesses that are solved side by side; the best is kept")
    rounds: int | None = Field(None, ge=1, description="how many rounds are kept; those of the first epoch by default")
    disaggregate: bool = Field(False, description="take batch gradients apart into each sample's own first")
    samples: int | None = Field(None, ge=1, description="with disaggregate: only so many samples, the first ones")
    optimizer: optimisers.Name = Field("adam", description=MOVES)
    lr: float = Field(0.1, gt=0, description=STEP_SIZE)
    labels: Labels = Field("optimised", description=LABELS)
    tv: float = Field(0.0, ge=0, description=SMOOTH)
    noise: float = Field(0.05, ge=0, description="how noisy the first guess is, around mid-grey (images) or zero")

    decay: ClassVar[bool] = False
    clip: ClassVar[bool] = False

    def start(self, setting: Setting) -> Attack:
        """Begin, unless the setting cannot give what the attack needs."""
        collector = Collector(setting, self.disaggregate, self.rounds, attack=self.name, samples=self.samples)
        engine = Engine(setting)
        if self.labels == "from_gradient":
            labelling.check(engine, self.name)
        return MatchingAttack(self.name, setting, engine, collector=collector, recipe=self._recipe(engine))

    def _recipe(self, engine: Engine) -> Recipe:
        return Recipe(
            objective=self._objective(),
            optimiser=self.optimizer,
            lr=self.lr,
            iterations=self.iterations,
            optimise_labels=self.labels == "optimised",
            regularisers=((self.tv, regularisers.total_variation), *self._regularisers(engine)),
            decay=self.decay,
            clip=self.clip,
            noise=self.noise,
            seeds=self.restarts,
        )

    def _objective(self) -> Objective:
        return objectives.squared

    def _regularisers(self, engine: Engine) -> tuple[tuple[float, Regulariser], ...]:  # noqa: ARG002
        return ()


@attacks.register("dlg")
class DLG(Matching):
    """Deep Leakage from Gradients (Zhu et al. 2019): squared distance, data and labels optimised, L-BFGS.

    Needs the gradients and the parameters of a round. Meant for one sample and smooth networks; on batches many
    different sets of data have nearly the same mean gradient, and it finds one of those.
    """

    name = "dlg"
    optimizer: optimisers.Name = Field("lbfgs", description=MOVES)
    lr: float = Field(1.0, gt=0, description=STEP_SIZE)


@attacks.register("idlg")
class IDLG(Matching):
    """Improved DLG (Zhao et al. 2020): the label from the last layer's gradient, then DLG on the data alone.

    The label is certain for one sample; for a batch the counts of the classes are estimated (labels.py).
    """

    name = "idlg"
    optimizer: optimisers.Name = Field("lbfgs", description=MOVES)
    lr: float = Field(1.0, gt=0, description=STEP_SIZE)
    labels: Labels = Field("from_gradient", description=LABELS)


@attacks.register("cosine")
class Cosine(Matching):
    """Inverting Gradients (Geiping et al. 2020): cosine distance plus total variation, Adam on signs, pixels in range.

    Needs labels, read off the gradient. Takes more steps than L-BFGS, but copes with ReLU and pooling.
    """

    name = "cosine"
    decay = True
    clip = True
    iterations: int = Field(600, ge=1, description=STEPS)
    optimizer: optimisers.Name = Field("signed_adam", description=MOVES)
    lr: float = Field(0.05, gt=0, description=STEP_SIZE)
    labels: Labels = Field("from_gradient", description=LABELS)
    tv: float = Field(1e-4, ge=0, description=SMOOTH)

    def _objective(self) -> Objective:
        return objectives.cosine


@attacks.register("sapag")
class SAPAG(Matching):
    """SAPAG (Wang et al. 2020): Gaussian-kernel distance with a width and a weight for each layer.

    The width follows the variance of the layer's gradient, so that it works on networks of any initialisation. Data
    and labels are optimised.
    """

    name = "sapag"
    optimizer: optimisers.Name = Field("lbfgs", description=MOVES)
    lr: float = Field(1.0, gt=0, description=STEP_SIZE)
    width: float = Field(10.0, gt=0, description="the kernel's width in units of the layer's own")
    last: float = Field(1.0, gt=0, description="weight of the deepest layer; the first has 1, those between follow")

    def _objective(self) -> Objective:
        return objectives.GaussianKernel(self.width, self.last)


@attacks.register("gradient_leakage")
class GradientLeakage(Matching):
    """CPL (Wei et al. 2020): squared distance plus alpha |f(x) - y|^2, the label y read off the gradient.

    The second term steadies the search; it also draws the result away from the truth, as far as the model does not
    yet predict its training labels.
    """

    name = "gradient_leakage"
    optimizer: optimisers.Name = Field("lbfgs", description=MOVES)
    lr: float = Field(1.0, gt=0, description=STEP_SIZE)
    labels: Labels = Field("from_gradient", description=LABELS)
    alpha: float = Field(1e-6, ge=0, description="weight of the label term")

    def _regularisers(self, engine: Engine) -> tuple[tuple[float, Regulariser], ...]:  # noqa: ARG002
        return ((self.alpha, regularisers.label_fit),)


class GradInversion(Matching):
    """GradInversion's common part (Yin et al. 2021): squared distance, labels first, Adam, total variation."""

    decay = True
    clip = True
    iterations: int = Field(600, ge=1, description=STEPS)
    lr: float = Field(0.05, gt=0, description=STEP_SIZE)
    labels: Labels = Field("from_gradient", description=LABELS)
    tv: float = Field(1e-3, ge=0, description=SMOOTH)


@attacks.register("bn")
class BatchNorm(GradInversion):
    """GradInversion's batch-norm regulariser (Yin et al. 2021): layers' statistics are drawn to those of the model.

    Needs a model with batch norm whose statistics the coordinator knows. In this protocol only parameters travel, so
    those are constants of the model (`model: {name: cafe_cnn, batch_norm: true}`): the statistics of stand-in images,
    not of the private batch, which Yin et al. assume to be known. It is a prior, and no more than that.
    """

    name = "bn"
    statistics: float = Field(1e-2, ge=0, description="weight of the batch-norm statistics")

    def start(self, setting: Setting) -> Attack:
        """Begin, unless the model has no batch norm."""
        if not Engine(setting).norms:
            needs = "a model with batch norm whose statistics the coordinator knows (as cafe_cnn with batch_norm true)"
            raise RefusalError("bn", Lack(needs, f"{setting.model.name} has none"))
        return super().start(setting)

    def _regularisers(self, engine: Engine) -> tuple[tuple[float, Regulariser], ...]:
        return ((self.statistics, regularisers.BatchNormStatistics(engine.norms)),)


@attacks.register("gc")
class GroupConsistency(GradInversion):
    """GradInversion's group consistency (Yin et al. 2021): several seeds at once, drawn to their mean image.

    `restarts` is the number of seeds, which multiplies the cost. Without the paper's registration step: the mean
    image is the consensus. In a batch, seeds may put the same sample at different places; their mean is then a blur.
    """

    name = "gc"
    restarts: int = Field(4, ge=2, description="seeds that are solved side by side; the best is kept")
    consistency: float = Field(1e-2, ge=0, description="weight of the distance from the seeds' mean")

    def _recipe(self, engine: Engine) -> Recipe:
        return replace(super()._recipe(engine), coupled=True)

    def _regularisers(self, engine: Engine) -> tuple[tuple[float, Regulariser], ...]:  # noqa: ARG002
        return ((self.consistency, regularisers.group_consistency),)
