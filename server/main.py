"""The coordinator's life: gather the workers, conduct the rounds, let the attack recover, write the results."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import torch

from attacker.interface import Attack
from attacker.start import start_attack
from server.aside import Aside, AttackProcess, cut, needs_process
from server.checkpoint import Checkpoints, State
from server.checkpoint.finished import is_finished, take_up
from server.checkpoint.resume import Resumed, find_checkpoint, forget_later, look_ahead, show_again
from server.controls import heed
from server.coordinator import Coordinator
from server.service import serve_workers
from server.watching import Observer
from vfl.config import RunConfig
from vfl.device import keep_freed_memory
from vfl.errors import CafeError, InterruptedRunError, UserError, in_words
from vfl.folder.events import write_events
from vfl.folder.journal import Journal
from vfl.folder.results import PARTIAL, Record, clear_run, write_model, write_recovery, write_summary
from vfl.folder.transcript import TranscriptWriter
from vfl.forkserver import warm_up
from vfl.net.services import end_server
from vfl.net.tls import Identity
from vfl.observation import Observation, Setting
from vfl.recovery import Recovery

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What a person sends to stop a coordinator; `cafe run` passes Ctrl-C on as SIGTERM."""


@dataclass(frozen=True)
class ServeOptions:
    """How the coordinator is started: where it listens, where the results go."""

    out: Path
    listen: str = "127.0.0.1:0"
    threads: int | None = None
    stop_signals: tuple[signal.Signals, ...] = STOP_SIGNALS
    attack: Connection | None = None
    """To the attack's process, if whoever starts the coordinator has started that too."""
    tls: Identity | None = None
    """What it proves itself with; plain text without."""
    rejoin_timeout: float = 0.0
    """How long a worker that was lost is waited for, in seconds."""
    estimates: bool = False
    """Whether somebody wants to see the attack's unfinished estimates."""
    resume: bool = False
    """Whether to go on from the last checkpoint in `out`."""
    workers_wait: bool = False
    """Whether workers outlive a coordinator that is stopped, and wait for it to be resumed."""
    controls: Connection | None = None
    """Where whoever watches says pause, resume or stop."""
    labels: tuple[int, ...] | None = None
    """Every sample's label, if the coordinator has them: an attack then knows them too."""
    label_holder: Callable[[str, Callable[[CafeError], None]], None] | None = None
    """Starts the coordinator's own label holder, given our address and how to tell that it failed."""


@dataclass
class _Run:
    """What becomes known as the run goes on."""

    record: Record
    listening: bool = False
    setting: Setting | None = None
    attack: Attack | None = None
    process: AttackProcess | None = None
    pipe: Connection | None = None
    cut_off: bool = False

    def start_attack(self, config: RunConfig, options: ServeOptions) -> Observer:
        """Start the attack for the setting, in a process if it is to look at rounds; return what shows it one."""
        assert self.setting is not None
        if not needs_process(config):
            self.attack = start_attack(config.attack, self.setting)
            return lambda _: None
        if options.attack is None:
            self.process = AttackProcess()
        self.pipe = pipe = self.process.pipe if self.process else options.attack
        assert pipe is not None
        if self.cut_off:
            raise InterruptedRunError("stopped before the end")
        self.attack = Aside(pipe, config, self.setting, options.out, self.record.queue, options.estimates)
        return self.attack.observe

    def cut_attack(self) -> None:
        """Let nobody wait for the attack any more."""
        self.cut_off = True
        if self.pipe is not None:
            cut(self.pipe)

    def end_attack(self, out: Path) -> None:
        """Leave nothing of the attack behind."""
        if isinstance(self.attack, Aside):
            self.attack.close()
            (out / PARTIAL).unlink(missing_ok=True)
        if self.process is not None:
            self.process.end()


def serve(
    config: RunConfig,
    options: ServeOptions,
    on_address: Callable[[str], None],
    on_joined: Callable[[], None] = lambda: None,
) -> None:
    """Conduct a run to its end and write its folder; what was done by then is kept when it fails."""
    keep_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    run = _Run(Record())
    journal = Journal(options.out)
    ahead = look_ahead(options.out, config) if options.resume else None
    checkpoints = Checkpoints(options.out, config, ahead.rounds if ahead else 0)
    if needs_process(config) and options.attack is None:
        warm_up()
    try:
        resumed = None
        if ahead is not None and is_finished(config, ahead):  # and nobody waits for a coordinator that listens
            with _stoppable(options.stop_signals):
                resumed = find_checkpoint(options.out, config, journal.say, options.labels)
        if resumed is not None and is_finished(config, resumed.state):
            _go_on_without_workers(config, options, journal, run, resumed)
        else:
            asyncio.run(_federate(config, options, journal, on_address, on_joined, run, checkpoints, ahead))
        assert run.setting is not None
        assert run.attack is not None
        recover(config, run.setting, run.attack, run.record, options.out, journal, options.stop_signals)
    except Exception as error:
        if run.listening:
            ended = str(in_words(error))
            with contextlib.suppress(OSError):  # what cannot be written must not hide why the run failed
                write_summary(options.out, config, run.setting, run.record, None, ended=ended)
                write_model(options.out, run.record.model)
                write_events(options.out, run.record)
            if checkpoints.last:
                journal.say(f"with --resume the run goes on after round {checkpoints.last}")
            journal.state("ended", ended)
        raise
    finally:
        run.end_attack(options.out)
        journal.close()


