"""Runs from Python, for notebooks and scripts: `vfl.run`, `vfl.attack`, `vfl.load`, `vfl.simulate`, `vfl.record`.

A run is the same `cafe` command in a process of its own: it neither minds an event loop that is running here, nor needs
`if __name__ == "__main__"`. It ends with the process that started it.
"""

import base64
import contextlib
import html
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL.Image import Image

from vfl.errors import UserError, from_words
from vfl.folder.schema import as_json
from vfl.folder.summary import Summary
from vfl.folder.verdict import verdict
from vfl.folder.words import numbers_in_words
from vfl.packages import import_ours, python_path

if TYPE_CHECKING:
    from torch import nn

    from vfl.config import RunConfig
    from vfl.elsewhere.recorder import Recorder
    from vfl.observation import ModelTensors, Setting
    from vfl.recovery import Recovery

SHOWN = 12
"""Images in a picture of a run."""


def run(
    file: str | Path | Mapping[str, Any],
    set: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    *,
    resume: bool = False,
    fresh: bool = False,
) -> "Run":
    """Run a whole federation on this machine, as `cafe run` does, and return its result.

    `file` is a YAML file or the same as a dict; `set` changes keys of it, as in {"federation.workers": 16}. What goes
    on is shown on standard error, unless it is to be `quiet`. `resume` goes on with an unfinished run in `out`, and
    `fresh` throws it away.
    """
    asked = [*(["--resume"] if resume else []), *(["--fresh"] if fresh else [])]
    with _as_file(file) as path:
        folder = Path("runs") / path.stem if out is None else Path(out)
        _cafe(["run", str(path), *_changes(set), "--out", str(folder), *asked], quiet)
    return load(folder)


def simulate(
    config: "str | Path | Mapping[str, Any] | RunConfig",
    set: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    on_round: "Callable[[Any], None] | None" = None,
) -> "Simulation":
    """Run a federation and its attack in this process, without sockets, to the numbers of `cafe run`.

    `on_round` is called with what the adversary (the coordinator by default) sees of each round. The run's folder is
    removed, unless `out` names one to keep.
    """
    import_ours()
    from vfl.config import RunConfig, load_config
    from vfl.datasets.slices import load_data
    from vfl.local.simulation import simulate as run_here

    if isinstance(config, RunConfig):
        config = config.model_dump(mode="json")
    with _as_file(config) as path, tempfile.TemporaryDirectory(prefix="cafe-simulation-") as temporary:
        checked = load_config(path, _changes(set)[1::2])
        folder = Path(temporary if out is None else out)
        done = run_here(checked, load_data(checked), folder, on_round or (lambda _: None))
        found = load(folder)
    return Simulation(found.folder, found.result, found.arrays, done.setting, done.recovery, done.model)


def attack(
    transcript: str | Path | Sequence[str | Path],
    name: str | None = None,
    set: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    *,
    quiet: bool = False,
) -> "Run":
    """Run an attack on a recorded transcript, as `cafe attack` does; the recorded run's own by default.

    Several transcripts of one run are those of a coalition.
    """
    each = [str(transcript)] if isinstance(transcript, str | Path) else [str(one) for one in transcript]
    beside = Path(each[0]).resolve().parent / f"attack-{(name or 'again').replace(':', '.')}"
    folder = beside if out is None else Path(out)
    chosen = [] if name is None else ["--attack", name]
    _cafe(["attack", *each, *chosen, *_changes(set), "--out", str(folder)], quiet)
    return load(folder)


def record(
    folder: str | Path, bottoms: "Sequence[nn.Module]", top: "nn.Module | None" = None, **known: Any
) -> "Recorder":
    """Record what reaches the server of your own training loop, as a transcript that `cafe attack` takes.

    `bottoms` are the parties' networks, `top` the one behind their outputs; `known` is what `Recorded` lists:
    sample_shape, classes, samples, and what you can say beyond that. Use it as a context manager, and call its `round`
    after each `backward`.
    """
    import_ours()
    from vfl.elsewhere.recorder import Recorded, Recorder

    try:
        said = Recorded(**known)
    except TypeError as error:
        raise UserError(f"vfl.record: {str(error).removeprefix('Recorded.__init__() ')}") from None
    return Recorder(Path(folder), bottoms, top, said)


def load(folder: str | Path) -> "Run":
    """Return the result of an earlier run."""
    from vfl.report.folder import read_run

    found = read_run(Path(folder))
    return Run(found.path, found.summary, found.arrays)


