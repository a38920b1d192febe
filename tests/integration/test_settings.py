"""Networks, targets and optimisers as people have them: training is the plain loop's, and what leaks is found."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

import vfl
from examples.tables.make_customers import write
from tests.bank import bank_config, write_files
from vfl.config import parse_config
from vfl.datasets.slices import boxes_of, load_data
from vfl.errors import UserError
from vfl.models.whole import WholeModel, whole_model
from vfl.observation.schedule import batches
from vfl.optimisers.training import Augment
from vfl.seeds import seeded
from worker.augment import augmented

ROUNDS = 12
ADAM = {"optimizer": "adam", "lr": 1e-3}
CANCER, DIABETES = {"name": "breast_cancer", "samples": 40}, {"name": "diabetes", "samples": 40}


def positive_weight(logits: Tensor, y: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(logits[:, 0], y.float(), pos_weight=torch.tensor(5.0))


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def dropped(shape: tuple[int, ...]) -> nn.Module:
    """Dropout after the first layer."""
    return nn.Sequential(nn.Linear(shape[0], 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4))


def normed(shape: tuple[int, ...]) -> nn.Module:
    """Batch norm after the first layer, in training mode."""
    return nn.Sequential(nn.Linear(shape[0], 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def normed_in_eval_mode(shape: tuple[int, ...]) -> nn.Module:
    """Batch norm by fixed statistics."""
    network = normed(shape)
    network[1].eval()
    return network


SETTINGS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "Adam 1e-3": ({"data": CANCER, "training": ADAM}, cross_entropy, adam),
    "SGD 0.1 with momentum": (
        {"data": CANCER, "training": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}},
        cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    ),
    "one logit": (
        {"data": CANCER, "training": {**ADAM, "loss": "binary"}},
        lambda logits, y: binary_cross_entropy_with_logits(logits[:, 0], y.float()),
        adam,
    ),
    "one logit, a class that counts five times": (
        {"data": CANCER, "training": {**ADAM, "loss": "binary", "class_weights": [1, 5]}},
        positive_weight,
        adam,
    ),
    "class weights": (
        {"data": CANCER, "training": {**ADAM, "class_weights": [1, 5]}},
        lambda logits, y: cross_entropy(logits, y, weight=torch.tensor([1.0, 5.0])),
        adam,
    ),
    "a number to predict": (
        {"data": DIABETES, "training": {**ADAM, "loss": "squared"}},
        lambda logits, y: mse_loss(logits[:, 0], y),
        adam,
    ),
    "dropout of a half": (
        {"data": CANCER, "model": {"name": f"{__name__}:dropped"}, "training": ADAM},
        cross_entropy,
        adam,
    ),
    "batch norm in training mode": (
        {"data": CANCER, "model": {"name": f"{__name__}:normed"}, "training": ADAM},
        cross_entropy,
        adam,
    ),
    "batch norm in eval mode": (
        {"data": CANCER, "model": {"name": f"{__name__}:normed_in_eval_mode"}, "training": ADAM},
        cross_entropy,
        adam,
    ),
    "batches of 32": ({"data": CANCER, "federation": {"batch_size": 32}, "training": ADAM}, cross_entropy, adam),
    "batches of 32 at four workers": (
        {"data": CANCER, "federation": {"batch_size": 32, "workers": 4}, "training": ADAM},
        cross_entropy,
        adam,
    ),
    "batches of 32, two hidden layers": (
        {
            "data": CANCER,
            "federation": {"batch_size": 32},
            "model": {"name": "mlp", "hidden": [128, 64]},
            "training": ADAM,
        },
        cross_entropy,
        adam,
    ),
    "augmentation, noise": ({"data": CANCER, "training": {**ADAM, "augment": {"noise": 0.1}}}, cross_entropy, adam),
    "gradients of 4 rounds accumulated": ({"data": CANCER, "training": {**ADAM, "accumulate": 4}}, cross_entropy, adam),
    "4 local steps at 0.01": (
        {"data": CANCER, "training": {**ADAM, "local_steps": 4, "local_lr": 0.01}},
        cross_entropy,
        adam,
    ),
    "embeddings": (
        {"data": CANCER, "model": {"name": "embedded", "numbers": 5}, "training": ADAM},
        cross_entropy,
        adam,
    ),
    "weight decay": (
        {"data": CANCER, "training": {**ADAM, "weight_decay": 0.1}},
        cross_entropy,
        lambda parameters: torch.optim.Adam(parameters, lr=1e-3, weight_decay=0.1),
    ),
    "augmentation, flips and shifts": (
        {
            "data": {"name": "digits", "samples": 40},
            "model": {"name": f"{__name__}:normed_cnn"},
            "training": {**ADAM, "augment": {"flip": True, "shift": 1}},
        },
        cross_entropy,
        adam,
    ),
    "AdamW 1e-3 with warm-up and weight decay": (
        {
            "data": CANCER,
            "training": {"optimizer": "adamw", "lr": 2e-3, "weight_decay": 0.1, "schedule": {"warmup_epochs": 2}},
        },
        cross_entropy,
        lambda parameters: torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.1),
    ),
}


def test_every_setting_of_the_sweep_is_trained_here():
    swept = yaml.safe_load(Path("experiments/settings.yaml").read_text(encoding="utf-8"))["axes"]["setting"]
    assert swept.keys() <= SETTINGS.keys()


def rate_of(step: int, name: str, lr: float) -> float:
    return lr * min(1.0, (step + 1) / 10) if "warm-up" in name else lr  # two epochs of five rounds


def gradients_of(model: WholeModel, slices: list[Tensor], loss_of: Any, *, steps: int, lr: float) -> float:
    """Give each parameter the mean gradient of some local steps, at stale gradients of the outputs."""
    z = [bottom(part).detach().requires_grad_() for bottom, part in zip(model.bottoms, slices, strict=True)]
    loss = loss_of(model.top(torch.cat(z, dim=1)))
    back = torch.autograd.grad(loss, z)
    parts = [
        *(
            (bottom, lambda own, x=x, g=g: (own(x) * g).sum())
            for bottom, x, g in zip(model.bottoms, slices, back, strict=True)
        ),
        (model.top, lambda own: loss_of(own(torch.cat(z, dim=1).detach()))),
    ]
    for part, objective in parts:
        own = copy.deepcopy(part)
        descent = torch.optim.SGD(own.parameters(), lr=lr)
        for _ in range(steps):
            descent.zero_grad()
            objective(own).backward()
            for parameter, moved in zip(part.parameters(), own.parameters(), strict=True):
                mean = moved.grad / steps
                parameter.grad = mean if parameter.grad is None else parameter.grad + mean
            descent.step()
    return loss.item()


def plain_round(model: WholeModel, slices: list[Tensor], loss_of: Any, step: int, training: Any) -> float:
    """Back-propagate one batch, with what is drawn at random drawn as the workers do."""
    z = []
    for worker, (bottom, part) in enumerate(zip(model.bottoms, slices, strict=True)):
        with seeded(1, f"worker {worker}", step + 1):
            changed = augmented(part, Augment(**training.get("augment", {})))
            z.append(bottom(changed))
    loss = loss_of(model.top(torch.cat(z, dim=1)))
    (loss / training.get("accumulate", 1)).backward()
    return loss.item()


@pytest.mark.parametrize("name", SETTINGS)
def test_training_is_what_a_plain_loop_does(name):
    changes, loss_of, optimiser_of = SETTINGS[name]
    tree = {
        "seed": 1,
        "model": {"name": "mlp", "hidden": [16], "output": 4},
        **changes,
        "federation": {"workers": 2, "batch_size": 8, "rounds": ROUNDS, **changes.get("federation", {})},
    }
    config, training = parse_config(tree, "the test"), changes["training"]
    data = load_data(config)
    boxes = boxes_of(data, config)
    outputs = 1 if "loss" in training else data.classes
    model = whole_model(config.model, [box.shape for box in boxes], outputs, config.seed)
    optimiser, losses = optimiser_of(model.parameters()), []
    for step, rows in enumerate(batches("epochs", len(data.x), config.federation.batch_size, ROUNDS, seed=1)):
        slices = [box.cut(data.x)[rows] for box in boxes]

        def of_batch(logits: Tensor, rows: Tensor = rows) -> Tensor:
            return loss_of(logits, data.y[rows])

        if "local_steps" in training:
            losses.append(gradients_of(model, slices, of_batch, steps=4, lr=0.01))
        else:
            losses.append(plain_round(model, slices, of_batch, step, training))
        optimiser.param_groups[0]["lr"] = rate_of(step, name, config.training.lr)
        if (step + 1) % training.get("accumulate", 1) == 0:
            optimiser.step()
            optimiser.zero_grad()
    model.eval()
    with torch.no_grad():
        tested = float(loss_of(model([box.cut(data.x_test) for box in boxes]), data.y_test))

    found = vfl.simulate(tree).summary["train"]
    assert losses[-1] != pytest.approx(losses[0], rel=1e-2)
    assert found["losses"] == pytest.approx(losses, rel=1e-5)
    if name != "class weights":  # torch divides by the weights of all test samples, parties count samples
        assert found["test_loss"] == pytest.approx(tested, rel=1e-5)
    assert (found["test_accuracy"] is None) == (name == "a number to predict")


def attacked(tmp_path, customers: int = 60, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The bank and the shop, as they train in batches of four; what the coordinator's attack came to."""
    config = bank_config(write_files(tmp_path, customers))
    for key, value in changes.items():
        config[key] = value if key == "model" else {**config[key], **value}
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


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": f"{__name__}:dropped"}},
        {"training": {"accumulate": 4}},
        {"training": {"local_steps": 4, "local_lr": 0.01}},
        {"training": {"optimizer": "adamw", "schedule": {"warmup_epochs": 1}}},
    ],
    ids=["dropout", "accumulated gradients", "local steps", "AdamW with warm-up"],
)
def test_a_first_layer_that_sees_rows_gives_them_away_however_they_are_trained_on(tmp_path, changes):
    attack, _ = attacked(tmp_path, **changes)
    assert attack["share_exact"] > 0.9
    assert attack["labels"]["right"] > 0.9 > 0.7 > attack["labels"]["guess"]


