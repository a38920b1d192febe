"""A curious worker or label holder: its rounds are recorded in its own process, and its attack follows them."""

import contextlib
from collections.abc import Iterator
from math import nan
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attacker.driver.conclude import Attacked, attacked, conclude
from attacker.driver.remote import RemoteAttack
from attacker.interface import Progress, Proposal, Recovery
from vfl.config import RunConfig
from vfl.errors import in_words
from vfl.folder import held, make_way, transcript_of
from vfl.folder.journal import Journal
from vfl.folder.record import Record
from vfl.folder.transcript import TranscriptWriter
from vfl.observation import LabelHolderObservation, Setting, WorkerObservation


class CuriousParty:
    """Looks on at one party; `out` is the run's folder, or the party's own if the coordinator's is elsewhere."""

    def __init__(
        self,
        config: RunConfig,
        party: int,
        out: Path,
        *,
        pipe: Connection | None = None,
        estimates: bool = False,
        alone: bool = False,
    ) -> None:
        """Prepare, with a `pipe` to the attack's process if there is one; `alone` in its folder it clears that."""
        self._journal = Journal(out) if alone else None
        """Of its own folder; in the run's folder the coordinator writes the journal until the attack's turn comes."""
        self.config, self.out, self._party, self._estimates = config, out, party, estimates
        self._attack = RemoteAttack(config, out, pipe) if config.attacks_at(party) else None
        self._recorder: TranscriptWriter | None = None
        self.setting: Setting | None = None
        """What the party knows; None until the run starts."""

    @property
    def transcript(self) -> Path | None:
        """Return where its rounds are kept, None if they are not."""
        return transcript_of(self.out, self.config, self._party) if self.config.records else None

    def begin(self, setting: Setting) -> None:
        """Start the attack, which may refuse."""
        self.setting = setting
        if self._journal is not None:
            moved = make_way(self.out, self.config)
            self._journal.run(self.config, setting.samples, setting.rounds)
            if moved:
                self._journal.say(moved)
            for worker in range(self.config.federation.workers):
                self._journal.worker(worker, "joined")  # else no run would begin
            self._journal.state("running")
        if self._attack is not None:
            self._attack.start(setting, estimates=self._estimates)
        if self.transcript is not None:
            self._recorder = TranscriptWriter(self.transcript, self.config, setting)

    def observe(self, observation: WorkerObservation | LabelHolderObservation) -> None:
        """Record a round, if the transcript is kept, and show it to the attack."""
        if self._recorder is not None:
            self._recorder.observe(observation)
        if self._attack is not None:
            self._attack.observe(observation)
        if self._journal is not None and self.setting is not None:
            self._journal.round(observation.round, self.setting.rounds, loss=nan, rate=nan, traffic=_not_seen)

    def propose(self, number: int) -> Proposal | None:
        """Ask the attack of a malicious party what to send in a round that it was shown."""
        return None if self._attack is None else self._attack.propose(number)

    @property
    def attacks(self) -> bool:
        """Whether an attack follows this party alone."""
        return self._attack is not None

    def recover(self, progress: Progress) -> Recovery:
        """Wait for the attack's estimate."""
        return Recovery(used=()) if self._attack is None else self._attack.recover(progress)

    def attacked(self) -> Attacked:
        """Let the attack recover in the run's folder, and return what it adds to the summary."""
        assert self.setting is not None
        journal = Journal(self.out)
        try:
            return attacked(self.recover, self.config, self.setting, self.out, journal=journal)
        finally:
            journal.close()

    def conclude(self, rounds: int) -> None:
        """Let the attack recover, and write the party's own folder as a run's."""
        assert self.setting is not None
        assert self._journal is not None
        record = Record(rounds=rounds)
        record.train.stopped_early = rounds < self.setting.rounds
        conclude(self.recover, record, config=self.config, setting=self.setting, out=self.out, journal=self._journal)

    def fail(self, error: Exception) -> None:
        """Say in its own folder why the party's run ended early."""
        if self._journal is not None and self.setting is not None:
            self._journal.state("ended", str(in_words(error)))

    def close(self) -> None:
        """Leave nothing of the attack behind."""
        if self._journal is not None:
            self._journal.close()
        if self._attack is not None:
            self._attack.close()


@contextlib.contextmanager
def curious_party(
    config: RunConfig,
    party: int,
    out: Path | None,
    *,
    pipe: Connection | None = None,
    estimates: bool = False,
    alone: bool = False,
) -> Iterator[CuriousParty | None]:
    """Give a party that the config calls curious its onlooker, for as long as the block lasts; None to all others."""
    if out is None or config.curious_seat(party) is None:
        yield None
        return
    with held(out) if alone else contextlib.nullcontext():  # else the run's launcher or coordinator has it
        onlooker = CuriousParty(config, party, out, pipe=pipe, estimates=estimates, alone=alone)
        try:
            yield onlooker
        except Exception as error:
            onlooker.fail(error)
            raise
        finally:
            onlooker.close()


def _not_seen() -> dict[str, Any]:
    """Return the traffic of a federation as a worker knows it."""
    return {"bytes": {}, "workers": []}
