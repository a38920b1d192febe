"""Networks, targets and optimisers as people have them: training is the plain loop's, and what leaks is found."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

import vfl
from server.schedule import batches
from tests.bank import bank_config, write_files
from vfl.config import parse_config
from vfl.datasets.slices import boxes_of, load_data
from vfl.models.whole import whole_model

ROUNDS = 12
ADAM = {"optimizer": "adam", "lr": 1e-3}
CANCER, DIABETES = {"name": "breast_cancer", "samples": 40}, {"name": "diabetes", "samples": 40}


def positive_weight(logits: Tensor, y: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(logits[:, 0], y.float(), pos_weight=torch.tensor(5.0))


SETTINGS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "one logit": (
        {"data": CANCER, "training": {**ADAM, "loss": "binary"}},
        lambda logits, y: binary_cross_entropy_with_logits(logits[:, 0], y.float()),
        lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    ),
    "one logit, a class that counts five times": (
        {"data": CANCER, "training": {**ADAM, "loss": "binary", "class_weights": [1, 5]}},
        positive_weight,
        lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    ),
    "class weights": (
        {"data": CANCER, "training": {**ADAM, "class_weights": [1, 5]}},
        lambda logits, y: cross_entropy(logits, y, weight=torch.tensor([1.0, 5.0])),
        lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    ),
    "a number to predict": (
        {"data": DIABETES, "training": {**ADAM, "loss": "squared"}},
        lambda logits, y: mse_loss(logits[:, 0], y),
        lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    ),
    "AdamW with warm-up": (
        {
            "data": CANCER,
            "training": {"optimizer": "adamw", "lr": 2e-3, "weight_decay": 0.1, "schedule": {"warmup_epochs": 2}},
        },
        cross_entropy,
        lambda parameters: torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.1),
    ),
}


def rate_of(step: int, name: str, lr: float) -> float:
    return lr * min(1.0, (step + 1) / 10) if "warm-up" in name else lr  # two epochs of five rounds


@pytest.mark.parametrize("name", SETTINGS)
def test_training_is_what_a_plain_loop_does(name):
    changes, loss_of, optimiser_of = SETTINGS[name]
    tree = {
        "seed": 1,
        "federation": {"workers": 2, "batch_size": 8, "rounds": ROUNDS},
        "model": {"name": "mlp", "hidden": [16], "output": 4},
        **changes,
    }
    config = parse_config(tree, "the test")
    data = load_data(config)
    boxes = boxes_of(data, config)
    outputs = data.classes if "loss" not in changes["training"] else 1
    model = whole_model(config.model, [box.shape for box in boxes], outputs, config.seed)
    optimiser = optimiser_of(model.parameters())
    losses = []
    for step, rows in enumerate(batches("epochs", len(data.x), 8, ROUNDS, seed=config.seed)):
        optimiser.zero_grad()
        loss = loss_of(model([box.cut(data.x)[rows] for box in boxes]), data.y[rows])
        loss.backward()
        losses.append(loss.item())
        optimiser.param_groups[0]["lr"] = rate_of(step, name, config.training.lr)
        optimiser.step()
    model.eval()
    with torch.no_grad():
        tested = float(loss_of(model([box.cut(data.x_test) for box in boxes]), data.y_test))

    found = vfl.simulate(tree).summary["train"]
    assert losses[-1] != pytest.approx(losses[0], rel=1e-2)
    assert found["losses"] == pytest.approx(losses, rel=1e-5)
    if name != "class weights":  # torch divides by the weights of all test samples, parties count samples
        assert found["test_loss"] == pytest.approx(tested, rel=1e-5)
    if "loss" in changes["training"]:
        assert (found["test_accuracy"] is None) == (name == "a number to predict")


def attacked(tmp_path, customers: int = 60, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The bank and the shop, as they train in batches of four; what the coordinator's attack came to."""
    config = bank_config(write_files(tmp_path, customers))
    for key, value in changes.items():
        config[key] = {**config[key], **value}
    done = vfl.simulate(config)
    return done.summary["attack"], done.arrays


@pytest.mark.parametrize(
    "training", [{"loss": "binary"}, {"loss": "binary", "class_weights": [1, 4]}, {"class_weights": [1, 4]}]
)
def test_rows_and_labels_leak_whatever_the_classes_weigh(tmp_path, training):
    attack, _ = attacked(tmp_path, training=training)
    assert attack["share_exact"] > 0.85
    assert attack["labels"]["right"] > 0.95 > 0.7 > attack["labels"]["guess"]
    assert attack["certified"] > 50


def test_numbers_that_are_predicted_leak_in_their_own_units(tmp_path):
    attack, arrays = attacked(tmp_path, training={"loss": "squared"}, data={"label": "basket"})
    assert attack["share_exact"] > 0.85
    assert attack["labels"]["right"] > 0.85 > 0.2 > attack["labels"]["guess"]
    assert attack["label_r2"] > 0.95
    right = arrays["certified"]
    assert right.sum() > 50
    assert arrays["targets"][right] == pytest.approx(arrays["targets_true"][right], abs=1e-3)
