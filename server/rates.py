"""The learning rate of each round: frozen, warming up, then constant, a half cosine or steps."""

import math

from vfl.config import RateSchedule, TrainingConfig


def learning_rate(training: TrainingConfig, number: int, rounds: int, epoch: int) -> float:
    """Return the rate of a round, counted from 1, of so many planned ones; an epoch has `epoch` rounds."""
    schedule = training.schedule
    frozen, warmup = schedule.frozen_epochs * epoch, schedule.warmup_epochs * epoch
    if number <= frozen:
        return 0.0
    if number <= frozen + warmup:
        return training.lr * (number - frozen) / warmup
    done = number - 1 - frozen - warmup
    return training.lr * _share(schedule, done, rounds - frozen - warmup, epoch)


def _share(schedule: RateSchedule, done: int, planned: int, epoch: int) -> float:
    """Return the share of lr after so many of the planned rounds that follow the warm-up."""
    if schedule.kind == "cosine":
        return schedule.floor + (1 - schedule.floor) * (1 + math.cos(math.pi * done / planned)) / 2
    if schedule.kind == "step":
        return float(schedule.factor ** (done // (schedule.every_epochs * epoch)))
    return 1.0