@dataclass(frozen=True)
class Images:
    """Images of a run, (samples, height, width, channels), values in [0, 1]."""

    recovered: NDArray[np.float32]
    """Grey where an image was not recovered."""
    real: NDArray[np.float32] | None
    """None without the truth."""

    def __len__(self) -> int:
        return len(self.recovered)

    @property
    def difference(self) -> NDArray[np.float32] | None:
        """Return how far each pixel is off."""
        return None if self.real is None else np.abs(self.real - self.recovered)

    def picture(self, most: int = SHOWN, scale: int | None = None) -> Image:
        """Return some of them as one image: real above recovered above their difference."""
        import torch

        from vfl.folder.grid import as_image, in_rows

        kinds = [kind for kind in (self.real, self.recovered, self.difference) if kind is not None]
        rows = in_rows(*(torch.from_numpy(kind).permute(0, 3, 1, 2) for kind in kinds), most=most)
        return as_image(rows, scale or max(1, 64 // self.recovered.shape[2]))

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.picture().save(file, format="PNG")
        return file.getvalue()


@dataclass(frozen=True)
class Run:
    """The result of a run."""

    folder: Path
    result: Summary
    """What summary.json says, as attributes: `run.result.attack.psnr_mean`."""
    arrays: dict[str, NDArray[Any]]
    """What recovered.npz holds."""

    @property
    def summary(self) -> dict[str, Any]:
        """Return what summary.json says."""
        return as_json(self.result)

    @property
    def verdict(self) -> str:
        """Return in one sentence what the adversary learned."""
        return verdict(self.result).sentence

    @property
    def losses(self) -> list[float]:
        """Return the loss of every round."""
        return list(self.result.train.losses)

    def images(self) -> Images:
        """Return the images, recovered and real."""
        x = self.arrays.get("x")
        if x is None or x.ndim != 4:
            raise UserError(f"{self.folder}: the run has no recovered images")
        truth = self.arrays.get("x_true")
        return Images(_pixels(x), None if truth is None else _pixels(truth))

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align: left">{html.escape(name)}</th>'
            f'<td style="text-align: left">{html.escape(value)}</td></tr>'
            for name, value in numbers_in_words(self.result)
        )
        picture = ""
        if "x" in self.arrays and self.arrays["x"].ndim == 4:
            png = base64.b64encode(self.images()._repr_png_()).decode()
            picture = f'<img alt="real, recovered and their difference" src="data:image/png;base64,{png}">'
        found = verdict(self.result)
        words = f"<b>{html.escape(f'{found.label.capitalize()}: {found.sentence}')}</b> {html.escape(found.basis)}"
        return f"<p>{words}</p>{picture}<table>{rows}</table>"


@dataclass(frozen=True)
class Simulation(Run):
    """The result of a run in this process, with what no file holds."""

    setting: "Setting"
    """What the attack knew before the first round."""
    recovery: "Recovery"
    """The attack's own estimate."""
    model: "ModelTensors | None"
    """The parameters after the last round."""


def _pixels(x: NDArray[Any]) -> NDArray[np.float32]:
    pixels: NDArray[np.float32] = np.nan_to_num(x, nan=0.5).clip(0, 1).astype(np.float32).transpose(0, 2, 3, 1)
    return pixels


def _changes(set: Mapping[str, Any] | None) -> list[str]:
    # JSON is YAML, which is what --set takes
    return [word for key, value in (set or {}).items() for word in ("--set", f"{key}={json.dumps(value)}")]


@contextlib.contextmanager
def _as_file(file: str | Path | Mapping[str, Any]) -> Iterator[Path]:
    if not isinstance(file, Mapping):
        yield Path(file)
        return
    with tempfile.TemporaryDirectory(prefix="cafe-config-") as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(yaml.safe_dump(dict(file), sort_keys=False), encoding="utf-8")
        yield path


def _cafe(arguments: Sequence[str], quiet: bool) -> None:
    """Run the command; its progress goes to standard error here, and its sentence into the error."""
    # A session of its own: Ctrl-C here is passed on below, once. Standard input closes when this process ends, and the
    # run with it.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "vfl.cli.guarded", *arguments],
        env=os.environ | {"PYTHONPATH": python_path()},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    assert process.stderr is not None
    last = ""
    with process:
        try:
            for line in process.stderr:
                last = line.strip() or last
                if not quiet and not line.startswith("cafe: "):
                    print(line, end="", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.stderr.read()
            raise
    if process.returncode:
        raise from_words(process.returncode, last.removeprefix("cafe: ") or "the run ended without a word")
