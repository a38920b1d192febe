"""An attack is played from the seats that it names: shown what they see, and refused where they are not taken."""

import pytest

from attacker.interface import Recovery, attacks
from attacker.seating import Seating
from attacker.start import start_attack
from tests.support import setting_of, small_config
from vfl.errors import UserError
from vfl.observation import CoalitionObservation
from vfl.registry import PluginSection
from vfl.seats import COORDINATOR, Seat, adversary_of

WORKER, HOLDER = Seat("worker", 1), Seat("label_holder", 0)


@pytest.mark.parametrize(
    ("able", "seats", "places"),
    [
        ([{"worker"}], (WORKER,), (0,)),
        ([{"worker"}], (COORDINATOR, WORKER), (1,)),
        ([{"coordinator", "label_holder"}], (HOLDER, WORKER, COORDINATOR), (0, 2)),
        ([{"coordinator", "label_holder"}, {"label_holder"}], (HOLDER, WORKER), (0,)),
    ],
)
def test_the_first_way_that_the_adversary_allows_is_taken(able, seats, places):
    assert Seating.choose("one", able, seats) == Seating(places)


SEATS = (COORDINATOR, HOLDER, WORKER)
MISPLACED = [
    (name, seat)
    for name in attacks.builtin_names()
    for seat in SEATS
    if not any({seat.kind} >= set(way) for way in attacks.find(name).seats)
]


@pytest.mark.parametrize(("name", "seat"), MISPLACED)
def test_an_attack_that_cannot_be_played_from_a_seat_says_which_it_needs_and_what_can(name, seat):
    config = small_config(adversary=(adversary_of([seat]),))
    setting = setting_of(config).seen_by(config)
    with pytest.raises(UserError) as refused:
        start_attack(PluginSection(name=name), setting)
    assert f"attack {name} cannot run here: it needs" in str(refused.value)
    assert "seat" in str(refused.value)
    assert f"the adversary is {seat} (adversary)" in str(refused.value)
    assert "That says nothing about safety" in str(refused.value)


def test_a_coalition_shows_an_attack_the_part_that_it_needs():
    parts = ("the coordinator's", "the worker's")
    whole = CoalitionObservation(parts)
    assert Seating((1,)).sees(whole) == "the worker's"
    assert Seating((0, 1)).sees(whole) == whole
    assert Seating((0,)).sees("alone") == "alone"


def test_the_attack_that_does_nothing_can_be_played_from_anywhere():
    config = small_config(adversary={"worker": 1})
    attack = start_attack(PluginSection(name="none"), setting_of(config).seen_by(config))
    assert attack.recover(lambda *_: None) == Recovery(used=())
