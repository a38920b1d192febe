"""What there is to say of a recovery: what was parted, what is to be trusted, and where a model stops the attack."""

import math
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from attacker.exact.certificate import UNSURE
from attacker.exact.choice import Choice
from attacker.exact.step_three import Inverted
from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.solve import Solved
from vfl.models.layers import FullyConnected
from vfl.models.stem import dense_functions, stem
from vfl.observation import Setting
from vfl.partition import Shape

NOT_RECOVERED = "their gradients are zero, or these rounds do not tell them from other samples'; more rounds may"
ALTERED = 1e-3
"""A median certificate above this is not rounding: a worker changed its gradients."""


def notes_on_gradients(cells: Sequence[Cell], certificates: Tensor, noisy: bool, solved: Sequence[Solved]) -> list[str]:
    """Return sentences on steps I and II."""
    notes = []
    several = [cell for cell in cells if len(cell.samples) > 1]
    if several:
        count = sum(len(cell.samples) for cell in several)
        notes.append(f"{count} samples always come in the same batches as another: which is which is not known.")
    lost = certificates.isnan()
    if bool(lost.any()):
        notes.append(f"{int(lost.sum())} of {lost.numel()} slices were not recovered: {NOT_RECOVERED}.")
    alone = certificates[[cell.samples[0] for cell in cells if len(cell.samples) == 1]]
    if noisy or bool(alone.nanmedian() > ALTERED):
        notes.append("The gradients look altered: their residuals are far above rounding (a defence?).")
    wrong = int((certificates > UNSURE).sum())
    if wrong:
        notes.append(f"{wrong} slices have a certificate above {UNSURE:g} and are not to be trusted.")
    alike = sum(int((own.h.isfinite().all(1) & own.v.isnan().any(1)).sum()) for own in solved)
    if alike:
        notes.append(
            f"{alike} slices look like another sample's and no batch parts them: their certificates show that "
            f"such a slice is in their batches, not that it is theirs."
        )
    return notes


def notes_on_rounds(choice: Choice, certificates: Tensor, noisy: bool) -> list[str]:
    """Return what more rounds would tell, where these left most slices open."""
    lost = certificates.isnan()
    return [choice.hint] if choice.hint and not noisy and 2 * int(lost.sum()) >= lost.numel() else []


def notes_on_models(
    setting: Setting, choice: Choice, bottoms: Sequence[nn.Module], *, certificates: Tensor, inverted: Inverted | None
) -> list[str]:
    """Return sentences on what the workers' models keep from the attack, the same one once for all it is true of."""
    found: dict[str, list[int]] = {}
    missed: dict[str, int] = {}
    for worker, (layer, box, model) in enumerate(zip(choice.layers, setting.boxes, bottoms, strict=True)):
        for sentence in _kept_back(layer, box.shape, model):
            found.setdefault(sentence, []).append(worker)
        sure = certificates[:, worker] <= UNSURE
        count = 0 if inverted is None else int((inverted.missed[:, worker] & sure).sum())
        if count:
            before = ", ".join(stem(model, layer.name, box.shape)) or f"what comes before {layer.name}"
            missed[before] = missed.get(before, 0) + count
    notes = [f"At {_named(workers, setting.workers)} {sentence}." for sentence, workers in found.items()]
    return notes + [
        f"Step III found no data that explains the recovered representations of {count} "
        f"slice{'s' if count > 1 else ''}, back through {before}: the representations stand, these data do not."
        for before, count in missed.items()
    ]


def _kept_back(layer: FullyConnected, shape: Shape, model: nn.Module) -> Iterator[str]:
    """Yield what one worker's model keeps from the attack on one of its layers."""
    if not layer.bias:
        yield (
            f"no fully connected layer has a bias, so what flows into {layer.name} is known up to its length, and "
            f"labels are not read"
        )
    if layer.inputs < math.prod(shape):
        yield (
            f"{layer.name} takes {layer.inputs} numbers of a slice of {math.prod(shape)}: different data look the same "
            f"to it, and only its inputs are recovered for certain"
        )
    hidden = dense_functions(model, layer.name, shape)
    if hidden:
        yield (
            f"data are multiplied with {', '.join(hidden)} before {layer.name} is met, by a function and not an "
            f"nn.Linear: the gradients of such a layer, which may tell more, are not read; write it as one"
        )
    first = () if layer.sees_data else stem(model, layer.name, shape)[:1]
    if first in (("ReLU",), ("clamping",)):
        yield (
            f"the data meet {first[0]} before anything else: the values that it cuts off are in no gradient, and "
            f"those shown in their place are arbitrary"
        )


def _named(workers: Sequence[int], of: int) -> str:
    if len(workers) == of:
        return "every worker" if of > 1 else "the worker"
    return ("worker " if len(workers) == 1 else "workers ") + ", ".join(map(str, workers))
