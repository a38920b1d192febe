"""From which of the adversary's seats an attack is played, and what it is then shown."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from attacker.interface import attacks
from attacker.refusal import Lack, RefusalError
from vfl.observation import AnyObservation, CoalitionObservation, Setting
from vfl.registry import PluginSection
from vfl.seats import Seat, SeatKind, adversary_of, names_of_seats

_SEATS: dict[SeatKind, str] = {
    "coordinator": "the coordinator's seat",
    "label_holder": "the label holder's seat",
    "worker": "a worker's seat",
}
_ORDERS: dict[SeatKind, str] = {
    "coordinator": "a coordinator that orders what it proposes (adversary: {coordinator: malicious})",
    "label_holder": "a label holder that answers what it proposes (adversary: {label_holder: malicious})",
    "worker": "a worker that uploads what it proposes (adversary: {worker: 1, malicious: true})",
}


@dataclass(frozen=True)
class Seating:
    """The seats that an attack is played from, as places among those of the adversary."""

    places: tuple[int, ...]

    @classmethod
    def choose(
        cls, attack: str, able: Sequence[Collection[SeatKind]], seats: Sequence[Seat], *, active: bool = False
    ) -> "Seating":
        """Take the first of the attack's ways to be played that the adversary's seats allow, or refuse.

        An `active` one is for a malicious adversary, and all but `none` of the others for one that is not.
        """
        kinds = [seat.kind for seat in seats]
        for wanted in able:
            if set(wanted) <= set(kinds):
                _check_will(attack, seats, active=active)
                return cls(tuple(sorted(kinds.index(kind) for kind in wanted)))
        ways = " or ".join(" together with ".join(_SEATS[kind] for kind in sorted(wanted)) for wanted in able)
        raise RefusalError(attack, Lack(ways, f"the adversary is {names_of_seats(seats)} (adversary)"))

    @classmethod
    def of(cls, section: PluginSection, seats: Sequence[Seat]) -> "Seating":
        """Seat the attack that a config names, or refuse."""
        plugin = attacks.build(section)
        return cls.choose(section.name, plugin.seats, seats, active=plugin.active)

    def knows(self, setting: Setting) -> Setting:
        """Return the setting of the attack: what all curious parties know, and the seats that it is played from."""
        return replace(setting, seats=tuple(setting.seats[place] for place in self.places))

    def sees(self, observation: AnyObservation) -> AnyObservation:
        """Return a round as it is seen from these seats."""
        if not isinstance(observation, CoalitionObservation):
            return observation
        parts = tuple(observation.parts[place] for place in self.places)
        return parts[0] if len(parts) == 1 else CoalitionObservation(parts)


def _check_will(attack: str, seats: Sequence[Seat], *, active: bool) -> None:
    """Refuse an active attack of an adversary that follows the protocol, and the others of one that does not."""
    is_malicious = any(seat.malicious for seat in seats)
    if active and not is_malicious:
        raise RefusalError(
            attack,
            Lack(_ORDERS[seats[0].kind], f"the adversary is {names_of_seats(seats)}, which follows the protocol"),
        )
    if is_malicious and not active and attack != "none":
        looks = f"no more than to look on (adversary: {adversary_of([replace(seats[0], malicious=False)])})"
        raise RefusalError(attack, Lack(looks, f"the adversary is {names_of_seats(seats)}"))
