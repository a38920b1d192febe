"""What in a model makes a sample's gradient depend on more than the sample: attacks over several rounds refuse it."""

from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from vfl.errors import UserError
from vfl.models.whole import first_model
from vfl.observation import Setting

CHANCE = {nn.modules.dropout._DropoutNd: "p", nn.MultiheadAttention: "dropout", nn.RNNBase: "dropout"}
"""Modules that leave things out by chance, and where each says how often."""


def unsteady(setting: Setting) -> list[str]:
    """Return what the bottom models and the top model have of that, each thing once."""
    whole = first_model(setting)
    return list(dict.fromkeys([*depends(whole.bottoms, "the model"), *depends(whole.top, "the top model")]))


def refuse_unsteady(setting: Setting, attack: str) -> None:
    """Raise UserError with everything that makes gradients differ from round to round."""
    problems = unsteady(setting)
    if problems:
        raise UserError(f"attack {attack}: " + "; ".join(problems))


def depends(model: nn.Module, what: str) -> list[str]:
    """Return what in a model makes a sample's gradient depend on its batch, or on chance, or on the rounds before."""
    problems = []
    for module in model.modules():
        if not module.training:
            continue
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            problems.append(
                f"{what} has batch norm in training mode, so a sample's gradient depends on its batch; "
                f"use a model without it or in eval mode"
            )
        if any(isinstance(module, kind) and getattr(module, key) for kind, key in CHANCE.items()):
            problems.append(f"{what} has dropout, so a sample's gradient differs each time; use a model without it")
        if _spectral(module):
            problems.append(
                f"{what} has spectral norm in training mode, whose estimate moves in every round; "
                f"use a model without it or in eval mode"
            )
    return problems


def _spectral(module: nn.Module) -> bool:
    old = any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values())
    return old or isinstance(module, _SpectralNorm)
