"""The coordinator's life: gather the workers, conduct the rounds, let the attack recover, write the results."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from attacker.driver.conclude import STOP_SIGNALS, conclude, stoppable
from attacker.driver.remote import RemoteAttack
from attacker.interface import Progress, Recovery
from attacker.seating import Seating
from server.checkpoint import Checkpoints, State
from server.checkpoint.resume import Resumed, find_checkpoint, forget_later, is_finished, look_ahead, take_up
from server.controls import heed
from server.service import serve_workers
from server.session import Session
from server.trainer import Trainer
from vfl.config import RunConfig
from vfl.device import keep_freed_memory
from vfl.errors import CafeError, InterruptedRunError, in_words
from vfl.files.lock import FolderLock
from vfl.folder import clear_run, held, holds_run, make_way, transcript_of
from vfl.folder.events import write_events
from vfl.folder.journal import Journal, StartingJournal
from vfl.folder.record import Record, write_model, write_summary
from vfl.folder.transcript import TranscriptWriter
from vfl.forkserver import warm_up
from vfl.net.services import end_server
from vfl.net.tls import Identity
from vfl.observation import Observation, Setting


@dataclass(frozen=True)
class ServeOptions:
    """How the coordinator is started: where it listens, where the results go."""

    out: Path
    listen: str = "127.0.0.1:0"
    threads: int | None = None
    stop_signals: tuple[signal.Signals, ...] = STOP_SIGNALS
    attack: Connection | None = None
    """To the attack's process, if that was started before the coordinator."""
    tls: Identity | None = None
    """What it proves itself with; plain text without."""
    rejoin_timeout: float = 0.0
    """How long a worker that was lost is waited for, in seconds."""
    estimates: bool = False
    """Whether the user wants to see the attack's unfinished estimates."""
    resume: bool = False
    """Whether to go on from the last checkpoint in `out`."""
    fresh: bool = False
    """Whether what an earlier run left in `out` may be thrown away."""
    lock: FolderLock | None = None
    """On `out`, if it was taken before the coordinator was started."""
    workers_wait: bool = False
    """Whether workers outlive a coordinator that is stopped, and wait for it to be resumed."""
    controls: Connection | None = None
    """Where the user's live page says pause, resume or stop."""
    labels: tuple[int, ...] | None = None
    """Every sample's label, if the coordinator has them: an attack then knows them too."""
    label_holder: Callable[[str, Callable[[CafeError], None]], None] | None = None
    """Starts the coordinator's own label holder, given the coordinator's address and what to call if it fails."""


def serve(
    config: RunConfig,
    options: ServeOptions,
    on_address: Callable[[str], None],
    on_joined: Callable[[], None] = lambda: None,
) -> None:
    """Conduct a run to its end and write its folder; what was done by then is kept when it fails."""
    if options.lock is None:
        with held(options.out, resume=options.resume, fresh=options.fresh) as lock:
            return serve(config, replace(options, lock=lock), on_address, on_joined)
    keep_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    journal = Journal(options.out) if options.resume else StartingJournal(options.out)
    ahead = look_ahead(options.out, config) if options.resume else None
    checkpoints = Checkpoints(options.out, config, ahead.rounds if ahead else 0)
    run = _Run(config, options, journal, checkpoints)
    try:
        finished = run.find_finished(ahead)
        if finished is not None:
            run.go_on_without_workers(finished)
        else:
            asyncio.run(_federate(run, ahead, on_address, on_joined))
        run.conclude()
    except Exception as error:
        run.write_down(error)
        raise
    finally:
        run.close()


@dataclass
class _Run:
    """A run at the coordinator, and what becomes known of it on the way."""

    config: RunConfig
    options: ServeOptions
    journal: Journal
    checkpoints: Checkpoints
    record: Record = field(default_factory=Record)
    setting: Setting | None = None
    attack: RemoteAttack | None = None
    """None if the config names none that looks at rounds."""
    recorder: TranscriptWriter | None = None
    folder_is_ours: bool = False
    """Whether the results that are in the folder are this run's."""

    def __post_init__(self) -> None:
        if self.config.attacks_at(None):
            self.attack = RemoteAttack(self.config, self.options.out, self.options.attack)
            if self.options.attack is None:
                warm_up()

    def find_finished(self, ahead: State | None) -> Resumed | None:
        """Return the checkpoint of a run whose rounds are all done: no worker waits for a coordinator that listens."""
        if ahead is None or not is_finished(self.config, ahead):
            return None
        with stoppable(self.options.stop_signals):
            found = find_checkpoint(self.options.out, self.config, self.journal.say, labels=self.options.labels)
        return found if is_finished(self.config, found.state) else None

    def go_on_without_workers(self, resumed: Resumed) -> None:
        """Bring a run whose rounds are all done to where its attack is to recover."""
        self.journal.say("all rounds are done, and the workers may be gone: on with the attack")
        setting, self.record = take_up(self.config, resumed, self.options.labels, self.options.out)
        self.folder_is_ours = True
        self.begin(setting)
        with stoppable(self.options.stop_signals):
            self.start_attack(resumed)
        write_model(self.options.out, self.record.model)

    def take_folder(self, resumed: Resumed | None) -> None:
        """Make the folder this run's."""
        self.folder_is_ours, moved = True, ""
        if resumed is not None:
            clear_run(self.options.out, resumed=True, seen=resumed.seen)
        else:
            moved = make_way(self.options.out, self.config, fresh=self.options.fresh)
        if isinstance(self.journal, StartingJournal):
            self.journal.take_place()
        if moved:
            self.journal.say(moved)

    def begin(self, setting: Setting) -> None:
        """Take note of the setting, which is known when all workers have joined."""
        self.setting = setting
        self.journal.run(self.config, setting.samples, setting.rounds)

    def start_attack(self, resumed: Resumed | None) -> None:
        """Start the attack; of a run that is resumed it reads the rounds in the transcript first."""
        if self.attack is not None:
            assert self.setting is not None
            self.record.queue = self.attack.queue
            rounds = resumed.state.rounds if resumed is not None else 0
            self.attack.start(self.setting, rounds=rounds, estimates=self.options.estimates)
        elif (
            len(self.config.seats) > 1
        ):  # a coalition's attack reads transcripts after the last round: too late to hear
            Seating.of(self.config.attack, self.config.seats)

    def observe(self, observation: Observation) -> None:
        """Record a round, if the transcript is kept, and show it to the attack."""
        if self.recorder is not None:
            self.recorder.observe(observation)
        if self.attack is not None:
            self.attack.observe(observation)

    def conclude(self) -> None:
        """Let the attack recover, and write the results."""
        assert self.setting is not None
        conclude(
            _played_elsewhere(self.config) if self.attack is None else self.attack.recover,
            self.record,
            config=self.config,
            setting=self.setting,
            out=self.options.out,
            journal=self.journal,
            stop_signals=self.options.stop_signals,
        )

    def write_down(self, error: Exception) -> None:
        """Write what there is of a run that failed, and why it did."""
        if not self.folder_is_ours:
            return
        out, ended = self.options.out, str(in_words(error))
        with contextlib.suppress(OSError):  # what cannot be written must not hide why the run failed
            write_summary(out, self.config, self.setting, self.record, ended=ended)
            write_model(out, self.record.model)
            write_events(out, self.record)
        if self.checkpoints.last:
            self.journal.say(f"with --resume the run goes on after round {self.checkpoints.last}")
        self.journal.state("ended", ended)

    def close(self) -> None:
        """Leave nothing of the attack behind."""
        if self.attack is not None:
            self.attack.close()
        self.journal.close()


