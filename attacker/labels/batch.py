"""`label_batch`: a worker that gets the gradient of a batch alone takes it apart into the samples' answers."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from attacker.interface import Attack, Lack, Progress, Recovery, RefusalError, Setting, attacks
from attacker.labels.clusters import Clustering, LabelClusters
from vfl.device import one_thread
from vfl.models import build_bottom, output_width
from vfl.observation import WorkerObservation

NAME = "label_batch"
NUMBERS = 20_000_000
"""A batch's Jacobian may have so many: of larger models the parameters nearest to the output are looked at."""
FAINT = 1e-9
"""Directions of answers that the gradient shows this faintly, beside the clearest, are not told from rounding."""
CLEAR = 0.999
"""A sample of whose answer the gradient shows this share, and more, is one that it determines."""


@attacks.register(NAME)
class LabelBatch(LabelClusters):
    """Batch label inference (Zou et al. 2022, arXiv 2112.05409): labels from the gradient of a whole batch.

    Where answers are encrypted a worker learns the sum over the batch of its parameters' gradients, and no answer.
    That sum is linear in the answers, with Jacobians that the worker computes itself: if it has more parameters than
    the batch has numbers to answer, least squares has the answers (where Zou et al. train a model to match the sum),
    and `label_clusters` does the rest.
    """

    known: dict[int, int] = Field({}, description="classes of samples that the worker knows, as {sample: class}")

    def start(self, setting: Setting) -> Attack:
        """Begin, if the model computes each sample by itself."""
        if setting.augmented or setting.local_steps > 1:
            raise RefusalError(NAME, Lack("plain gradients of the slices", "workers augment them, or take steps"))
        clustering = super().start(setting)
        assert isinstance(clustering, Clustering)
        return _TakingApart(setting, clustering)


class _TakingApart:
    def __init__(self, setting: Setting, clustering: Clustering) -> None:
        self._setting, self._clustering = setting, clustering
        worker = setting.seats[0].worker
        assert worker is not None
        self._worker, shape = worker, setting.boxes[worker].shape
        self._bottom = build_bottom(setting.model, shape, setting.seed, worker)
        self._width = output_width(self._bottom, shape)
        self._determined, self._seen = 0, 0

    def observe(self, observation: WorkerObservation) -> None:
        """Put what the batch's gradient says in the place of the answers."""
        rows = observation.indices
        with one_thread():
            jacobian = self._jacobian(observation.parameters, rows)
            gradient = jacobian.t() @ observation.answer.double().flatten()  # the sum, all that such a worker gets
            answers, shown = taken_apart(jacobian, gradient, len(rows))
        self._determined, self._seen = self._determined + int((shown > CLEAR).sum()), self._seen + len(rows)
        self._clustering.observe(replace(observation, answer=answers.float()))

    def recover(self, progress: Progress) -> Recovery:
        """Cluster what was found, as if it had been answered."""
        found = self._clustering.recover(progress)
        note = f"The batches' gradients determine the answers of {self._determined} of {self._seen} samples in them."
        used = tuple("gradients" if one == "answers" else one for one in found.used)
        return replace(found, used=(*used, "parameters", "own slice"), notes=(note, *found.notes))

    def _jacobian(self, parameters: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Return how each output depends on each parameter: (samples x width, parameters)."""
        size = len(rows) * self._width
        chosen: dict[str, Tensor] = {}
        numbers = 0
        for name, one in reversed([*parameters.items()]):
            numbers += size * one.numel()
            if numbers > NUMBERS and chosen:
                break
            chosen[name] = one
        fixed = {name: one for name, one in parameters.items() if name not in chosen}
        x = self._setting.held.slices[self._worker][rows].float()
        return jacobians(self._bottom, chosen, fixed, x).reshape(size, -1)


def jacobians(model: nn.Module, chosen: Mapping[str, Tensor], fixed: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return of each sample how its outputs depend on the chosen parameters: (samples, width, numbers)."""

    def output(own: Mapping[str, Tensor], one: Tensor) -> Tensor:
        made: Tensor = functional_call(model, {**fixed, **own}, (one.unsqueeze(0),))
        return made[0]

    found = vmap(jacrev(output), in_dims=(None, 0))(dict(chosen), x)
    return torch.cat([part.flatten(2) for part in found.values()], dim=2).double()


def taken_apart(jacobian: Tensor, gradient: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Return the shortest answers whose gradient is the one that was seen, and how much of each it shows (0 to 1)."""
    values, vectors = torch.linalg.eigh(jacobian @ jacobian.t())
    there = values > FAINT * values[-1].clamp(min=1e-300)
    vectors, values = vectors[:, there], values[there]
    answers = vectors @ ((vectors.t() @ (jacobian @ gradient)) / values)
    shown = vectors.square().sum(1).reshape(samples, -1)
    needed = (jacobian.reshape(samples, shown.shape[1], -1) != 0).any(2)  # a unit that is off answers nothing
    return answers.reshape(samples, -1), torch.where(needed, shown, 1.0).amin(1)
