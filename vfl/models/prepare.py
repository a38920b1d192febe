"""A model as somebody wrote it, made ready: lazy layers get their sizes, and what is not trained becomes a constant."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin

from vfl.errors import CafeError, UserError
from vfl.models.modes import evaluating


def prepare(name: str, model: nn.Module, x: Tensor) -> None:
    """Make a new model ready, given a blank input; what it draws for lazy layers comes from torch's generator."""
    if _lazy(model):
        run_blank(name, model, x)
    left = _lazy(model)
    if left:
        raise UserError(f"model {name}: the lazy layer of {left[0]} is not used by forward, so nothing tells its size")
    _constants(model)


def run_blank(name: str, model: nn.Module, x: Tensor) -> object:
    """Return what a model makes of a blank input, or say that it cannot run."""
    with cannot_run(name, x), torch.no_grad(), evaluating(model):
        return model(x)


@contextmanager
def cannot_run(name: str, x: Tensor) -> Iterator[None]:
    """Turn whatever a model raises into a sentence with its name."""
    try:
        yield
    except CafeError:
        raise
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        shape = tuple(x.shape[1:])
        raise UserError(f"model {name} cannot run on a slice of shape {shape}: {told}") from None


def _lazy(model: nn.Module) -> list[str]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in tensors if isinstance(tensor, UninitializedTensorMixin)]


def _constants(model: nn.Module) -> None:
    """Turn parameters without a gradient into constants that every party builds: they are neither sent nor moved."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del module._parameters[name]
                module.register_buffer(name, parameter.detach(), persistent=False)