def _played_elsewhere(config: RunConfig) -> Callable[[Progress], Recovery]:
    """Return what the coordinator has of an attack that another party plays: that there is one."""
    recovery = Recovery(used=(), elsewhere=config.attack.name != "none")
    return lambda _progress: recovery


async def _federate(
    run: _Run, ahead: State | None, on_address: Callable[[str], None], on_joined: Callable[[], None]
) -> None:
    """Conduct the rounds; workers that outlive this coordinator are left waiting if the run can be resumed."""
    options = run.options
    generations = None if ahead is None else ahead.generations
    session = Session(run.config, run.journal, patience=options.rejoin_timeout, generations=generations)
    loop = asyncio.get_running_loop()
    for number in options.stop_signals:
        loop.add_signal_handler(number, session.failure.interrupt)
    if options.controls is not None:
        heed(options.controls, session.pause, options.stop_signals[0])
    server, address = await serve_workers(run.config, session, options.listen, options.tls)
    on_address(address)
    if options.label_holder is not None:
        options.label_holder(address, partial(_give_up, loop, session))
    reason: str | None = "the coordinator failed"
    workers_wait = ahead is not None and options.workers_wait  # whatever is wrong with the folder
    try:
        resumed = await _take_up(run, session, ahead)
        workers_wait = False
        await _conduct(run, session, resumed, on_joined)
        reason = None
    except (CafeError, OSError) as error:
        reason = str(in_words(error))
        stopped = isinstance(error, InterruptedRunError) and run.checkpoints.last > 0
        workers_wait = workers_wait or (stopped and options.workers_wait)
        if run.attack is not None:
            run.attack.cut()  # a thread may wait for it, and would keep this process
        raise
    finally:
        if workers_wait:
            session.vanish()
        else:
            await session.end(reason)
        await end_server(server, grace=0.0 if workers_wait else 1.0)


async def _take_up(run: _Run, session: Session, ahead: State | None) -> Resumed | None:
    """Take up where a run that is resumed was, while the workers come back; results of another stay for now."""
    out, resumed = run.options.out, None
    if ahead is not None:
        loop = asyncio.get_running_loop()
        find = partial(
            find_checkpoint,
            out,
            run.config,
            lambda text: loop.call_soon_threadsafe(run.journal.say, text),
            labels=run.options.labels,
            stopped=lambda: session.failure.failed,
        )
        resumed = await session.failure.for_thread(find)
        session.take_up(resumed)
        run.checkpoints.last = resumed.state.rounds
    run.record = session.record
    if resumed is not None or not holds_run(out):
        run.take_folder(resumed)
    if resumed is not None:
        forget_later(out, resumed)
    return resumed


async def _conduct(run: _Run, session: Session, resumed: Resumed | None, on_joined: Callable[[], None]) -> None:
    """Gather the workers, start the attack, conduct the rounds."""
    setting = replace(await session.gather(), labels=run.options.labels)
    run.begin(setting)
    on_joined()
    await session.failure.for_thread(run.start_attack, resumed)
    if not run.folder_is_ours:  # only now: workers may not have come, and the attack may have been refused
        run.take_folder(None)
    if run.config.records and run.config.curious_seat(None) is not None:
        run.recorder = TranscriptWriter(transcript_of(run.options.out, run.config, None), run.config, setting)
        run.checkpoints.before = run.recorder.sync
    propose = None if run.attack is None else run.attack.propose
    trainer = Trainer(run.config, setting, session, run.checkpoints, journal=run.journal, propose=propose)
    await trainer.train(run.observe)
    write_model(run.options.out, run.record.model)


def _give_up(loop: asyncio.AbstractEventLoop, session: Session, error: CafeError) -> None:
    """End the run because the coordinator's own label holder failed, as its thread says."""
    with contextlib.suppress(RuntimeError):  # the rounds are over, and the loop has ended
        loop.call_soon_threadsafe(session.failure.fail, error)
