"""What a worker checks of the label holder's answers: under one dense layer they span few dimensions.

An answer is W^T u, with W the worker's columns of the top model's weights and u what the loss says of a sample's
logits. The entries of softmax minus label sum to zero, so a batch of honest answers spans one dimension fewer than
there are classes, or a single one where the model has one logit. An output longer than that has room for answers that
no label holder with that top model gives.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vfl.config import RunConfig
from vfl.errors import RunFailedError
from vfl.maths.loss import loss_of
from vfl.models import LinearTop, build_top
from worker.steps import SWITCH

ROUNDING = 1e-4
"""How large what should be zero may be, beside the largest answers of the round; float32 leaves about 1e-7 of these."""
EVER = 1e-4
"""The same beside answers as they are when nothing is learned: those of samples classified right are rounding alone."""
HARMLESS = frozenset({"none", "random_labels"})
"""Defences of answers that leave the dimensions what they are; `max_norm` lengthens answers that are rounding."""


class AnswersRefusedError(RunFailedError):
    """Answers that do not come from the model in the worker's config: they end its part in the run."""


class AnswerChecks:
    """Looks at each round's answers to one worker."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._most: int | None = None
        self._largest = 0.0

    def begin(self, widths: Sequence[int], classes: int) -> None:
        """Take note of the model, once it is known how many classes there are."""
        config = self._config
        holder = config.topology.label_holder
        defences = {one.name for one in config.defence_of(holder, "answers")}
        if not config.federation.checks.answers or not defences <= HARMLESS:
            return
        loss = loss_of(config.training)
        top = build_top(config.model, list(widths), loss.outputs(classes), config.seed)
        if type(top) is LinearTop:
            self._most = loss.directions(classes)
            self._largest = float(top.fc.weight.detach().norm()) / config.federation.batch_size

    def check(self, number: int, answers: Tensor) -> None:
        """Refuse a round's answers if they span more dimensions than the top model's can."""
        if self._most is None or self._most >= min(answers.shape):
            return
        values = torch.linalg.svdvals(answers.detach().cpu().double())
        largest, beyond = float(values[0]), float(values[self._most])
        self._largest = max(self._largest, largest)
        if beyond > ROUNDING * largest + EVER * self._largest:
            spanned = int((values > ROUNDING * largest + EVER * self._largest).sum())
            raise AnswersRefusedError(
                f"round {number}: the label holder's answers span {spanned} dimensions, and under the top model of the "
                f"config here they span {self._most} at the most: they are not the loss's gradients. {SWITCH}"
            )
