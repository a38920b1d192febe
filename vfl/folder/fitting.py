"""Whether a transcript's files fit the run that they say they are of: a checksum keeps out accidents, not lies."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vfl.files.tensor_file import DamagedError
from vfl.limits import plain
from vfl.models.whole import first_model
from vfl.observation import ModelTensors, Setting, Tensors


def model_shapes(setting: Setting) -> ModelTensors:
    """Return tensors with the names, shapes and types of the run's parameters; they need no memory of their own."""
    try:
        with torch.device("meta"):
            model = first_model(setting)
    except Exception:  # a model of somebody's own that computes with its first values; its attack builds it too
        model = first_model(setting)
    bottoms = tuple(dict(bottom.named_parameters()) for bottom in model.bottoms)
    return ModelTensors(bottoms, dict(model.top.named_parameters()))


def check_model(path: Path, found: ModelTensors, like: ModelTensors) -> None:
    """Make sure that parameters are those of the model."""
    for tensors, expected in zip((*found.bottoms, found.top), (*like.bottoms, like.top), strict=True):
        _check_tensors(path, tensors, expected)


def check_gradients(path: Path, flat: Tensors, uploads: Sequence[ModelTensors], parameters: ModelTensors) -> None:
    """Make sure that gradients are of the parameters; who withheld its upload has none, and nobody has others."""
    held = 0
    for upload in uploads:
        for tensors, expected in zip((*upload.bottoms, upload.top), (*parameters.bottoms, parameters.top), strict=True):
            if tensors:
                _check_tensors(path, tensors, expected)
            held += len(tensors)
    if held != len(flat):
        raise DamagedError(f"{path} holds {len(flat)} tensors, of which {held} are gradients of this run's model")


def check_indices(path: Path, indices: Tensor, setting: Setting) -> None:
    """Make sure that a round's samples are some of the run's, each once."""
    whole = indices.dtype == torch.int64 and indices.dim() == 1 and 0 < len(indices) <= setting.samples
    if not whole or not 0 <= int(indices.min()) <= int(indices.max()) < setting.samples:
        raise DamagedError(
            f"{path} holds {_described(indices)} as the round's samples, expected numbers "
            f"(int64) below {setting.samples}"
        )
    if len(indices.unique()) != len(indices):
        raise DamagedError(f"{path} names a sample twice in one round")


def _check_tensors(path: Path, found: Tensors, expected: Tensors) -> None:
    for name in {**expected, **found}:
        here, there = (_described(side.get(name)) for side in (found, expected))
        if here != there:
            raise DamagedError(f"{path} has for {plain(name)} {here}, the run's model {there}: is it of another run?")
        if not bool(torch.isfinite(found[name].sum())) and not bool(torch.isfinite(found[name]).all()):
            raise DamagedError(f"{path} has values of {plain(name)} that are not finite")


def _described(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else plain(f"{tensor.dtype} of shape {tuple(tensor.shape)}")
