"""Steps I and II in closed form: with frozen parameters, every sample's gradient by least squares over the rounds.

The paper (Jin et al., CAFE, NeurIPS 2021) finds the same by two loops of SGD. Each batch's bias gradient is the mean
of its samples' v_n, and its weight gradient the mean of h_n v_n^T. The rounds' batches make a linear system with one
solution as soon as it has full column rank; its pseudo-inverse takes the gradients of any layer apart.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacker.interface import EVERY_LOSS, Attack, AttackPlugin, Progress, Recovery, attacks
from attacker.refusal import FROZEN, Lack, RefusalError
from attacker.steady import refuse_unsteady
from vfl.errors import UserError
from vfl.maths.least_squares import first_factor, pseudo_inverse
from vfl.models import build_bottom
from vfl.models.layers import FullyConnected, fully_connected
from vfl.models.stem import dense_functions
from vfl.observation import Observation, Setting
from vfl.partition import Shape
from vfl.seeds import generator

SKETCH = 32
"""Directions of a weight gradient that are kept: a sample's is h v^T, of rank one, so a few random ones tell h."""


HIDDEN = Lack(
    "rounds that are divided by a number it knows",
    "under training.class_weights a batch's loss is divided by the weights of its own labels",
)


@attacks.register("least_squares")
class LeastSquares(AttackPlugin):
    """Jin et al. 2021 (CAFE), steps I and II in closed form: the input of each worker's first fully connected layer."""

    losses, weighs = EVERY_LOSS, True
    needs_known: ClassVar[frozenset[str]] = frozenset({"indices", "batch_size"})

    def start(self, setting: Setting) -> Attack:
        """Begin, unless the schedule cannot determine the samples."""
        if not setting.frozen:
            raise RefusalError("least_squares", FROZEN)
        lack = undetermined(setting)
        if lack:
            raise RefusalError("least_squares", lack)
        refuse_unsteady(setting, "least_squares")
        return _LeastSquares(setting, first_layers(setting, "least_squares"))


class _LeastSquares:
    def __init__(self, setting: Setting, layers: list[FullyConnected]) -> None:
        self._setting, self._layers = setting, layers
        self._batches: list[Tensor] = []
        self._bias: list[list[Tensor]] = [[] for _ in layers]
        self._weight: list[list[Tensor]] = [[] for _ in layers]
        self._sketches = [sketch_of(setting.seed, worker, layer.outputs) for worker, layer in enumerate(layers)]

    def observe(self, observation: Observation) -> None:
        """Keep the batch, and of each worker's first layer the bias gradient and a sketch of the weight gradient."""
        self._batches.append(observation.indices)
        for worker, layer in enumerate(self._layers):
            gradients = observation.gradients.bottoms[worker]
            self._bias[worker].append(gradients[f"{layer.name}.bias"].double())
            self._weight[worker].append(self._sketches[worker] @ gradients[f"{layer.name}.weight"].double())

    def recover(self, progress: Progress) -> Recovery:
        """Solve for every sample at every worker."""
        inverse, rank = pseudo_inverse(self._batches, self._setting.samples)
        if rank < self._setting.samples:
            raise UserError(
                f"attack least_squares: the {len(self._batches)} rounds determine {rank} of "
                f"{self._setting.samples} samples; more rounds are needed"
            )
        found = []
        for worker, sketch in enumerate(self._sketches):
            v = inverse @ torch.stack(self._bias[worker])
            leaked = leaks(inverse, torch.stack(self._bias[worker]), v)
            h = representations(inverse, v, sketch, torch.stack(self._weight[worker]))
            h[~leaked] = torch.nan
            found.append(h.float())
            progress("least squares", worker + 1, self._setting.workers)
        sees_data = all(layer.sees_data for layer in self._layers)
        boxes = self._setting.boxes
        slices = tuple(h.reshape(-1, *box.shape) for h, box in zip(found, boxes, strict=True)) if sees_data else None
        return Recovery(slices=slices, representations=tuple(found), layers=tuple(layer.name for layer in self._layers))


def representations(inverse: Tensor, v: Tensor, sketch: Tensor, weight: Tensor) -> Tensor:
    """Return h_n from the rounds' sketched weight gradients; it means nothing where v_n is zero.

    Sketched, a sample's gradient is (R v_n) h_n^T; dividing by R v_n in the least-squares sense leaves h_n.
    """
    return first_factor(torch.einsum("nt,tqd->nqd", inverse, weight), v @ sketch.T)


def leaks(inverse: Tensor, bias: Tensor, v: Tensor) -> Tensor:
    """Tell which samples leak: their v_n is more than what the rounding of the rounds' float32 gradients adds up to."""
    rounding = torch.finfo(torch.float32).eps * (inverse.square() @ bias.square().sum(1)).sqrt()
    leaked: Tensor = v.norm(dim=1) > 32 * rounding
    return leaked


def undetermined(setting: Setting) -> Lack | None:
    """Return what the planned batches lack to determine every sample; None when they can."""
    n, k = setting.samples, setting.batch_size
    if setting.loss.hides_divisor:
        return HIDDEN
    if k >= n > 1:
        return Lack("batches that differ", f"here every batch holds all {n} samples, so nothing tells them apart")
    if setting.schedule == "uniform":
        enough = setting.rounds >= n
        return None if enough else Lack(f"at least {n} rounds for {n} samples", f"the run has {setting.rounds}")
    batches = math.ceil(n / k)
    epochs = setting.rounds / batches
    # The batches of an epoch all sum to the same, so each epoch after the first adds one less than its batches.
    needed = 1 if batches >= n else math.ceil((n - 1) / (batches - 1))
    if epochs >= needed:
        return None
    return Lack(
        f"{needed} epochs ({needed * batches} rounds) for {n} samples in batches of {k}, better a tenth more",
        f"the run has {epochs:g} (federation.epochs)",
    )


def first_layers(setting: Setting, attack: str) -> list[FullyConnected]:
    """Return every worker's first fully connected layer, or say at which worker the attack finds none."""
    found = []
    for worker, box in enumerate(setting.boxes):
        bottom = build_bottom(setting.model, box.shape, setting.seed, worker)
        layers = fully_connected(bottom, box.shape)
        if not layers or not layers[0].bias:
            what = "fully connected layer with a bias" if layers else "fully connected layer"
            begins = f"that of worker {worker} begins with no {what}{written_otherwise(bottom, box.shape)}"
            raise RefusalError(attack, Lack("models that begin with a fully connected layer with a bias", begins))
        found.append(layers[0])
    return found


def written_otherwise(bottom: nn.Module, shape: Shape) -> str:
    """Return the end of a sentence on a model without layers to attack: what of it is one, but not written as such."""
    found = dense_functions(bottom, None, shape)
    return f" ({', '.join(found)} would be one if it were written as nn.Linear)" if found else ""


def sketch_of(seed: int, worker: int, outputs: int) -> Tensor:
    """Return the fixed random vectors (few, outputs) that a weight gradient is multiplied with as it arrives."""
    if outputs <= SKETCH:
        return torch.eye(outputs, dtype=torch.float64)
    return torch.randn(SKETCH, outputs, generator=generator(seed, "sketch", worker), dtype=torch.float64)
