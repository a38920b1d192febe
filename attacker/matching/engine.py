"""The federation's whole model at the coordinator: the gradients that guessed data would have uploaded, differentiable.

All workers and the top model are one graph, so that a step of any attack is one backward for the gradients and one
more through them, whatever the number of workers or tensors. `guess` is for a batch that uploaded its mean gradient;
`guess_each` for many samples that uploaded a gradient each, from the same parameters, in one pass over all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from attacker.matching.second_order import Phase, Rules
from vfl.device import moved, resolve_device
from vfl.models.batch_norm import FixedBatchNorm
from vfl.models.layers import fully_connected, given
from vfl.models.whole import first_model
from vfl.observation import ModelTensors, Setting


@dataclass(frozen=True)
class Guess:
    """What guessed data brings about."""

    loss: Tensor
    gradients: tuple[Tensor, ...]
    """Of every parameter in the order of `Engine.names`; they can be differentiated through, once, to the data.
    From `guess_each` they have a leading axis, a row for each sample."""
    representations: tuple[Tensor, ...]
    """For each worker the input of its first fully connected layer, of those that have one."""
    logits: Tensor
    """What the top model says of each sample."""
    normed: tuple[Tensor, ...] = ()
    """The inputs of the batch-norm layers in the order of `Engine.norms`."""


class Engine:
    """Runs guessed data through the models whose parameters the coordinator knows."""

    def __init__(self, setting: Setting) -> None:
        self.device = torch.device(resolve_device(setting.device))
        model = first_model(setting)
        self._bottoms, self._top = list(model.bottoms), model.top
        first = [
            next(iter(fully_connected(bottom, box.shape)), None)
            for bottom, box in zip(self._bottoms, setting.boxes, strict=True)
        ]
        self.layers = tuple(layer.name if layer else None for layer in first)
        """For each worker its first fully connected layer, None where it has none."""
        last = fully_connected(self._top, (sum(model.widths),))
        self.last_layer = last[-1].name if last else None
        """The top model's last fully connected layer, None where it has none."""
        self.top = len(self._bottoms)
        """The top model's number in `names`, also where it has no parameters."""
        modules = enumerate([*self._bottoms, self._top])
        self.names = tuple((worker, name) for worker, module in modules for name, _ in module.named_parameters())
        """(worker, parameter) of each gradient; the top model comes last, as worker number `workers`."""
        self.norms = tuple(
            module for bottom in self._bottoms for module in bottom.modules() if isinstance(module, FixedBatchNorm)
        )
        """The batch-norm layers whose statistics are constants of the model, worker after worker."""
        model.to(self.device)  # after its layers were looked at, which compares numbers
        self._shapes = [box.shape for box in setting.boxes]
        self._at_once: bool | None = None

    def flat(self, tensors: ModelTensors) -> tuple[Tensor, ...]:
        """Return one tensor per parameter in the order of `names`, on the engine's device."""
        parts = [*tensors.bottoms, tensors.top]
        return tuple(moved(parts[worker][name], self.device) for worker, name in self.names)

    def guess(self, parameters: Sequence[Tensor], slices: Sequence[Tensor], targets: Tensor) -> Guess:
        """Return what these slices (one tensor per worker) and targets (rows of class probabilities) bring about."""
        return self._guess([tensor.detach().requires_grad_() for tensor in parameters], slices, targets, each=False)

    def guess_each(self, parameters: Sequence[Tensor], slices: Sequence[Tensor], targets: Tensor) -> Guess:
        """Return the same for every sample as a batch of its own; the loss is then the sum of theirs."""
        if not self._all_at_once():
            return self._one_by_one(parameters, slices, targets)
        return self._each(parameters, slices, targets)

    def _each(self, parameters: Sequence[Tensor], slices: Sequence[Tensor], targets: Tensor) -> Guess:
        count = len(targets)
        leaves = [tensor.detach().expand(count, *tensor.shape).requires_grad_() for tensor in parameters]
        return self._guess(leaves, slices, targets, each=True)

    def _guess(self, leaves: list[Tensor], slices: Sequence[Tensor], targets: Tensor, each: bool) -> Guess:
        own: list[dict[str, Tensor]] = [{} for _ in range(len(self._bottoms) + 1)]
        for (worker, name), leaf in zip(self.names, leaves, strict=True):
            own[worker][name] = leaf
        phase = Phase()
        # A fresh view of each: the rules tell the data, whose gradient the first pass does not need, by identity
        slices = [x.view_as(x) for x in slices]
        caught: list[Tensor] = []
        normed: list[Tensor] = []
        with Rules(phase, slices, each):
            z = []
            for worker, (bottom, x) in enumerate(zip(self._bottoms, slices, strict=True)):
                with _catching(bottom, self.layers[worker], caught, normed):
                    z.append(_call(bottom, own[worker], x))
            logits = _call(self._top, own[-1], torch.cat(z, dim=1))
        loss = cross_entropy(logits, targets, reduction="sum" if each else "mean")
        gradients = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
        phase.first = False
        return Guess(loss, gradients, tuple(caught), logits, tuple(normed))

    def _all_at_once(self) -> bool:
        """Tell whether the model's layers can give each sample's gradient in one pass: tried on two samples."""
        if self._at_once is None:
            random = torch.Generator().manual_seed(0)
            slices = [torch.rand(2, *shape, generator=random).to(self.device) for shape in self._shapes]
            outputs = self._top(torch.cat([b(x) for b, x in zip(self._bottoms, slices, strict=True)], 1)).shape[1]
            targets = torch.rand(2, outputs, generator=random).softmax(1).to(self.device)
            parameters = [p.detach() for module in [*self._bottoms, self._top] for p in module.parameters()]
            expected = self._one_by_one(parameters, slices, targets).gradients
            try:
                found = self._each(parameters, slices, targets).gradients
            except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError):
                self._at_once = False
            else:
                pairs = zip(found, expected, strict=True)
                self._at_once = all(bool((a - b).norm() <= 1e-3 * b.norm() + 1e-12) for a, b in pairs)
        return self._at_once

    def _one_by_one(self, parameters: Sequence[Tensor], slices: Sequence[Tensor], targets: Tensor) -> Guess:
        guesses = [
            self.guess(parameters, [x[n : n + 1] for x in slices], targets[n : n + 1]) for n in range(len(targets))
        ]
        return Guess(
            torch.stack([guess.loss for guess in guesses]).sum(),
            tuple(torch.stack(rows) for rows in zip(*(guess.gradients for guess in guesses), strict=True)),
            tuple(torch.cat(rows) for rows in zip(*(guess.representations for guess in guesses), strict=True)),
            torch.cat([guess.logits for guess in guesses]),
            tuple(torch.cat(rows) for rows in zip(*(guess.normed for guess in guesses), strict=True)),
        )


def _call(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    output: Tensor = functional_call(module, dict(parameters), (x,))
    return output


@contextmanager
def _catching(model: nn.Module, layer: str | None, caught: list[Tensor], normed: list[Tensor]) -> Iterator[None]:
    """Note what flows into a layer, and into the batch-norm layers, while the block runs."""
    places = [] if layer is None else [(model.get_submodule(layer), caught)]
    places += [(module, normed) for module in model.modules() if isinstance(module, FixedBatchNorm)]
    handles = [
        module.register_forward_pre_hook(
            lambda _, inputs, named, values=values: values.append(given(inputs, named)), with_kwargs=True
        )
        for module, values in places
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
