"""The model's parameters at the coordinator: versions, snapshots, and the optimiser that moves them."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property

import torch
from torch import Tensor, nn

from vfl.errors import RunFailedError, UserError
from vfl.models.whole import first_model, state_dict
from vfl.observation import BOTTOM, TOP, ModelTensors, Setting, Tensors, with_prefix, without_prefix
from vfl.optimisers import optimisers
from vfl.optimisers.training import TrainingConfig

_MODEL, _OPTIMIZER = "model.", "optimizer."
"""How parameters and what the optimiser remembers of them are told apart in a checkpoint."""


class Parameters:
    """All parties' parameters. `version` goes up whenever they change."""

    def __init__(self, setting: Setting, training: TrainingConfig) -> None:
        whole = first_model(setting)
        self.output_widths = whole.widths
        self._setting, self._training, self._plugin = setting, training, training.build_optimiser()
        self._bottoms = [dict(bottom.named_parameters()) for bottom in whole.bottoms]
        self._top = dict(whole.top.named_parameters())
        self._named = dict(whole.named_parameters(remove_duplicate=False))  # shared ones under every worker's name
        self._parameters = list(whole.parameters())
        self.version = 1
        self.current = self._snapshot()

    def expected_from(self, party: int) -> Tensors:
        """Return what a party receives and what it uploads: a bottom model if it has features, the top with labels."""
        topology, tensors = self._setting.topology, dict[str, Tensor]()
        if topology.holds_features(party):
            tensors |= with_prefix(BOTTOM, self.current.bottoms[topology.bottom_of(party)])
        if topology.holds_labels(party):
            tensors |= with_prefix(TOP, self.current.top)
        return tensors

    @cached_property
    def _optimizer(self) -> torch.optim.Optimizer:
        """Made when it is needed: torch imports its compiler for the first one, which takes a second or two."""
        with self._guard("start"):
            made = self._plugin.start(self._parameters, self._training.lr)
            if not isinstance(made, torch.optim.Optimizer):
                raise TypeError(f"it returned {type(made).__name__}, not a torch.optim.Optimizer")
            return made

    def rate(self, number: int) -> float:
        """Return the learning rate of a round."""
        return self._training.learning_rate(number, self._setting.rounds, self._setting.rounds_per_epoch)

    def update(self, number: int, gradients: ModelTensors) -> None:
        """Take a round's optimiser step, none at rate 0; parameters without a gradient stay as they are.

        Where several rounds make a step it is taken after the last of them, by the mean of their gradients.
        """
        rate, share = self.rate(number), self._training.accumulate
        if rate == 0.0:
            return
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if (number - 1) % share == 0:
            self._optimizer.zero_grad()
        for parameters, given in zip([*self._bottoms, self._top], [*gradients.bottoms, gradients.top], strict=True):
            for name, parameter in parameters.items():
                if name in given:  # a shared parameter's gradient is the sum of all workers'
                    own = given[name] / share if share > 1 else given[name]
                    parameter.grad = own if parameter.grad is None else parameter.grad + own
        if number % share:
            return
        self._clip()
        with self._guard("step"):
            self._optimizer.step()
        self.version += 1
        self.current = self._snapshot()

    def pretend(self, tensors: ModelTensors, *, sent: bool) -> None:
        """Let an attack's tensors be the parameters, until `be_true`; if nobody was `sent` the true ones, as those."""
        self.version += sent
        self.current = tensors

    def be_true(self) -> None:
        """Go back to the model's own parameters, which are where they were: to workers they look like a step."""
        self.version += 1
        self.current = self._snapshot()

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters and what the optimiser remembers of each, as they are now."""
        named = with_prefix(_MODEL, state_dict(self.current))
        if "_optimizer" not in self.__dict__:
            return named
        for name, parameter in self._named.items():
            state = self._optimizer.state.get(parameter, {})
            for key, value in state.items():
                if not torch.is_tensor(value) or key not in self._plugin.keeps | self._plugin.counts:
                    raise RunFailedError(
                        f"the optimizer plug-in {self._training.optimizer} remembers {key} of a parameter, which no "
                        f"checkpoint could hold: let it be a tensor, and name it in the plug-in's `keeps` or `counts`"
                    )
            named |= {f"{_OPTIMIZER}{name}.{key}": tensor.clone() for key, tensor in state.items()}
        return named

    def restore(self, version: int, tensors: Tensors) -> None:
        """Go back to what `tensors` returned at a version."""
        model, remembered = without_prefix(_MODEL, tensors), without_prefix(_OPTIMIZER, tensors)
        of = {name: name.rpartition(".")[0] for name in remembered}
        shapes = {name: parameter.shape for name, parameter in self._named.items()}
        fits = {name: tensor.shape for name, tensor in model.items()} == shapes and {*of.values()} <= {*shapes}
        if not fits or not self._could_remember(remembered):
            raise UserError("the checkpoint's parameters do not fit the config's model: is it the same release?")
        with torch.no_grad():
            for name, parameter in self._named.items():
                parameter.copy_(model[name])
        for name, tensor in remembered.items():
            self._optimizer.state[self._named[of[name]]][name.rpartition(".")[2]] = tensor
        self.version, self.current = version, self._snapshot()

    def _could_remember(self, remembered: Tensors) -> bool:
        """Tell whether the optimiser may have kept these tensors: for a parameter all that it keeps of one, or none."""
        kinds: dict[str, set[str]] = {}
        for name, tensor in remembered.items():
            of, _, kind = name.rpartition(".")
            kinds.setdefault(of, set()).add(kind)
            like = torch.empty(()) if kind in self._plugin.counts else self._named[of]
            if tensor.shape != like.shape or tensor.dtype != like.dtype:
                return False
        return all(found == self._plugin.keeps | self._plugin.counts for found in kinds.values())

    def _guard(self, doing: str) -> AbstractContextManager[None]:
        """Say of an error inside an optimiser that is not ours whose it is."""
        return optimisers.guard(self._training.optimizer, self._plugin, doing)

    def _clip(self) -> None:
        if self._training.clip_norm is None:
            return
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()  # observers keep what was uploaded
        nn.utils.clip_grad_norm_(self._parameters, self._training.clip_norm)

    def _snapshot(self) -> ModelTensors:
        return ModelTensors(tuple(_copy(bottom) for bottom in self._bottoms), _copy(self._top))


def gradients_of_round(uploads: Mapping[int, Tensors], workers: int, label_holder: int) -> ModelTensors:
    """Put the uploads of all workers together."""
    bottoms = tuple(without_prefix(BOTTOM, uploads[worker]) for worker in range(workers))
    return ModelTensors(bottoms, without_prefix(TOP, uploads[label_holder]))


def _copy(parameters: Mapping[str, Tensor]) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}