def normed_cnn(shape: tuple[int, ...], after: bool = False) -> nn.Module:
    """Batch norm in training mode before the first dense layer, or after it."""
    norm = [nn.BatchNorm1d(48)] if after else []
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(),
        nn.Linear(12 * shape[1] * shape[2], 48), *norm, nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip


DIGITS = {
    "seed": 0,
    "data": {"name": "digits", "samples": 8},
    "federation": {"workers": 2, "batch_size": 4, "epochs": 1},
    "model": {"name": f"{__name__}:normed_cnn"},
    "training": ADAM,
    "attack": {"name": "exact"},
}


def test_batch_norm_in_training_mode_before_the_attacked_layer_is_broken():
    attack = vfl.simulate(DIGITS).summary["attack"]
    assert attack["share_30db"] == 1.0
    assert attack["psnr_mean"] > 40 > 20 > attack["psnr_baseline"]
    assert attack["labels"]["right"] == 1.0
    assert attack["certified"] is None
    assert any("looked for together" in note for note in attack["notes"])


def test_batch_norm_after_the_attacked_layer_gets_a_sentence():
    changed = DIGITS | {"model": {"name": f"{__name__}:normed_cnn", "after": True}}
    with pytest.raises(UserError, match="there is some after the layer 4 of worker 0"):
        vfl.simulate(changed)


