"""Who is curious: what a config may say, and what each seat knows before the first round."""

import pickle

import pytest
import torch

from tests.support import setting_of, small_config
from vfl.errors import UserError
from vfl.models.whole import first_model
from vfl.observation import Held, Setting
from vfl.partition import Box
from vfl.seats import COORDINATOR, Seat, adversary_of, names_of_seats

WORKER, HOLDER = Seat("worker", 2), Seat("label_holder", 0)


@pytest.mark.parametrize(
    ("said", "seats", "words"),
    [
        ("coordinator", (COORDINATOR,), "the coordinator"),
        ("label_holder", (HOLDER,), "the label holder"),
        ({"worker": 2}, (WORKER,), "worker 2"),
        ({"label_holder": "malicious"}, (HOLDER,), "the malicious label holder"),
        ({"worker": 2, "malicious": True}, (WORKER,), "malicious worker 2"),
        (["coordinator", "label_holder"], (COORDINATOR, HOLDER), "the coordinator and the label holder"),
    ],
)
def test_a_config_names_one_seat_or_several_and_is_written_as_it_was_read(said, seats, words):
    config = small_config(adversary=said) if isinstance(said, dict) else small_config().model_copy()
    tree = config.model_dump(mode="json") | {"adversary": said}
    config = type(config).model_validate(tree)
    assert config.seats == seats
    assert config.is_malicious == ("malicious" in words)
    assert config.model_dump(mode="json")["adversary"] == said == adversary_of(config.seats)
    assert names_of_seats(config.seats) == words


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"adversary": {"worker": 0}}, "adversary names worker 0, which is the label holder; say label_holder"),
        ({"adversary": {"worker": 4}}, "adversary names worker 4, but the workers are 0 to 3"),
        ({"adversary": ("label_holder", "label_holder")}, "adversary names the label holder twice"),
        ({"adversary": ({"label_holder": "malicious"}, "coordinator")}, "a malicious party acts alone"),
        ({"adversary": {"worker": 0, "malicious": True}}, "adversary names worker 0, which is the label holder"),
        ({"adversary": "everybody"}, "adversary: input should be 'coordinator' or 'label_holder'"),
        (
            {"adversary": "label_holder", "federation": {"label_holder": "coordinator"}},
            "here the coordinator holds the labels itself",
        ),
        ({"adversary": ({"worker": 1},), "federation": {"kind": "horizontal"}}, "horizontal federation"),
        ({"adversary": ({"worker": 1},), "federation": {"checkpoint_every": 2}}, "cannot be resumed"),
    ],
)
def test_an_adversary_that_cannot_be_is_refused_with_a_sentence(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        small_config(**changes)


def test_a_worker_knows_its_own_slice_and_neither_the_seed_nor_the_first_parameters_of_others():
    config = small_config(adversary={"worker": 2})
    known, coordinators = setting_of(config).seen_by(config), setting_of(config)
    assert known.seats == (WORKER,)
    assert known.boxes == coordinators.boxes  # a grid of the image follows from the config
    assert known.seed != coordinators.seed
    own, real = first_model(known), first_model(coordinators)
    assert not torch.equal(own.top.fc.weight, real.top.fc.weight)


def test_a_table_cut_by_columns_is_not_known_to_another_worker():
    config = small_config(adversary={"worker": 2})
    table = [Box((10,), (a,), (b,)) for a, b in ((0, 1), (1, 5), (5, 9), (9, 10))]
    known = Setting.at(config, WORKER, table[2], 10, samples=24)
    assert known.boxes[2] == table[2]
    assert all(box.empty for worker, box in enumerate(known.boxes) if worker != 2)


def test_a_coalition_knows_what_its_members_know():
    config = small_config(adversary=(("coordinator"), {"worker": 1}))
    coordinators = setting_of(config)
    known = coordinators.seen_by(config)
    assert known.seats == (COORDINATOR, Seat("worker", 1))
    assert known.seed == coordinators.seed


def test_what_a_party_holds_goes_through_a_pipe_as_it_is():
    held = Held({2: torch.arange(6.0).reshape(2, 3)}, torch.arange(4.0).reshape(1, 4))
    again = pickle.loads(pickle.dumps(held))
    assert torch.equal(again.slices[2], held.slices[2])
    assert torch.equal(again.auxiliary, held.auxiliary)
