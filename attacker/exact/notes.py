"""What there is to say of a recovery: what was parted, what is to be trusted, and where a model stops the attack."""

import math
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from attacker.certificate import Evidence
from attacker.exact.choice import Choice
from attacker.exact.collect import Rounds
from attacker.exact.step_three import Inverted
from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.residual import UNSURE
from attacker.exact.steps12.solve import Solved
from vfl.models.layers import FullyConnected
from vfl.models.stem import dense_functions, stem
from vfl.observation import Setting
from vfl.partition import Shape
from vfl.recovery import CERTIFIED

NOT_RECOVERED = "their gradients are zero, or these rounds do not tell them from other samples'; more rounds may"
ALTERED = "The gradients look altered (a defence?): what was found leaves more of them unexplained than rounding would."
FAR = 1e-3
"""A median residual above this is not rounding: a worker changed its gradients."""


def notes_on_gradients(cells: Sequence[Cell], residuals: Tensor, rounds: Rounds, solved: Sequence[Solved]) -> list[str]:
    """Return sentences on steps I and II."""
    notes = []
    several = [cell for cell in cells if len(cell.samples) > 1]
    if several:
        count = sum(len(cell.samples) for cell in several)
        together = f"{count} samples always come in the same batches as another"
        notes.append(f"{together}: of those that were recovered it is not known which is which.")
    lost = residuals.isnan()
    if bool(lost.any()):
        hidden = int(rounds.hidden(lost).sum())
        why = {
            "because these rounds do not tell them from other samples' (more rounds may)": hidden,
            "because the gradients of a batch of theirs show nothing but the others": int(lost.sum()) - hidden,
        }
        because = " and ".join(f"{count} {reason}" for reason, count in why.items() if count)
        notes.append(f"{int(lost.sum())} of {lost.numel()} slices were not recovered: {because}.")
    alone = residuals[[cell.samples[0] for cell in cells if len(cell.samples) == 1]]
    if rounds.noisy or bool(alone.nanmedian() > FAR):
        notes.append(ALTERED)
    alike = sum(int((own.h.isfinite().all(1) & own.v.isnan().any(1)).sum()) for own in solved)
    if alike:
        notes.append(f"{alike} slices look like another sample's that always comes with it: which is which is open.")
    return notes


def notes_on_certificates(certificates: Tensor | None, evidence: Evidence) -> list[str]:
    """Return what keeps samples from being certified, and of how many rounds that was asked."""
    if certificates is None:
        return []
    wrong, unknown = certificates >= CERTIFIED, certificates.isnan()
    notes = list(evidence.notes)
    count = int(wrong.any(dim=1).sum())
    if count:
        doubt = "they do not explain all gradients that they are in, or other values would explain those as well"
        notes.append(f"Do not trust {count} of {len(wrong)} samples: {doubt}.")
    rest = int((unknown.any(dim=1) & ~wrong.any(dim=1)).sum())
    if rest:
        notes.append(f"For {rest} of {len(wrong)} samples the gradients do not say whether what was found is right.")
    return notes


def notes_on_rounds(choice: Choice, residuals: Tensor, noisy: bool) -> list[str]:
    """Return what more rounds would tell, where these left most slices open."""
    lost = residuals.isnan()
    return [choice.hint] if choice.hint and not noisy and 2 * int(lost.sum()) >= lost.numel() else []


def notes_on_models(
    setting: Setting, choice: Choice, bottoms: Sequence[nn.Module], *, residuals: Tensor, inverted: Inverted | None
) -> list[str]:
    """Return sentences on what the workers' models keep from the attack, the same one once for all it is true of."""
    found: dict[str, list[int]] = {}
    missed: dict[str, int] = {}
    for worker, (layer, box, model) in enumerate(zip(choice.layers, setting.boxes, bottoms, strict=True)):
        for sentence in _kept_back(layer, box.shape, model):
            found.setdefault(sentence, []).append(worker)
        sure = residuals[:, worker] <= UNSURE
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
