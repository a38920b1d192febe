"""What training looks like: loss, accuracy and learning rate over the rounds."""

import math

import numpy as np
from matplotlib.axes import Axes

from vfl.folder.recorded_config import Training
from vfl.folder.summary import Summary, Train
from vfl.report.figures import MUTED, ONE, THREE, TWO, Plot, draw, over_rounds

MOST_POINTS = 600


def losses(train: Train) -> Plot | None:
    """Return the training loss of every round and the test loss of every evaluation."""
    values = np.array(train.losses)
    if not np.isfinite(values).any():
        return None
    rounds, means, each = thinned(values)
    tested = [one for one in train.evaluations if math.isfinite(one.loss)]

    def paint(axes: Axes) -> None:
        axes.plot(rounds, means, color=ONE, label="training", marker="o" if len(means) == 1 else None, markersize=4)
        if tested:
            at, found = [one.round for one in tested], [one.loss for one in tested]
            axes.plot(at, found, color=TWO, label="test", marker="o", markersize=3.5)
            axes.legend(fontsize=8)
        over_rounds(axes)
        axes.set_ylabel("loss")

    known = values[np.isfinite(values)]
    alt = f"Training loss over {len(values)} rounds, from {known[0]:.4f} to {known[-1]:.4f}."
    lost = int((~np.isfinite(values)).sum())
    words = [f"Each point is the mean of {each} rounds."] if each > 1 else []
    words += [f"{lost} rounds have a loss that is not a number."] if lost else []
    return Plot("Loss", draw("loss", alt, paint), " ".join(words))


def accuracies(train: Train) -> Plot | None:
    """Return the accuracy on the test samples, if there is more than one."""
    tested = [one for one in train.evaluations if math.isfinite(one.accuracy)]
    if len(tested) < 2:
        return None

    def paint(axes: Axes) -> None:
        shares = [100 * one.accuracy for one in tested]
        axes.plot([one.round for one in tested], shares, color=THREE, marker="o", markersize=3.5)
        over_rounds(axes)
        axes.set_ylabel("test accuracy (%)")

    alt = f"Test accuracy, from {tested[0].accuracy:.1%} to {tested[-1].accuracy:.1%}."
    return Plot("Accuracy", draw("accuracy", alt, paint))


def rates(train: Train) -> Plot | None:
    """Return the learning rate of every round, if it changes."""
    values = np.array(train.rates)
    if len(set(values.tolist())) < 2:
        return None
    rounds, means, _ = thinned(values)

    def paint(axes: Axes) -> None:
        axes.plot(rounds, means, color=MUTED, drawstyle="steps-post")
        axes.set_ylim(bottom=0)
        over_rounds(axes)
        axes.set_ylabel("learning rate")

    alt = f"Learning rate over {len(values)} rounds, from {values[0]:g} to {values[-1]:g}, at most {values.max():g}."
    return Plot("Learning rate", draw("rate", alt, paint))


def thinned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return rounds and values, means of so many rounds each where there are too many to draw."""
    each = max(1, math.ceil(len(values) / MOST_POINTS))
    padded = np.concatenate([values, np.full(-len(values) % each, np.nan)]).reshape(-1, each)
    known = np.isfinite(padded)
    totals = np.where(known, padded, 0.0).sum(axis=1)
    means = np.where(known.any(axis=1), totals / np.maximum(known.sum(axis=1), 1), np.nan)
    return np.arange(len(means)) * each + (each + 1) / 2, means, each


def in_words(summary: Summary) -> str:
    """Say how the parameters moved, and whether there is any loss to show."""
    settings = summary.config.training or Training()
    rate = settings.lr or 0.0
    moved = f"{settings.optimizer} with a learning rate of {rate:g}."
    known = any(map(math.isfinite, summary.train.losses))
    words = [moved if rate else "The parameters were frozen (learning rate 0)."]
    return " ".join(words if known else [*words, "No round has a loss that is a number."])
