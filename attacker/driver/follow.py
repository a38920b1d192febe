"""Shows an attack the rounds of a transcript, and keeps the ledger of what its recovery rests on."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from attacker.driver.estimates import Snapshots
from attacker.interface import Attack, Observation, Progress, Recovery
from vfl.recovery import Ledger

KNOWN = ("indices", "parameters", "gradients", "labels", "learning rate")


class Follower:
    """An attack that follows a transcript."""

    def __init__(self, attack: Attack, snapshots: Snapshots | None = None) -> None:
        self._attack, self._snapshots = attack, snapshots
        self._versions: dict[int, int] = {}
        """Of the parameters, by round."""

    def follow(self, rounds: Iterable[Observation]) -> Iterator[int]:
        """Show the attack one round after the other; yield the number of each that it is done with.

        Rounds that lack what the attack would need, because a worker withheld its upload, are passed over.
        """
        for observation in rounds:
            if observation.shown:
                self._attack.observe(observation)
                self._versions[observation.round] = observation.version
                if self._snapshots is not None:
                    self._snapshots.take(observation.round, self.recover)
            yield observation.round

    def recover(self, progress: Progress) -> Recovery:
        """Return the attack's estimate from the rounds so far, with its ledger."""
        recovery = self._attack.recover(progress)
        return replace(recovery, ledger=_ledger(recovery, self._versions)) if recovery.used else recovery


def _ledger(recovery: Recovery, versions: Mapping[int, int]) -> Ledger:
    rounds = tuple(versions) if recovery.rounds is None else recovery.rounds
    return Ledger(
        rounds=rounds,
        versions=len({versions[number] for number in rounds}),
        shown=len(versions),
        indices="indices" in recovery.used,
        parameters="parameters" in recovery.used,
        labels="labels" in recovery.used,
        learning_rate="learning rate" in recovery.used,
        other=tuple(what for what in recovery.used if what not in KNOWN),
    )
