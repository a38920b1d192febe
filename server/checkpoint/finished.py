"""A run whose rounds are all in its checkpoint: its workers are gone, and only its attack and results are left."""

import time
from pathlib import Path

from server.checkpoint import State
from server.checkpoint.resume import Resumed, forget_later
from server.evaluation import has_converged
from server.parameters import Parameters
from vfl.config import RunConfig
from vfl.folder import clear_run
from vfl.folder.record import Record
from vfl.folder.summary import Disturbance
from vfl.observation import Setting


def is_finished(config: RunConfig, state: State) -> bool:
    """Tell whether nothing is left for the workers to do: no round, and no evaluation."""
    known, record = state.known, state.continued()
    if known.tested and record.last_evaluation is None:
        return False
    return state.rounds >= _planned(config, state) or (record.last_evaluation is not None and _stopped(config, record))


def take_up(config: RunConfig, resumed: Resumed, labels: tuple[int, ...] | None, out: Path) -> tuple[Setting, Record]:
    """Return the setting and the record of a finished run, and clear its folder for the results."""
    state, record = resumed.state, resumed.state.continued()
    setting = state.setting(config, labels)
    parameters = Parameters(setting, config.training)
    parameters.restore(state.version, resumed.tensors)
    clear_run(out, resumed=True)
    forget_later(out, resumed)
    record.model = parameters.current
    record.train.stopped_early = state.rounds < _planned(config, state)
    reason = f"the coordinator was resumed from its checkpoint of round {state.rounds}"
    record.disturbances.append(
        Disturbance(round=state.rounds + 1, reasons=[reason], seconds=time.time() - state.at, redone=resumed.redone)
    )
    return setting, record


def _planned(config: RunConfig, state: State) -> int:
    return config.federation.planned_rounds(max(state.known.shares, default=state.known.samples))


def _stopped(config: RunConfig, record: Record) -> bool:
    every = config.training.evaluate_every
    return every is not None and record.rounds % every == 0 and has_converged(config, record)
