"""Keeps an attack's ledger: it sees the rounds that the attack is shown, and writes down what the recovery rests on."""

from dataclasses import replace

from attacker.interface import Attack, Progress
from vfl.observation import Observation
from vfl.recovery import Ledger, Recovery

KNOWN = ("indices", "parameters", "gradients", "labels", "learning rate")


class Witness:
    """An attack with a ledger."""

    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self._versions: dict[int, int] = {}

    def observe(self, observation: Observation) -> None:
        """Show the attack a round."""
        self._attack.observe(observation)
        self._versions[observation.round] = observation.version

    def recover(self, progress: Progress) -> Recovery:
        """Return the attack's estimate with its ledger."""
        recovery = self._attack.recover(progress)
        if not recovery.used:
            return recovery
        rounds = tuple(self._versions) if recovery.rounds is None else recovery.rounds
        ledger = Ledger(
            rounds=rounds,
            versions=len({self._versions[number] for number in rounds}),
            shown=len(self._versions),
            indices="indices" in recovery.used,
            parameters="parameters" in recovery.used,
            labels="labels" in recovery.used,
            learning_rate="learning rate" in recovery.used,
            other=tuple(what for what in recovery.used if what not in KNOWN),
        )
        return replace(recovery, ledger=ledger)
