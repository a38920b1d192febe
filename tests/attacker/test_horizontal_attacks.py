"""How what attacks recover of single workers is put together."""

from dataclasses import replace

import pytest
import torch

from attacker.horizontal import Horizontal, together
from attacker.interface import Recovery, silent
from tests.support import small_config
from vfl.errors import UserError
from vfl.observation import ModelTensors, Observation, Setting
from vfl.partition import Box
from vfl.topology import Topology

SHARES = (2, 3)
TOPOLOGY = Topology(2, kind="horizontal", shares=SHARES)


def recovery(first, samples, **more):
    x = first + torch.arange(4.0 * samples).reshape(samples, 4)
    return Recovery(slices=(x,), labels=torch.arange(samples), certificates=torch.zeros(samples, 1), **more)


def setting():
    return Setting(small_config().model, (Box.all((4,)),), 2, 5, 2, "epochs", 4, True, 0, topology=TOPOLOGY)


def test_samples_labels_and_cells_are_in_the_order_of_the_whole():
    found = together([recovery(0, 2, cells=((0, 1),)), recovery(100, 3, cells=((1, 2),))], SHARES)
    assert found.slices[0].shape == (5, 4)
    assert found.slices[0][:, 0].tolist() == [0, 4, 100, 104, 108]
    assert found.labels.tolist() == [0, 1, 0, 1, 2]
    assert found.cells == ((0, 1), (3, 4))
    assert found.certificates.shape == (5, 1)
    assert found.rounds is None


def test_what_one_worker_kept_is_unknown_and_notes_say_whose_they_are():
    notes = ("same at both", "its own")
    found = together(
        [recovery(0, 2, notes=notes, rounds=(1, 3)), Recovery(notes=("same at both",), rounds=(2,))], SHARES
    )
    assert found.slices[0].isnan().all(1).tolist() == [False, False, True, True, True]
    assert found.labels.tolist() == [0, 1, -1, -1, -1]
    assert found.notes == ("each worker: same at both", "worker 0: its own")
    assert found.rounds == (1, 2, 3)


def test_representations_are_put_together_only_where_they_are_of_one_layer():
    wide, narrow = ((torch.ones(2, 8),), (torch.ones(3, 5),))
    one, other = recovery(0, 2, representations=wide, layers=("fc2",)), recovery(9, 3, representations=narrow)
    found = together([one, replace(other, layers=("fc1",))], SHARES)
    assert (found.representations, found.layers) == (None, None)
    assert found.slices[0].shape == (5, 4)
    same = together([one, replace(other, representations=(torch.zeros(3, 8),), layers=("fc2",))], SHARES)
    assert same.layers == ("fc2",)
    assert same.representations[0].shape == (5, 8)


def test_representations_of_attacks_that_name_no_layer_are_kept_if_they_fit():
    wide, narrow = (recovery(0, 2, representations=(torch.ones(2, width),)) for width in (8, 5))
    found = together([wide, recovery(9, 3, representations=(torch.zeros(3, 8),))], SHARES)
    assert found.layers is None
    assert found.representations[0][:, 0].tolist() == [1, 1, 0, 0, 0]
    half = together([wide, None], SHARES)
    assert half.representations[0].isnan().all(1).tolist() == [False, False, True, True, True]
    assert together([narrow, recovery(9, 3, representations=(torch.zeros(3, 8),))], SHARES).representations is None


class Scripted:
    """An attack that writes down what it is shown, and recovers or gives up."""

    def __init__(self, seen):
        self.setting, self.rounds = seen, []

    def observe(self, observation):
        self.rounds.append(observation)

    def recover(self, progress):
        progress("looking", 1, 1)
        if self.setting.samples in self.gives_up:
            raise UserError(f"{self.setting.samples} samples are too many")
        return recovery(0, self.setting.samples)

    gives_up = ()


def test_each_attack_sees_a_federation_of_one():
    started = []
    attack = Horizontal(setting(), lambda own: started.append(Scripted(own)) or started[-1])
    uploads = tuple(ModelTensors(({"w": torch.ones(1) * m},), {"v": torch.ones(1)}) for m in (0, 1))
    whole = Observation(1, torch.tensor([1, 0, 4, 2]), 1, uploads[0], uploads[0], uploads)
    attack.observe(whole)
    assert [own.setting.samples for own in started] == [2, 3]
    assert all(own.setting.workers == 1 and not own.setting.topology.is_horizontal for own in started)
    assert [own.rounds[0].indices.tolist() for own in started] == [[1, 0], [2, 0]]
    assert [own.rounds[0].gradients for own in started] == list(uploads)
    withheld = ModelTensors(({},), {})
    half = Observation(2, torch.tensor([0, 1, 2, 3]), 1, uploads[0], uploads[0], (uploads[0], withheld))
    assert half.shown
    assert not half.complete
    attack.observe(half)
    assert [len(own.rounds) for own in started] == [2, 1]  # who withholds is alone protected by it
    steps = []
    attack.recover(lambda *step: steps.append(step))
    assert steps == [("worker 0: looking", 1, 1), ("worker 1: looking", 1, 1)]


def test_one_attack_that_gives_up_does_not_spoil_the_others(monkeypatch):
    monkeypatch.setattr(Scripted, "gives_up", (3,))
    found = Horizontal(setting(), Scripted).recover(silent)
    assert found.slices[0].isnan().all(1).tolist() == [False, False, True, True, True]
    assert found.notes == ("worker 1: nothing was recovered: 3 samples are too many",)


def test_when_all_give_up_so_does_the_whole(monkeypatch):
    monkeypatch.setattr(Scripted, "gives_up", (2, 3))
    with pytest.raises(UserError, match="samples are too many"):
        Horizontal(setting(), Scripted).recover(silent)
