"""Labels from the last layer's gradient: iDLG's rule for one sample, counts for a batch.

At the last layer the bias's gradient is the mean of softmax minus label over the batch. For one sample its only
negative entry is the label, whatever the data (Zhao et al. 2020). For a batch it gives how often each class occurs, up
to the mean softmax, which is taken from the first guess (in the spirit of LLG, Wainakh et al. 2021): good while the
model is not yet sure of its data, a rough estimate afterwards. Which sample has which label it does not tell. Without
a bias the weight's rows stand in: (softmax - label) times the layer's input, mostly positive behind ReLU or sigmoid.
"""

import torch
from torch import Tensor

from attacker.matching.engine import Engine
from attacker.refusal import Lack, RefusalError


def check(engine: Engine, attack: str) -> None:
    """Refuse a top model that ends in no fully connected layer."""
    if engine.last_layer is None:
        found = "it has none (attack.labels optimised does without)"
        raise RefusalError(attack, Lack("a fully connected layer in the top model, to read labels from", found))


def one_label_each(engine: Engine, gradients: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """Return the label of each problem of one sample from its gradients (P, *shape); -1 where they are all zero."""
    bias = _last(engine, gradients, "bias")
    if bias is None:
        weight = _last(engine, gradients, "weight")
        assert weight is not None
        # Row c is (softmax - label)_c times the input: only the label's points against the sum of the others
        bias = torch.einsum("pci,pi->pc", weight, weight.sum(1)) - weight.square().sum(2)
    label = bias.argmin(1)
    return torch.where(bias.abs().amax(1) > 0, label, torch.full_like(label, -1))


def batch_labels(engine: Engine, gradients: tuple[Tensor, ...], predicted: Tensor) -> Tensor:
    """Return as many labels as `predicted` (samples, classes) has rows, in ascending order; -1 if nothing leaks."""
    count, classes = predicted.shape
    bias = _last(engine, gradients, "bias")
    if bias is None:
        weight = _last(engine, gradients, "weight")
        assert weight is not None
        rows = weight.sum(1)
        share = (-rows).clamp(min=0) / (-rows).clamp(min=0).sum().clamp(min=1e-30)
        leaked = bool(rows.abs().amax() > 0)
    else:
        share = (predicted.mean(0) - bias).clamp(min=0)
        leaked = bool(bias.abs().amax() > 0)
    if not leaked or not float(share.detach().sum()) > 0:  # noise may leave no class that could occur
        return torch.full((count,), -1, device=predicted.device)
    counts = _apportion(share, count)
    return torch.repeat_interleave(torch.arange(classes, device=predicted.device), counts)


def _last(engine: Engine, gradients: list[Tensor] | tuple[Tensor, ...], kind: str) -> Tensor | None:
    top = engine.top
    wanted = f"{engine.last_layer}.{kind}".lstrip(".")  # a top model that is itself the layer has no name for it
    for (worker, name), gradient in zip(engine.names, gradients, strict=True):
        if worker == top and name == wanted:
            return gradient
    return None


def _apportion(share: Tensor, count: int) -> Tensor:
    """Return whole numbers that sum to `count`, in proportion: the largest remainders are rounded up."""
    exact = share.double() / share.double().sum() * count
    whole = exact.floor().long()
    missing = count - int(whole.sum())
    whole[(exact - whole).argsort(descending=True)[:missing]] += 1
    return whole
