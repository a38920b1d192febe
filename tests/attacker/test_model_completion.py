"""A worker completes its bottom model: what a trained one gives away, and what its known labels alone would."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import one_hot

from attacker.interface import silent
from attacker.labels.completion import ModelCompletion
from attacker.labels.mixmatch import changed, guesses
from attacker.start import start_attack
from vfl.errors import UserError
from vfl.observation import Held, Setting, WorkerObservation
from vfl.partition import partition
from vfl.registry import PluginSection
from vfl.seats import COORDINATOR, Seat

CLASSES, SAMPLES = 3, 300
LABELS = torch.arange(SAMPLES) % CLASSES


def worker_setting():
    """A worker whose slice of 40 columns shows the class along one direction, in much else."""
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, 40, generator=draw)
    ways = torch.linalg.qr(torch.randn(40, CLASSES, generator=draw)).Q
    x = x + 2.5 * one_hot(LABELS, CLASSES).float() @ ways.T
    model = PluginSection(name="mlp", hidden=[], output=CLASSES)
    boxes = tuple(partition((80,), 2))
    setting = Setting(model, boxes, CLASSES, SAMPLES, 10, "epochs", 1, False, 5, "cpu", seats=(Seat("worker", 1),))
    return replace(setting, held=Held({1: x})), ways


def completed(parameters, **options):
    setting, _ = worker_setting()
    known = {n: int(LABELS[n]) for n in range(6)}
    attack = ModelCompletion(known=known, **{"steps": 60, **options}).start(setting)
    rows = torch.arange(10)
    nothing = torch.zeros(10, CLASSES)
    attack.observe(WorkerObservation(1, rows, 1, parameters, nothing, nothing))
    return attack.recover(silent)


def trained():
    """The bottom model that looks along the directions of the classes, as training would find them."""
    ways = worker_setting()[1]
    return {"1.weight": 2 * ways.T.contiguous(), "1.bias": torch.zeros(CLASSES)}


def accuracy(found):
    return float((found.labels == LABELS)[6:].float().mean())


def test_a_trained_bottom_model_gives_labels_by_name_that_the_known_ones_alone_do_not():
    found, alone = completed(trained()), completed(trained(), from_scratch=True)
    assert accuracy(found) > 0.85
    assert accuracy(alone) < accuracy(found) - 0.1
    assert found.labels_named is True
    assert found.used == ("parameters", "own slice", "the classes of 6 samples")
    assert alone.used == ("own slice", "the classes of 6 samples")
    assert found.told == tuple(range(6))


def test_the_same_run_gives_the_same_labels():
    assert torch.equal(completed(trained(), steps=5).labels, completed(trained(), steps=5).labels)


def test_guessed_classes_are_probabilities_clearer_than_the_models_own():
    model = torch.nn.Linear(4, 3)
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    made = guesses(model, x)
    assert torch.allclose(made.sum(1), torch.ones(20))
    assert made.amax(1).mean() > torch.softmax(model(x), dim=1).amax(1).mean()


@pytest.mark.parametrize("shape", [(5, 7), (5, 1, 4, 4), (5, 3, 9, 12)])
def test_changed_samples_are_of_the_same_shape(shape):
    assert changed(torch.rand(shape)).shape == shape


@pytest.mark.parametrize(
    ("known", "seats", "sentence"),
    [
        (
            {0: 0, 1: 1},
            (Seat("worker", 1),),
            "a known sample of each class.*attack.known has samples of 2 of 3 classes",
        ),
        ({0: 0, 1: 1, 999: 2}, (Seat("worker", 1),), "samples below 300"),
        ({0: 0, 1: 1, 2: 2}, (COORDINATOR,), "it needs a worker's seat, and the adversary is the coordinator"),
    ],
)
def test_what_it_cannot_do_without_is_said_before_the_run(known, seats, sentence):
    setting = replace(worker_setting()[0], seats=seats)
    with pytest.raises(UserError, match=sentence):
        start_attack(PluginSection(name="model_completion", known=known), setting)
