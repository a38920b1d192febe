"""The known network: every worker's bottom model and the top model with given parameters."""

from torch import nn

from vfl.models import build_bottom, build_top, output_width
from vfl.observation import ModelTensors, Setting


def models_of(setting: Setting, parameters: ModelTensors) -> tuple[list[nn.Module], nn.Module]:
    """Return the bottom models and the top model."""
    bottoms = [build_bottom(setting.model, box.shape, setting.seed, m) for m, box in enumerate(setting.boxes)]
    widths = [output_width(bottom, box.shape) for bottom, box in zip(bottoms, setting.boxes, strict=True)]
    top = build_top(setting.model, widths, setting.classes, setting.seed)
    for module, tensors in zip([*bottoms, top], [*parameters.bottoms, parameters.top], strict=True):
        module.load_state_dict(dict(tensors), strict=False)
    return bottoms, top
