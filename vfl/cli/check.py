"""`check`: is a transcript whole, what does it say, and which attacks can run on it?"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vfl.cli.options import Changes
from vfl.config import apply_change, parse_config
from vfl.seats import names_of_seats

if TYPE_CHECKING:
    from vfl.folder.transcript import Transcript


def check(
    folder: Annotated[Path, typer.Argument(metavar="TRANSCRIPT", help="The transcript/ folder of a run.")],
    changes: Changes = None,
) -> None:
    """Read a whole transcript, ours or from elsewhere; say what it holds, and which attacks can run on it."""
    from attacker.driver.offline import check_size, memory_errors_explained
    from attacker.start import refusals
    from vfl.errors import UserError
    from vfl.folder.recorded_config import refuse_imports
    from vfl.folder.transcript import Transcript

    transcript = Transcript(folder)
    tree = transcript.config.model_dump(mode="json")
    for change in changes or []:
        apply_change(tree, change)
    said = [change.partition("=")[2] for change in changes or []]
    refuse_imports({"model": tree["model"]}, said, folder)
    parse_config(tree, "the recorded config")
    versions = _read(transcript)
    if not transcript.rounds:
        raise UserError(f"{folder} holds no round: was the recorder's round() called?")
    check_size(transcript.setting)
    with memory_errors_explained(transcript.setting):
        able = refusals(transcript.setting)
    for line in _lines(transcript, versions):
        print(line)
    for name, refusal in sorted(able.items(), key=lambda one: one[1] is not None):  # those that can run come first
        print(f"  {name}: {'can run' if refusal is None else getattr(refusal, 'reason', refusal)}")


def _read(transcript: "Transcript") -> int:
    """Read every round, each compared with the model and the setting; return how many versions the parameters have."""
    from rich.console import Console
    from rich.progress import track

    console, versions = Console(stderr=True), set()
    shows = sys.stderr.isatty()
    for one in track(transcript, "reading", transcript.rounds, console=console, disable=not shows, transient=True):
        versions.add(one.version)
    return len(versions)


def _lines(transcript: "Transcript", versions: int) -> list[str]:
    setting = transcript.setting
    shape = "x".join(map(str, setting.boxes[0].sample_shape))
    hidden = sorted(setting.unknown)
    size = f"of at most {setting.batch_size}" if "batch_size" in hidden else f"of {setting.batch_size}"
    known = "not known" if "parameters" in hidden else f"{versions} versions" if versions > 1 else "the same in all"
    planned = transcript.config.federation.planned_rounds(setting.most_samples)
    rounds = f"{transcript.rounds} of {planned} planned" if transcript.rounds < planned else f"{transcript.rounds}"
    return [
        "whole: every file has its checksum, and fits the model and the setting",
        f"seen by: {names_of_seats(setting.seats)}",
        f"parties: {setting.workers} with features",
        f"samples: {setting.samples} of shape {shape}, {setting.classes} classes",
        f"rounds: {rounds}, batches {size}; parameters: {known}; model: {setting.model.name}",
        f"not known to the server: {', '.join(hidden).replace('_', ' ') or 'nothing of these'}",
        "attacks, with their default options:",
    ]
