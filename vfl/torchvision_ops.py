"""Make `import torchvision` work beside a CPU build of torch.

The wheel of torchvision on the package index is built for CUDA. Beside CPU torch its compiled part does not load, and
the import ends with "operator torchvision::nms does not exist" when it registers shapes for that operator. Data sets
need none of those operators, so declaring the two that the import looks up is enough. Import this module first.
"""

import importlib.util
from pathlib import Path

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _ops_load() -> bool:
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return True
    try:
        for library in Path(found.origin).parent.glob("_C*.so"):
            torch.ops.load_library(str(library))
    except OSError:
        return False
    return hasattr(torch.ops.torchvision, "nms")


library: torch.library.Library | None = None
if not _ops_load():
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + _SIGNATURE)
