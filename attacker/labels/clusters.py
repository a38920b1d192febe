"""Labels by clustering: the answer to a sample's output points away from its class, whatever the class is called."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacker.interface import Attack, AttackPlugin, Progress, Recovery, Setting, attacks
from attacker.labels.answers import Answers, directions
from attacker.labels.known import check_known, told_words
from vfl.maths.naming import best_naming, renamed
from vfl.observation import WorkerObservation
from vfl.seats import SeatKind

DIRECT = 0.99
"""From this share of answers on that have one negative entry, as many as there are classes, they are p - y itself."""
STARTS = 10
"""Of k-means, which may end in a bad place from any one of them."""


@attacks.register("label_clusters")
class LabelClusters(AttackPlugin):
    """Our own: a worker clusters the directions of the answers it gets, into as many groups as there are classes.

    Under a linear top model an answer is W^T (p - y): before much is learned its direction depends on the class alone.
    Where there is no top model the answer is p - y, and its one negative entry is the label (Fu et al. 2022).
    """

    seats: ClassVar[tuple[frozenset[SeatKind], ...]] = (frozenset({"worker"}),)
    known: dict[int, int] = Field({}, description="classes of samples that the worker knows, as {sample: class}")
    first_round: int = Field(1, ge=1, description="rounds before this one are not looked at")

    def start(self, setting: Setting) -> Attack:
        """Begin; the samples and classes that are said to be known must be some of the run's."""
        check_known("label_clusters", self.known, setting)
        return Clustering(self, setting)


class Clustering:
    """Gathers answers, and clusters those of each pass."""

    def __init__(self, options: LabelClusters, setting: Setting) -> None:
        self._options, self._setting, self._answers = options, setting, Answers(setting)
        self._used: list[int] = []

    def observe(self, observation: WorkerObservation) -> None:
        """Take in one round."""
        if observation.round >= self._options.first_round:
            self._answers.add(observation)
            self._used.append(observation.round)

    def recover(self, progress: Progress) -> Recovery:
        """Return the groups, or labels where they have names."""
        classes, known = self._setting.classes, self._options.known
        passes = self._answers.passes()
        found = negative_entries(passes, classes)
        if found is not None:
            note = "There is no top model: an answer is softmax minus label, and its one negative entry the label."
            return Recovery(labels=found, used=("indices", "answers"), rounds=tuple(self._used), notes=(note,))
        groups: Tensor | None = None
        scores = torch.zeros(self._setting.samples, classes, dtype=torch.float64)
        for number, answers in enumerate(passes):
            progress("clustering answers", number, len(passes))
            margins = memberships(directions(answers), classes, self._setting.seed)
            if groups is not None:
                margins = margins[:, best_naming(margins.argmax(1), groups, classes, of=margins.abs().sum(1) > 0)]
            scores += margins
            groups = scores.argmax(1)
        assert groups is not None
        labels = torch.where(scores.abs().sum(1) > 0, groups, -1)
        return Recovery(rounds=tuple(self._used), **named(labels, known, classes))  # type: ignore[arg-type]


def negative_entries(passes: list[Tensor], classes: int) -> Tensor | None:
    """Return the labels, if the answers are softmax minus label themselves; None if a top model is in between."""
    if passes[0].shape[1] != classes:
        return None
    rows = torch.cat([one[one.isfinite().all(1)] for one in passes])
    sizes = rows.abs().amax(1, keepdim=True).clamp(min=1e-300)
    plain = ((rows < 0).sum(1) == 1) & (rows.sum(1).abs() < 1e-4 * sizes[:, 0])
    if not len(rows) or float(plain.double().mean()) < DIRECT:
        return None
    first = passes[0]
    return torch.where(first.isfinite().all(1), first.nan_to_num(torch.inf).argmin(1), -1)


def memberships(rows: Tensor, classes: int, seed: int) -> Tensor:
    """Return how much nearer each row is to its group's centre than to the next one's, in its group's column."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    there = rows.isfinite().all(1)
    found = torch.zeros(len(rows), classes, dtype=torch.float64)
    points = rows[there].numpy()
    groups = min(classes, len(np.unique(points.round(9), axis=0)))
    if groups < 2:
        found[there, 0] = 1.0
        return found
    with threadpool_limits(1):  # on a busy machine threads that wait for each other take longer than one alone
        fitted = KMeans(groups, n_init=STARTS, random_state=seed % (1 << 32)).fit(points)
    distances = torch.from_numpy(fitted.transform(points).astype(np.float64))
    nearest = distances.sort(dim=1).values
    found[there.nonzero()[:, 0], torch.from_numpy(fitted.labels_.astype(np.int64))] = (
        nearest[:, 1] - nearest[:, 0] + 1e-9  # a row between two centres still belongs to the one it was put to
    )
    return found


def named(groups: Tensor, known: Mapping[int, int], classes: int) -> dict[str, object]:
    """Return labels as a recovery has them: by name if a sample of each class is known, else as groups."""
    used: tuple[str, ...] = ("indices", "answers")
    if not known:
        return {"labels": groups, "labels_named": False, "used": used}
    samples = torch.tensor(list(known))
    truth = torch.full_like(groups, -1)
    truth[samples] = torch.tensor(list(known.values()))
    labels = renamed(groups, truth, classes)
    labels[samples] = truth[samples]
    whole = len(set(known.values())) == classes
    return {"labels": labels, "labels_named": whole, "used": (*used, told_words(known)), "told": tuple(sorted(known))}
