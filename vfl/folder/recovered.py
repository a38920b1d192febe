"""What the attack recovered, as .npz files: `recovered.npz` at the end, and estimates below `snapshots/` before."""

from pathlib import Path

import numpy as np

from vfl.files.archive import save_arrays
from vfl.observation import Setting
from vfl.partition import assemble
from vfl.recovery import Recovery

_NAME = "recovered.npz"
PARTIAL = "snapshots/partial.npz"
"""The attack's newest estimate while it recovers; gone when it has."""


def write_recovery(out: Path, setting: Setting, recovery: Recovery) -> None:
    """Write what the attack recovered: whole samples `x` where it got that far, representations, labels, cells."""
    arrays = _samples(setting, recovery)
    for worker, part in enumerate(recovery.representations or ()):
        arrays[f"representation_{worker}"] = part.float().numpy()
    if recovery.layers is not None:
        arrays["layers"] = np.array(recovery.layers)
    if recovery.certificates is not None:
        arrays["certificates"] = recovery.certificates.numpy()
    if recovery.certified is not None:
        arrays["certified"] = recovery.certified.numpy()
    save_arrays(out / _NAME, arrays)


def write_snapshot(out: Path, setting: Setting, recovery: Recovery, *, number: int, seconds: float) -> None:
    """Write the samples that the attack has recovered after some rounds and seconds."""
    if recovery.slices is not None:
        arrays = _samples(setting, recovery) | {"round": np.array(number), "seconds": np.array(seconds)}
        save_arrays(out / "snapshots" / f"{number:08d}.npz", arrays)


def write_partial(out: Path, setting: Setting, recovery: Recovery) -> None:
    """Write the samples of an unfinished estimate."""
    if recovery.slices is not None:
        save_arrays(out / PARTIAL, _samples(setting, recovery))


def _samples(setting: Setting, recovery: Recovery) -> dict[str, np.ndarray]:
    arrays = {"cell": recovery.cell_of(setting.samples).numpy()}
    if recovery.told:
        arrays["told"] = np.isin(np.arange(setting.samples), recovery.told)
    if recovery.slices is not None:
        arrays["x"] = assemble(setting.boxes, [part.float() for part in recovery.slices]).numpy()
    if recovery.labels is not None and recovery.labels.is_floating_point():
        arrays["targets"] = recovery.labels.float().numpy()
    elif recovery.labels is not None:
        arrays["labels"] = recovery.labels.numpy()
        arrays["labels_named"] = np.array(recovery.labels_named)
    if recovery.label_scores is not None:
        arrays["label_scores"] = recovery.label_scores.numpy()
    return arrays
