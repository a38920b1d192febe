"""Two classes, told apart by how long the answers are, or by where they point (Li et al. 2022)."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from attacker.interface import Attack, AttackPlugin, Lack, Progress, Recovery, RefusalError, Setting, attacks
from attacker.labels.answers import Answers, directions
from vfl.observation import WorkerObservation
from vfl.seats import SeatKind


class _Scores(AttackPlugin):
    """An attack that gives each sample a score: how much it looks like one of the second class."""

    seats: ClassVar[tuple[frozenset[SeatKind], ...]] = (frozenset({"worker"}),)
    losses, weighs = frozenset({"cross_entropy", "binary"}), True

    def start(self, setting: Setting) -> Attack:
        """Begin, if there are two classes."""
        if setting.classes != 2:
            name = next(one for one, found in NAMES.items() if isinstance(self, found))
            raise RefusalError(name, Lack("two classes", f"here are {setting.classes}"))
        return _Scoring(self, setting)

    @abstractmethod
    def scores(self, answers: Answers) -> Tensor:
        """Return a score for each sample, NaN for one that was not seen."""

    @property
    def named(self) -> bool:
        """Whether it knows which side is which class."""
        return False

    @property
    def given(self) -> tuple[int, ...]:
        """Return the samples whose class it knows from elsewhere."""
        return ()

    @property
    def used(self) -> tuple[str, ...]:
        """Return what it uses."""
        return ("indices", "answers")


@attacks.register("label_norm")
class LabelNorm(_Scores):
    """Norm scoring (Li et al. 2022, "Label leakage and protection in two-party split learning"): binary, by AUC.

    An answer is longer the less the model expects the sample's class: the rarer class has the longer answers.
    """

    def scores(self, answers: Answers) -> Tensor:
        """Return each sample's length beside its batch's mean length, the mean over its rounds."""
        sums, times = torch.zeros(answers.samples, dtype=torch.float64), torch.zeros(answers.samples)
        for indices, rows in answers.by_round():
            lengths = rows.norm(dim=1)
            sums[indices] += lengths / lengths.mean().clamp(min=1e-300)
            times[indices] += 1
        return torch.where(times > 0, sums / times, torch.nan)


@attacks.register("label_direction")
class LabelDirection(_Scores):
    """Direction scoring (Li et al. 2022): binary, by the cosine with the answer of one known sample of class 1.

    Without one, by the axis along which the answers' directions differ most. Told that answers carry noise, it first
    averages each sample's answers over its rounds: fresh noise shrinks by the root of their number.
    """

    known: int | None = Field(None, ge=0, description="a sample of the second class (1) that the worker knows")
    told: bool = Field(False, description="that the label holder adds noise to its answers")

    def start(self, setting: Setting) -> Attack:
        """Begin, if there are two classes and the known sample is one of the run's."""
        if self.known is not None and self.known >= setting.samples:
            found = f"attack.known is {self.known}"
            raise RefusalError("label_direction", Lack(f"a sample below {setting.samples}", found))
        return super().start(setting)

    @property
    def named(self) -> bool:
        """Whether it knows which side is which class."""
        return self.known is not None

    @property
    def given(self) -> tuple[int, ...]:
        """Return the samples whose class it knows from elsewhere."""
        return () if self.known is None else (self.known,)

    @property
    def used(self) -> tuple[str, ...]:
        """Return what it uses."""
        known = () if self.known is None else ("the class of 1 sample",)
        return (*super().used, *known, *(("the defence's kind",) if self.told else ()))

    def scores(self, answers: Answers) -> Tensor:
        """Return the mean of each sample's cosines over the passes; told of noise, how far its mean answer goes."""
        if self.told:
            return self._averaged(answers)
        rows = [directions(one) for one in answers.passes()]
        along = [one @ self._reference(one) for one in rows]
        return _mean(along if self.named else _oriented(along))

    def _averaged(self, answers: Answers) -> Tensor:
        """Return each sample's mean answer along the axis on which these differ most: Marvell's noise is along it."""
        rounds = answers.by_round()
        sums = torch.zeros(answers.samples, rounds[0][1].shape[1], dtype=torch.float64)
        times = torch.zeros(answers.samples, 1)
        for indices, rows in rounds:
            sums[indices] += rows / rows.square().mean().sqrt().clamp(min=1e-300)  # noise is as large as answers are
            times[indices] += 1
        means = torch.where(times > 0, sums / times, torch.nan)
        along = means @ self._axis(means)
        turned = self.known is not None and bool(along[self.known] < 0)
        return -along if turned else along

    def _reference(self, rows: Tensor) -> Tensor:
        known = None if self.known is None else rows[self.known]
        if known is not None and known.isfinite().all():
            return known
        return self._axis(rows)

    @staticmethod
    def _axis(rows: Tensor) -> Tensor:
        there = rows[rows.isfinite().all(1)]
        if not len(there):
            return torch.zeros(rows.shape[1], dtype=rows.dtype)
        axis: Tensor = torch.linalg.svd(there, full_matrices=False).Vh[0]
        return axis


NAMES: dict[str, type[_Scores]] = {"label_norm": LabelNorm, "label_direction": LabelDirection}


class _Scoring:
    def __init__(self, plugin: _Scores, setting: Setting) -> None:
        self._plugin, self._answers = plugin, Answers(setting)

    def observe(self, observation: WorkerObservation) -> None:
        self._answers.add(observation)

    def recover(self, progress: Progress) -> Recovery:
        progress("scoring answers", 0, 1)
        scores = self._plugin.scores(self._answers)
        there = scores.isfinite()
        labels = torch.full((len(scores),), -1)
        labels[there] = (scores[there] > threshold(scores[there])).long()
        plugin = self._plugin
        return Recovery(
            labels=labels, label_scores=scores, labels_named=plugin.named, told=plugin.given, used=plugin.used
        )


def threshold(scores: Tensor) -> float:
    """Return where to cut scores into two groups: where these differ most in their means (Otsu 1979)."""
    if not len(scores):
        return 0.0
    ordered = scores.sort().values
    below = torch.arange(1, len(ordered), dtype=torch.float64)
    if not len(below) or ordered[0] == ordered[-1]:
        return float(ordered[-1])
    sums = ordered.cumsum(0)
    gap = sums[:-1] / below - (sums[-1] - sums[:-1]) / (len(ordered) - below)
    best = int((below * (len(ordered) - below) * gap.square()).argmax())
    return float((ordered[best] + ordered[best + 1]) / 2)


def _oriented(passes: Sequence[Tensor]) -> list[Tensor]:
    """Turn the scores of each pass to the side of those before: an axis has no sign."""
    found: list[Tensor] = []
    for one in passes:
        before = _mean(found) if found else one
        turned = (one.nan_to_num() * before.nan_to_num()).sum() < 0
        found.append(-one if turned else one)
    return found


def _mean(passes: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(passes)).nanmean(dim=0)