def _go_on_without_workers(
    config: RunConfig, options: ServeOptions, journal: Journal, run: _Run, resumed: Resumed
) -> None:
    """Bring a run whose rounds are all done to where its attack is to recover."""
    journal.say("all rounds are done, and the workers may be gone: on with the attack")
    run.setting, run.record = take_up(config, resumed, options.labels, options.out)
    run.listening = True
    journal.run(config.model_dump(mode="json"), run.setting.samples, run.setting.rounds)
    with _stoppable(options.stop_signals):
        show_attack = run.start_attack(config, options)
        if needs_process(config):
            show_again(resumed, show_attack)
    write_model(options.out, run.record.model)


def recover(
    config: RunConfig,
    setting: Setting,
    attack: Attack,
    record: Record,
    out: Path,
    journal: Journal,
    stop_signals: tuple[signal.Signals, ...] = STOP_SIGNALS,
) -> None:
    """Let the attack make its estimate and write it down."""
    began = time.monotonic()
    journal.state("attacking")
    try:
        with _stoppable(stop_signals):
            recovery = attack.recover(journal.step)
    except UserError as error:
        if not record.withheld and not record.stopped_early:
            raise
        recovery = Recovery(used=(), notes=(f"The attack had too few rounds: {error}",))
    if recovery.slices is not None or recovery.representations is not None:
        write_recovery(out, setting, recovery)
    write_summary(out, config, setting, record, recovery, time.monotonic() - began)
    write_events(out, record)


@contextlib.contextmanager
def _stoppable(signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Let the first signal end the block with a sentence; further ones do not disturb what is written down then."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)
        raise InterruptedRunError("stopped before the end")

    before = {one: signal.signal(one, stop) for one in signals}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


async def _federate(
    config: RunConfig,
    options: ServeOptions,
    journal: Journal,
    on_address: Callable[[str], None],
    on_joined: Callable[[], None],
    run: _Run,
    checkpoints: Checkpoints,
    ahead: State | None,
) -> None:
    generations = None if ahead is None else ahead.generations
    coordinator = Coordinator(config, journal, checkpoints, options.rejoin_timeout, generations)
    loop = asyncio.get_running_loop()
    for number in options.stop_signals:
        loop.add_signal_handler(number, coordinator.interrupt)
    if options.controls is not None:
        heed(options.controls, coordinator, options.stop_signals[0])
    server, address = await serve_workers(config, coordinator, options.listen, options.tls)
    on_address(address)
    _start_label_holder(coordinator, address, options)
    reason: str | None = "the coordinator failed"
    comes_back = ahead is not None and options.workers_wait  # whatever is wrong with the folder
    resumed = None
    try:
        if ahead is not None:  # the workers come back while the rounds before are read

            def say(text: str) -> None:
                loop.call_soon_threadsafe(journal.say, text)

            about = (options.out, config, say, options.labels, lambda: coordinator.waiting.failed)
            resumed = await coordinator.waiting.for_thread(find_checkpoint, *about)
            coordinator.take_up(resumed)
            checkpoints.last = resumed.state.rounds
        run.record, run.listening = coordinator.record, True
        clear_run(options.out, resumed is not None)
        if resumed is not None:
            forget_later(options.out, resumed)
        comes_back = False
        run.setting = replace(await coordinator.gather(), labels=options.labels)
        journal.run(config.model_dump(mode="json"), run.setting.samples, run.setting.rounds)
        on_joined()
        show_attack = await coordinator.waiting.for_thread(run.start_attack, config, options)
        if resumed is not None and needs_process(config):
            await coordinator.waiting.for_thread(show_again, resumed, show_attack)
        recorder = TranscriptWriter(options.out / "transcript", config, run.setting) if config.records else None
        if recorder is not None:
            checkpoints.before = recorder.sync

        def observe(observation: Observation) -> None:
            if recorder is not None:
                recorder.observe(observation)
            if observation.shown:
                show_attack(observation)

        await coordinator.conduct(run.setting, observe)
        write_model(options.out, run.record.model)
        reason = None
    except (CafeError, OSError) as error:
        reason = str(in_words(error))
        stopped = isinstance(error, InterruptedRunError) and options.workers_wait and checkpoints.last > 0
        comes_back = comes_back or stopped
        run.cut_attack()  # a thread of ours may wait for it, and would keep this process
        raise
    finally:
        if comes_back:
            coordinator.vanish()
        else:
            await coordinator.end(reason)
        await end_server(server, grace=0.0 if comes_back else 1.0)


def _start_label_holder(coordinator: Coordinator, address: str, options: ServeOptions) -> None:
    """Start the label holder that is the coordinator's own, if there is one."""
    loop = asyncio.get_running_loop()

    def fail(error: CafeError) -> None:
        with contextlib.suppress(RuntimeError):  # the rounds are over, and nobody listens any more
            loop.call_soon_threadsafe(coordinator.give_up, error)

    if options.label_holder is not None:
        options.label_holder(address, fail)
