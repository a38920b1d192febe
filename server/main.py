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

import grpc
import torch
from grpc_health.v1.health import aio as health

from attacker.interface import Attack, start_attack
from protos import alignment_pb2, alignment_pb2_grpc, coordinator_pb2
from protos.wire import add_coordinator
from server.aligning import AlignmentService
from server.aside import Aside, AttackProcess, needs_process
from server.checkpoint import Checkpoints
from server.controls import heed
from server.coordinator import Coordinator
from server.resume import Resumed, find_checkpoint, forget_later, show_again
from server.service import CoordinatorService
from server.watching import Observer
from vfl.allocator import keep_freed_memory
from vfl.config import RunConfig
from vfl.errors import CafeError, InterruptedRunError, UserError, in_words
from vfl.events import write_events
from vfl.forkserver import warm_up
from vfl.journal import Journal
from vfl.network import add_health, add_port, end_server, server_options, statuses
from vfl.observation import Observation, Setting
from vfl.pace import Pace
from vfl.recovery import Recovery
from vfl.results import PARTIAL, Record, clear_run, write_model, write_recovery, write_summary
from vfl.tls import Identity
from vfl.transcript import TranscriptWriter

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

    def start_attack(self, config: RunConfig, options: ServeOptions) -> Observer:
        """Start the attack for the setting, in a process if it is to look at rounds; return what shows it one."""
        assert self.setting is not None
        if not needs_process(config):
            self.attack = start_attack(config.attack, self.setting)
            return lambda _: None
        pipe = options.attack
        if pipe is None:
            self.process = AttackProcess()
            pipe = self.process.pipe
        self.attack = Aside(pipe, config, self.setting, options.out, self.record.queue, options.estimates)
        return self.attack.observe

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
    resumed = find_checkpoint(options.out, config, journal.say) if options.resume else None
    checkpoints = Checkpoints(options.out, config, resumed.state.rounds if resumed else 0)
    if needs_process(config) and options.attack is None:
        warm_up()
    try:
        asyncio.run(_federate(config, options, journal, on_address, on_joined, run, checkpoints, resumed))
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
    resumed: Resumed | None,
) -> None:
    coordinator = Coordinator(config, journal, checkpoints, options.rejoin_timeout, resumed)
    run.record = coordinator.record
    loop = asyncio.get_running_loop()
    for number in options.stop_signals:
        loop.add_signal_handler(number, coordinator.interrupt)
    if options.controls is not None:
        heed(options.controls, coordinator, options.stop_signals[0])
    server = await _start_server(config, coordinator, options, on_address)
    run.listening = True
    clear_run(options.out, resumed is not None)
    if resumed is not None:
        forget_later(options.out, resumed)
    reason: str | None = "the coordinator failed"
    comes_back = False
    try:
        run.setting = replace(await coordinator.gather(), labels=options.labels)
        journal.run(config.model_dump(mode="json"), run.setting.samples, run.setting.rounds)
        on_joined()
        show_attack = await asyncio.to_thread(run.start_attack, config, options)
        if resumed is not None and needs_process(config):
            await asyncio.to_thread(show_again, resumed, show_attack)
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
        comes_back = isinstance(error, InterruptedRunError) and options.workers_wait and checkpoints.last > 0
        raise
    finally:
        if comes_back:
            coordinator.vanish()
        else:
            await coordinator.end(reason)
        await end_server(server, grace=0.0 if comes_back else 1.0)


async def _start_server(
    config: RunConfig, coordinator: Coordinator, options: ServeOptions, on_address: Callable[[str], None]
) -> grpc.aio.Server:
    federation = config.federation
    server = grpc.aio.server(
        options=server_options(federation.parties, federation.silence_timeout),
        interceptors=[Pace(federation.round_timeout)],
    )
    add_coordinator(CoordinatorService(coordinator, options.tls is not None), server)
    names = [coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name]
    if config.aligns:
        aligning = AlignmentService(
            federation.workers, options.tls is not None, federation.join_timeout, lambda: bool(coordinator.run_id)
        )
        alignment_pb2_grpc.add_AlignmentServicer_to_server(aligning, server)
        names.append(alignment_pb2.DESCRIPTOR.services_by_name["Alignment"].full_name)
    checks = health.HealthServicer()
    add_health(server, checks, names)
    for name, status in statuses(names):
        await checks.set(name, status)
    port = add_port(server, options.listen, options.tls)
    await server.start()
    address = f"{options.listen.rpartition(':')[0]}:{port}"
    on_address(address)
    if options.label_holder is not None:
        loop = asyncio.get_running_loop()

        def fail(error: CafeError) -> None:
            with contextlib.suppress(RuntimeError):  # the rounds are over, and nobody listens any more
                loop.call_soon_threadsafe(coordinator.give_up, error)

        options.label_holder(address, fail)
    return server
