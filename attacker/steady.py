"""What in a model makes a sample's gradient depend on more than the sample: attacks over several rounds refuse it."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from attacker.refusal import Lack, RefusalError
from vfl.models.layers import evaluating, representation
from vfl.models.whole import first_model
from vfl.observation import Setting
from vfl.partition import Shape

CHANCE = {nn.modules.dropout._DropoutNd: "p", nn.MultiheadAttention: "dropout", nn.RNNBase: "dropout"}
"""Modules that leave things out by chance, and where each says how often."""
HALF, TIMES = 8, 4
"""Half of the samples, and how often all are run through, to see what becomes of them."""
ROWS = torch.arange(2 * HALF)
DIFFERENT = 1e-3
"""More than rounding, relative to the largest number."""

NORM = "batch norm in training mode"
ALONE = "gradients of a sample that do not depend on its batch"
ALWAYS = "gradients of a sample that are the same each time"

AUGMENTED = Lack(ALWAYS, "workers change their slices at random in every round (training.augment)")

Run = Callable[[nn.Module, Tensor], Tensor]
"""Sends some samples, by their numbers, through a model."""


def unsteady(setting: Setting) -> list[Lack]:
    """Return what the bottom models and the top model have of that, each thing once."""
    return [*batchwise(setting), *by_chance(setting)]


def refuse_unsteady(setting: Setting, attack: str) -> None:
    """Raise RefusalError with everything that makes gradients differ from round to round."""
    lacks = unsteady(setting)
    if lacks:
        raise RefusalError(attack, *lacks)


def batchwise(setting: Setting) -> list[Lack]:
    """Return what makes a sample's gradient depend on its batch, or on the rounds before."""
    whole = first_model(setting)
    named = _once(_norms(whole.bottoms, "the model"), _norms(whole.top, "the top model"))
    if named or not mixes(whole, _through(setting)):
        return named
    return [Lack(ALONE, "what the model makes of a sample depends on its batch")]


def by_chance(setting: Setting) -> list[Lack]:
    """Return what makes a sample's gradient differ each time."""
    if setting.augmented:
        return [AUGMENTED]
    whole = first_model(setting)
    named = _once(dropout(whole.bottoms, "the model"), dropout(whole.top, "the top model"))
    if named or not _varies(whole, _through(setting)):
        return named
    return [Lack(ALWAYS, "what the model makes of a sample differs each time (dropout, noise?)")]


def steady_input(model: nn.Module, layer: str, shape: Shape) -> bool:
    """Tell whether what flows into a layer is the same each time, whatever happens after it."""
    probes = _probes(shape)
    return not _varies(model, lambda model, rows: representation(model, layer, probes[rows]))


def zeros_before(model: nn.Module, layer: str, shape: Shape) -> float:
    """Return how many zeros a ReLU leaves in what flows into a layer, on average; none if there are negative values."""
    with evaluating(model), torch.no_grad():
        h = representation(model, layer, 2 * _probes(shape) - 0.5)
    return float((h == 0).sum(dim=1).float().mean()) if bool((h >= 0).all()) else 0.0


def dropout(model: nn.Module, what: str) -> list[Lack]:
    """Return what is lacking for each module that leaves things out by chance."""
    return [
        Lack(ALWAYS, f"{what} has dropout")
        for module in model.modules()
        if module.training and any(isinstance(module, kind) and getattr(module, key) for kind, key in CHANCE.items())
    ]


def _norms(model: nn.Module, what: str) -> list[Lack]:
    lacks = []
    for module in model.modules():
        if not module.training:
            continue
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            lacks.append(Lack(ALONE, f"{what} has {NORM}"))
        if _spectral(module):
            lacks.append(
                Lack(ALWAYS, f"{what} has spectral norm in training mode, whose estimate moves in every round")
            )
    return lacks


def _spectral(module: nn.Module) -> bool:
    old = any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values())
    return old or isinstance(module, _SpectralNorm)


def _once(*found: list[Lack]) -> list[Lack]:
    return list(dict.fromkeys(lack for some in found for lack in some))


def _through(setting: Setting) -> Run:
    """Return how samples go through the whole model of a run."""
    slices = [_probes(box.shape) for box in setting.boxes]
    return lambda model, rows: model([part[rows] for part in slices])


def _varies(model: nn.Module, run: Run) -> bool:
    """Tell whether a model, however it is written, makes something else of the same batch when it meets it again."""
    first, *others = _runs(model, run, [ROWS] * TIMES, alike=False)
    return any(_far(first, other) for other in others)


def mixes(model: nn.Module, run: Run) -> bool:
    """Tell whether a model makes something else of samples in other company, chance being the same."""
    others = torch.cat([ROWS[:HALF], ROWS[:HALF].flip(0)])
    first, again, elsewhere = _runs(model, run, [ROWS, ROWS, others], alike=True)
    return _far(first, elsewhere) and not _far(first, again)


def _runs(model: nn.Module, run: Run, batches: Sequence[Tensor], alike: bool) -> list[Tensor]:
    """Return what a copy, in the mode that it trains in, makes of the first half of the samples in each batch."""
    model = copy.deepcopy(model)
    found = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for number, batch in enumerate(batches):
            torch.manual_seed(0 if alike else number)
            try:
                found.append(run(model, batch)[:HALF])
            except Exception:  # the worker that trains it will say what is wrong
                found.append(torch.zeros(()))
    return found


def _far(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() > DIFFERENT * one.abs().max())


def _probes(shape: Sequence[int]) -> Tensor:
    """Return samples like those of any data."""
    return torch.rand(len(ROWS), *shape, generator=torch.Generator().manual_seed(0))