def test_augmented_slices_are_recovered_as_they_were_changed():
    augment = {"flip": True, "shift": 1}
    changed = DIGITS | {"model": {"name": f"{__name__}:plain_cnn"}, "training": ADAM | {"augment": augment}}
    done = vfl.simulate(changed)
    attack = done.summary["attack"]
    assert attack["certified"] == 8
    assert attack["labels"]["right"] == 1.0
    found, truth = torch.tensor(done.arrays["x"]), torch.tensor(done.arrays["x_true"])
    for box in done.setting.boxes:
        either_way = torch.cat([box.cut(truth), box.cut(truth).flip(3)])
        possible = torch.cat([pushed(either_way, down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)])
        assert torch.cdist(box.cut(found).flatten(1), possible.flatten(1)).min(dim=1).values.max() < 1e-2


def pushed(x: Tensor, down: int, right: int) -> Tensor:
    moved = nn.functional.pad(x, (1, 1, 1, 1))[:, :, 1 - down :, 1 - right :]
    return moved[:, :, : x.shape[2], : x.shape[3]]


def plain_cnn(shape: tuple[int, ...], p: float = 0.0) -> nn.Module:
    """A convolution and two dense layers, with dropout between these."""
    dense = [nn.Linear(12 * shape[1] * shape[2], 48), nn.ReLU(), nn.Dropout(p), nn.Linear(48, 10)]
    return nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Flatten(), *dense)


def test_dropout_after_a_layer_behind_a_convolution_leaves_slices_to_be_read():
    changed = DIGITS | {"model": {"name": f"{__name__}:plain_cnn", "p": 0.5}}
    done = vfl.simulate(changed)
    found, truth = torch.tensor(done.arrays["x"]), torch.tensor(done.arrays["x_true"])
    right = 0
    for box in done.setting.boxes:  # which slices of two workers belong together is not known: each sample has one
        right += int((torch.cdist(box.cut(found).flatten(1), box.cut(truth).flatten(1)).min(dim=1).values < 1e-2).sum())
    assert right == len(truth)


def test_the_customers_of_the_example_are_what_its_script_writes(tmp_path):
    write(tmp_path / "customers.csv")
    kept = Path("examples/tables/customers.csv").read_text(encoding="utf-8")
    assert (tmp_path / "customers.csv").read_text(encoding="utf-8") == kept
