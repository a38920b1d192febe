"""What the coordinator can have made of a worker's parameters: its first ones, then a step from each upload.

In a vertical federation a bottom model's gradient is one worker's upload and nothing else, so the worker can take the
coordinator's step itself and compare. Where other workers' gradients enter (one model for all, clipping of the whole
model's norm) it cannot; what is left then is the farthest that the optimiser can go in one step.
"""

import hashlib
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from vfl.config import RunConfig
from vfl.models import is_shared
from vfl.observation import Tensors
from vfl.optimisers.replay import AdamReplay, SgdReplay, replay_of
from worker.defences import Plan

ROUNDING = 2e-6
"""How far parameters may differ from what this worker computed, as a share of the largest in their tensor."""
STEP_ROUNDING = 1e-4
"""The same, as a share of the largest step in their tensor."""
SWITCH = "If that is meant, federation.checks in the config here can leave out this check"


class Steps:
    """The parameters that a worker has followed, and whether those that come next can follow from them."""

    def __init__(self, config: RunConfig, plan: Plan, most: int) -> None:
        """Begin before the first parameters; the worker with the most samples has `most`."""
        federation, training = config.federation, config.training
        self._checks, self._training = federation.checks, training
        epoch = -(-most // federation.batch_size)
        self._rates = {n: training.learning_rate(n, plan.rounds, epoch) for n in range(1, plan.rounds + 1)}
        self._moving = [number for number, rate in self._rates.items() if rate and number % training.accumulate == 0]
        """The rounds after which parameters change: the first of them makes version 2."""
        alone = not config.topology.is_horizontal and not is_shared(config.model)
        self._replay = replay_of(training)
        self._is_exact = alone and training.clip_norm is None
        """Whether this worker's uploads are all that its parameters are moved by."""
        self._remembers = True
        """Whether the replay has taken all steps so far; a worker that was restarted has not."""
        self._version, self._loaded = 1, False
        self.late = False
        """Whether the coordinator says that an earlier process was this worker: the first steps are then not known."""
        self._uploads: dict[int, Tensors] = {}
        """By round: what was uploaded since the parameters last changed."""
        self._resumable = federation.checkpoint_every is not None
        self._digests: dict[int, bytes] = {}
        """By version, of parameters that were followed: a coordinator that is resumed goes back to one of them."""

    def version_of(self, number: int) -> int:
        """Return the version of the parameters that a round is played with."""
        return 1 + bisect_left(self._moving, number)

    def uploaded(self, number: int, gradients: Tensors) -> None:
        """Remember what the coordinator was given; a round that is played again takes the place of itself."""
        if self._checks.steps and number in self._rates and self._rates[number]:
            self._uploads[number] = gradients

    def problems(self, version: int, tensors: Tensors, own: Mapping[str, Tensor]) -> Iterator[str]:
        """Yield what is wrong with new parameters, given those in force here (before the first, the config's own)."""
        own = {name: tensor.detach().cpu() for name, tensor in own.items()}
        if version == 1 and not self._loaded:
            if self._checks.first_parameters:
                yield from _first_problems(tensors, own)
        elif self._checks.steps and version <= self._version:
            yield from self._again(version, tensors, own)
        elif self._checks.steps:
            yield from self._step_problems(version, tensors, own)

    def follow(self, version: int, tensors: Tensors) -> None:
        """Remember parameters that are followed."""
        if version < self._version or (version > 1 and not self._loaded):
            self._remembers = False
        if version != self._version:
            self._uploads = {}
        self._version, self._loaded = version, True
        if self._checks.steps and self._resumable:
            self._digests[version] = _digest(tensors)

    def _again(self, version: int, tensors: Tensors, own: Tensors) -> Iterator[str]:
        """Parameters that were here before must be those that were here: after a fault, or when a run is resumed."""
        if version == self._version:
            same = all(torch.equal(tensors[name], own[name]) for name in own)
        else:
            same = self._digests.get(version) == _digest(tensors)
        if not same:
            yield f"the coordinator sends parameters {version} again, and they are not those that it sent before"

    def _step_problems(self, version: int, tensors: Tensors, own: Tensors) -> Iterator[str]:
        if version > len(self._moving) + 1:
            yield f"the coordinator sends parameters {version}, and the config here plans {len(self._moving)} steps"
        elif not self._loaded and not self.late:
            yield f"the coordinator's first parameters are number {version}, and this worker has just begun"
        elif self._loaded and version > self._version + 1:
            yield f"the coordinator sends parameters {version} after {self._version}: it left some out"
        elif self._replay is not None:
            number = self._moving[version - 2]
            upload = self._mean_upload(number)
            if self._loaded and upload is None:
                yield f"the coordinator sends parameters {version} before this worker uploaded for round {number}"
            elif upload is not None and self._is_exact and (self._remembers or not self._replay.remembers):
                wanted = self._replay.step(own, upload, self._rates[number])
                yield from self._other_step(number, tensors, own, wanted)
            else:
                yield from self._too_far(version, tensors, own)

    def _mean_upload(self, number: int) -> Tensors | None:
        """Return what the step after a round is made of: its upload, or the mean of several rounds'."""
        share = self._training.accumulate
        rounds = [one for one in range(number - share + 1, number + 1) if self._rates[one]]
        if any(one not in self._uploads for one in rounds):
            return None
        mean: dict[str, Tensor] = {}
        for one in rounds:
            for name, gradient in self._uploads[one].items():
                part = gradient / share if share > 1 else gradient
                mean[name] = mean[name] + part if name in mean else part
        return mean

    def _other_step(self, number: int, tensors: Tensors, own: Tensors, wanted: Tensors) -> Iterator[str]:
        """Compare with the step that this worker has taken itself."""
        for name, right in wanted.items():
            if torch.equal(tensors[name], right):
                continue  # as nearly always: what follows reads each number five times more
            step, size = largest(right - own[name]), max(largest(own[name]), largest(right))
            off = largest(tensors[name] - right)
            if not off <= STEP_ROUNDING * step + ROUNDING * size:
                made = f"{self._training.optimizer} makes of this worker's own gradient of round {number}"
                yield f"the coordinator's {name} is up to {off:.2g} off what {made}, a step of {step:.2g}. {SWITCH}"

    def _too_far(self, version: int, tensors: Tensors, own: Tensors) -> Iterator[str]:
        """Compare with the farthest that the optimiser goes, whatever the other workers' gradients are."""
        since = self._moving[self._version - 1 : version - 1]
        steps = enumerate(since, start=self._version)
        plan, clip = self._replay, self._training.clip_norm
        if isinstance(plan, AdamReplay):
            farthest = sum(self._rates[number] * plan.farthest(count) for count, number in steps)
            for name, tensor in tensors.items():
                off = largest(tensor - own[name])
                if not off <= farthest * (1 + STEP_ROUNDING) + ROUNDING * largest(own[name]):
                    yield f"the coordinator's {name} jumps by {off:.2g}, and adam goes {farthest:.2g} at most. {SWITCH}"
        elif isinstance(plan, SgdReplay) and clip is not None and not plan.weight_decay:
            farthest = sum(self._rates[number] for _, number in steps) * clip / (1 - plan.momentum)
            off = math.sqrt(sum(float((tensors[name] - own[name]).double().square().sum()) for name in own))
            size = math.sqrt(sum(float(own[name].double().square().sum()) for name in own))
            if not off <= farthest * (1 + STEP_ROUNDING) + ROUNDING * size:
                yield f"the coordinator's parameters jump by {off:.2g}, and sgd goes {farthest:.2g} at most. {SWITCH}"


def _first_problems(tensors: Tensors, own: Tensors) -> Iterator[str]:
    for name, first in own.items():
        if not largest(tensors[name] - first) <= ROUNDING * largest(first):
            same = "are seed and model the same in both configs?"
            yield f"the coordinator's first {name} is not what the config's seed makes here: {same} {SWITCH}"


def largest(tensor: Tensor) -> float:
    """Return the size of the largest number, NaN where one is not a number, 0 where there is none."""
    if not tensor.numel():
        return 0.0
    low, high = torch.aminmax(tensor)  # one pass, where `abs` would make a second tensor
    return max(-float(low), float(high))


def _digest(tensors: Tensors) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.digest()
