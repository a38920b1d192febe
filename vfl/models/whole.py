"""The whole model in one place, as plain PyTorch: every worker's bottom model and the top model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vfl.errors import UserError
from vfl.models import build_bottom, build_top, is_shared, output_width
from vfl.observation import ModelTensors, Setting
from vfl.partition import Shape
from vfl.registry import PluginSection


class WholeModel(nn.Module):
    """All parties' models: `bottoms` maps each worker's slice to a vector, `top` the vectors to the logits."""

    def __init__(self, bottoms: Sequence[nn.Module], top: nn.Module, widths: Sequence[int]) -> None:
        super().__init__()
        self.bottoms = nn.ModuleList(bottoms)
        self.top = top
        self.widths = list(widths)

    def forward(self, slices: Sequence[Tensor]) -> Tensor:
        """Return the logits of a batch, given each worker's slice of it."""
        outputs = [bottom(part) for bottom, part in zip(self.bottoms, slices, strict=True)]
        logits: Tensor = self.top(torch.cat(outputs, dim=1))
        return logits


def whole_model(section: PluginSection, shapes: Sequence[Shape], classes: int, seed: int) -> WholeModel:
    """Build the model that a config's `model` section names for slices of these shapes, initialised from the seed."""
    if is_shared(section):
        other = next((worker for worker, shape in enumerate(shapes) if shape != shapes[0]), None)
        if other is not None:
            held = f"worker 0 holds slices of shape {shapes[0]}, worker {other} of {shapes[other]}"
            only = "only slices of one shape can share a bottom model (federation.slices)"
            raise UserError(f"model.shared: {held}; {only}")
        bottoms = [build_bottom(section, shapes[0], seed, 0)] * len(shapes)
    else:
        bottoms = [build_bottom(section, shape, seed, worker) for worker, shape in enumerate(shapes)]
    widths = [output_width(bottom, shape) for bottom, shape in zip(bottoms, shapes, strict=True)]
    whole = WholeModel(bottoms, build_top(section, widths, classes, seed), widths)
    if next(whole.parameters(), None) is None:
        raise UserError(f"model {section.name}: no part of it has parameters that are trained; use another model")
    return whole


def first_model(setting: Setting) -> WholeModel:
    """Build the model of a run as it is before the first round."""
    return whole_model(setting.model, [box.shape for box in setting.boxes], setting.outputs, setting.seed)


def known_model(setting: Setting, parameters: ModelTensors) -> WholeModel:
    """Build the model of a run with the parameters of a round, which the coordinator knows."""
    model = first_model(setting)
    model.load_state_dict(state_dict(parameters), strict=False)
    return model


def state_dict(tensors: ModelTensors) -> dict[str, Tensor]:
    """Return parameters under the names that `WholeModel.load_state_dict` knows them by."""
    named = {f"top.{name}": tensor for name, tensor in tensors.top.items()}
    for worker, bottom in enumerate(tensors.bottoms):
        named |= {f"bottoms.{worker}.{name}": tensor for name, tensor in bottom.items()}
    return named
