"""A model as somebody wrote it, made ready: lazy layers get their sizes, and what is not trained becomes a constant."""

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from vfl.errors import CafeError, UserError
from vfl.models.modes import evaluating


def prepare(name: str, model: nn.Module, x: Tensor, on: str) -> None:
    """Make a new model ready, given a blank input; what it draws for lazy layers comes from torch's generator."""
    if _lazy(model):
        run_blank(name, model, x, on)
    left = _lazy(model)
    if left:
        raise UserError(f"model {name}: the lazy layer of {left[0]} is not used by forward, so nothing tells its size")
    _constants(model)


def run_blank(name: str, model: nn.Module, x: Tensor, on: str) -> object:
    """Return what a model makes of a blank input, or say that it cannot run on that."""
    try:
        with torch.no_grad(), evaluating(model):
            return model(x)
    except CafeError:
        raise
    except (Exception, SystemExit) as error:  # whatever somebody's model does
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"model {name} cannot run on {on}: {told}") from None


def _lazy(model: nn.Module) -> list[str]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in tensors if is_lazy(tensor)]


def _constants(model: nn.Module) -> None:
    """Turn parameters without a gradient into constants that every party builds: they are neither sent nor moved."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del module._parameters[name]
                module.register_buffer(name, parameter.detach(), persistent=False)
