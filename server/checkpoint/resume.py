"""Where a run that was cut off goes on: the last checkpoint that is whole, and fits the config and the transcript."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from torch import Tensor

from attacker.driver.state import States
from server.checkpoint import State, checkpoint_name, checkpoints_in, folder_of, read_checkpoint
from server.parameters import Parameters
from vfl.config import RunConfig
from vfl.errors import InterruptedRunError, UserError
from vfl.files.tensor_file import DamagedError
from vfl.folder import clear_run
from vfl.folder.record import Record
from vfl.folder.schema import flat
from vfl.folder.summary import Disturbance
from vfl.folder.transcript import Transcript, TranscriptWriter, forget_after
from vfl.observation import Setting
from vfl.observation.schedule import Drawn

_MAY_DIFFER = ("_timeout", "waiting_gb")
"""How long one party waits for another changes no number, nor how much waits for the attack."""


@dataclass(frozen=True)
class Resumed:
    """What a run goes on from."""

    state: State
    tensors: dict[str, Tensor]
    transcript: Path | None
    """The rounds up to here, if they were kept."""
    seen: int
    """After which round the attack goes on with its own state; 0 if it is shown all rounds again."""
    redone: int | None
    """Rounds that were done after this state and are to be done again, where that is known."""

    @property
    def disturbance(self) -> Disturbance:
        """Return for the record that the coordinator itself was gone since its last checkpoint."""
        rounds, seconds = self.state.rounds, max(0.0, time.time() - self.state.at)  # clocks are set back too
        reason = f"the coordinator was resumed from its checkpoint of round {rounds}"
        return Disturbance(round=rounds + 1, reasons=[reason], seconds=seconds, redone=self.redone)


def look_ahead(out: Path, config: RunConfig) -> State:
    """Return the last state that can be read; whether the rounds before it are whole takes longer to find out."""
    problems: list[str] = []
    for state, _ in _good(folder_of(out), config, problems):
        return state
    raise _nothing_left(problems)


def find_checkpoint(
    out: Path,
    config: RunConfig,
    say: Callable[[str], object],
    *,
    labels: tuple[int, ...] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Resumed:
    """Return the last good state of the run in a folder; what is wrong with later ones is said."""
    transcript = out / "transcript" if config.records else None
    problems: list[str] = []
    good: list[tuple[State, dict[str, Tensor]]] = []
    """With nothing wrong but the rounds before them."""
    for state, tensors in _good(folder_of(out), config, problems):
        seen = States(out).last(state.rounds).round if transcript is not None else 0
        try:
            recorded = None
            if transcript is not None:
                setting = state.setting(config, labels)
                recorded = _whole(transcript, config, setting, problems)
                _check(recorded, seen, state.rounds, stopped)
        except DamagedError as error:
            problems.append(str(error))
            good.append((state, tensors))
            continue
        redone = None if recorded is None else recorded.rounds - state.rounds
        return _going_on(Resumed(state, tensors, transcript, seen, redone), problems, say)
    if not good:
        raise _nothing_left(problems)
    state, tensors = good[0]
    if config.attack.name == "none":  # no attack has to see those rounds again
        return _going_on(Resumed(state, tensors, transcript, 0, None), problems, say)
    alone = "with --set 'attack={name: none}' training goes on from there, without the attack"
    last = f"The checkpoint of round {state.rounds} is good: {alone}"
    raise UserError(f"--resume: {_in_one(problems)}; the attack would have to see those rounds again. {last}")


def _good(folder: Path, config: RunConfig, problems: list[str]) -> Iterator[tuple[State, dict[str, Tensor]]]:
    """Yield the checkpoints that can be read and fit the config, the latest first."""
    found = checkpoints_in(folder)
    if not found:
        hint = "start without --resume (federation.checkpoint_every says how often one is made)"
        raise UserError(f"--resume: there is no checkpoint in {folder}: {hint}")
    for path in found:
        try:
            state, tensors = read_checkpoint(path)
        except DamagedError as error:
            problems.append(str(error))
            continue
        _compare(config, state, path)
        yield state, tensors


def _nothing_left(problems: list[str]) -> UserError:
    return UserError(f"--resume: {_in_one(problems)}; nothing good is left: start without --resume")


def _in_one(problems: list[str]) -> str:
    return "; ".join(dict.fromkeys(problems))


def _going_on(resumed: Resumed, problems: list[str], say: Callable[[str], object]) -> Resumed:
    for problem in dict.fromkeys(problems):
        say(problem)
    say(f"going on from the checkpoint of round {resumed.state.rounds}")
    return resumed


def is_finished(config: RunConfig, state: State) -> bool:
    """Tell whether nothing is left for the workers to do, which may be gone: no round, and no evaluation."""
    record, training = state.continued(), config.training
    if state.known.tested and record.last_evaluation is None:
        return False
    if state.rounds >= state.setting(config, None).rounds:
        return True
    evaluated = training.evaluate_every is not None and state.rounds % training.evaluate_every == 0
    return record.last_evaluation is not None and evaluated and record.has_converged(training.early_stop)


def take_up(config: RunConfig, resumed: Resumed, labels: tuple[int, ...] | None, out: Path) -> tuple[Setting, Record]:
    """Return the setting and the record of a finished run, and clear its folder for the results."""
    state, record = resumed.state, resumed.state.continued()
    setting = state.setting(config, labels)
    parameters = Parameters(setting, config.training)
    parameters.restore(state.version, resumed.tensors)
    clear_run(out, resumed=True, seen=resumed.seen)
    forget_later(out, resumed)
    record.model = parameters.current
    record.train.stopped_early = state.rounds < setting.rounds
    record.disturbances.append(resumed.disturbance)
    return setting, record


def forget_later(out: Path, resumed: Resumed) -> None:
    """Remove what was written after the state that a run goes on from."""
    folder = folder_of(out)
    last = checkpoint_name(resumed.state.rounds)
    for path in (*(path for path in checkpoints_in(folder) if path.name > last), *folder.glob("*.partial")):
        path.unlink()
    States(out).forget_after(resumed.state.rounds)
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
        otherwise = "come out otherwise than when the checkpoint was made: is it the same release of torch?"
        raise UserError(f"--resume: the batches of the first {resumed.state.rounds} rounds {otherwise}")


def _compare(config: RunConfig, state: State, path: Path) -> None:
    here = dict(flat(json.loads(config.model_dump_json())))
    there = dict(flat(state.config))
    # An attack changes no round; but one that begins in the middle has not seen the rounds before.
    without_attack = config.attack.name == "none"
    for key in sorted({*here, *there}):
        may_differ = key.endswith(_MAY_DIFFER) or (without_attack and key.startswith("attack."))
        if here.get(key) != there.get(key) and not may_differ:
            raise UserError(
                f"--resume: {key} is {json.dumps(here.get(key))} in the config and was {json.dumps(there.get(key))} "
                f"when {path} was made: take the config of then, or start without --resume"
            )


def _whole(folder: Path, config: RunConfig, setting: Setting, problems: list[str]) -> Transcript:
    """Return a run's transcript, its description written anew where that is damaged."""
    try:
        recorded = Transcript(folder)
    except UserError as error:
        problems.append(f"{error}; the checkpoint has what it said, and it is written anew")
        TranscriptWriter(folder, config, setting)
        recorded = Transcript(folder)
    return recorded


def _check(recorded: Transcript, seen: int, rounds: int, stopped: Callable[[], bool]) -> None:
    """See that the rounds which the attack will be shown are there as they were written."""
    if recorded.rounds < rounds:
        raise DamagedError(f"the transcript has {recorded.rounds} rounds of the {rounds} that were done by then")
    for _ in islice(recorded.after(seen), rounds - seen):  # each is checked as it is read
        if stopped():
            raise InterruptedRunError("stopped before the end")
