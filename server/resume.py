"""Where a run that was cut off goes on: the last checkpoint that is whole, and fits the config and the transcript."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from torch import Tensor

from server.checkpoint import State, checkpoint_name, checkpoints_in, folder_of, read_checkpoint
from server.schedule import Drawn
from server.watching import Observer
from vfl.config import RunConfig
from vfl.errors import UserError
from vfl.tensor_file import DamagedError
from vfl.transcript import Transcript, forget_after

_MAY_DIFFER = "_timeout"
"""How long anybody waits changes no number."""


@dataclass(frozen=True)
class Resumed:
    """What a run goes on from."""

    state: State
    tensors: dict[str, Tensor]
    transcript: Path | None
    """The rounds up to here, if they were kept."""
    redone: int | None
    """Rounds that were done after this state and are to be done again, where that is known."""


def find_checkpoint(out: Path, config: RunConfig, say: Callable[[str], None]) -> Resumed:
    """Return the last good state of the run in a folder; what is wrong with later ones is said."""
    folder, transcript = folder_of(out), out / "transcript" if config.records else None
    found = checkpoints_in(folder)
    if not found:
        raise UserError(
            f"--resume: there is no checkpoint in {folder}: start without --resume (federation.checkpoint_every says "
            f"how often one is made)"
        )
    problems = []
    for path in found:
        try:
            state, tensors = read_checkpoint(path)
            _compare(config, state, path)
            recorded = None if transcript is None else _check(transcript, state.rounds)
        except DamagedError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            say(problem)
        say(f"going on from the checkpoint of round {state.rounds}")
        redone = None if recorded is None else recorded.rounds - state.rounds
        return Resumed(state, tensors, transcript, redone)
    raise UserError(f"--resume: {'; '.join(problems)}; nothing good is left: start without --resume")


def forget_later(out: Path, resumed: Resumed) -> None:
    """Remove what was written after the state that a run goes on from."""
    folder = folder_of(out)
    last = checkpoint_name(resumed.state.rounds)
    for path in (*(path for path in checkpoints_in(folder) if path.name > last), *folder.glob("*.partial")):
        path.unlink()
    if resumed.transcript is not None:
        forget_after(resumed.transcript, resumed.state.rounds)


def check_held(resumed: Resumed, held: Sequence[str]) -> None:
    """See that the workers hold what they held when the run began."""
    for worker, (now, then) in enumerate(zip_longest(held, resumed.state.held)):
        if now != then:
            raise UserError(
                f"worker {worker} does not hold what it held when the run began "
                f"(samples, their ids, its slice, or the classes): start it with the same data"
            )


def check_drawn(resumed: Resumed, drawn: Drawn) -> None:
    """See that the batches are drawn as they were."""
    if str(drawn) != resumed.state.drawn:
        raise UserError(
            f"--resume: the batches of the first {resumed.state.rounds} rounds come out otherwise than when the "
            f"checkpoint was made: is it the same release of torch?"
        )


def show_again(resumed: Resumed, observer: Observer) -> None:
    """Show an attack the rounds that it had seen; from the same rounds it comes to the same numbers."""
    if resumed.transcript is not None:
        for observation in Transcript(resumed.transcript):
            if observation.shown:
                observer(observation)


def _compare(config: RunConfig, state: State, path: Path) -> None:
    here = _flat(json.loads(config.model_dump_json()))
    there = _flat(state.config)
    for key in sorted({*here, *there}):
        if here.get(key) != there.get(key) and not key.endswith(_MAY_DIFFER):
            raise UserError(
                f"--resume: {key} is {json.dumps(here.get(key))} in the config and was {json.dumps(there.get(key))} "
                f"when {path} was made: take the config of then, or start without --resume"
            )


def _flat(tree: Any, at: str = "") -> dict[str, Any]:
    """Return a config's values by their dotted keys."""
    if not isinstance(tree, dict) or not tree:
        return {at: tree}
    flat: dict[str, Any] = {}
    for name, child in tree.items():
        flat |= _flat(child, f"{at}.{name}" if at else name)
    return flat


def _check(folder: Path, rounds: int) -> Transcript:
    """Return a transcript whose first rounds are as they were written."""
    recorded = Transcript(folder)
    if recorded.rounds < rounds:
        raise DamagedError(f"{folder} has {recorded.rounds} rounds of the {rounds} that were done by then")
    for _ in islice(recorded, rounds):
        pass  # each is checked as it is read
    return recorded
