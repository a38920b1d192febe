"""What the benchmarks of attacks share: a frozen federation of four in one process, and the referee's scores."""

from typing import Any

from attacker.interface import Recovery
from vfl.datasets import Data
from vfl.observation import Setting
from vfl.partition import assemble, partition
from vfl.referee import best_order, score_images
from vfl.registry import PluginSection

WORKERS = 4


def trial_setting(data: Data, batch_size: int, schedule: str, rounds: int) -> Setting:
    """Return the paper's network on these images, frozen, seed 0."""
    return Setting(
        model=PluginSection(name="cafe_cnn"),
        boxes=tuple(partition(data.sample_shape, WORKERS)),
        classes=data.classes,
        samples=len(data.x),
        batch_size=batch_size,
        schedule=schedule,
        rounds=rounds,
        frozen=True,
        seed=0,
    )


def score(recovery: Recovery, setting: Setting, data: Data) -> dict[str, Any] | None:
    """Return what `cafe run` would say of the recovered images and labels; None where there are no images yet."""
    if recovery.slices is None:
        return None
    x = assemble(setting.boxes, list(recovery.slices)).nan_to_num(0.5)
    order = best_order(x, data.x, recovery.cell_of(setting.samples))
    labels = None if recovery.labels is None else float((recovery.labels[order] == data.y).float().mean())
    return {"label_accuracy": labels, **score_images(x[order], data.x)}
