"""A worker follows what the config's seed and its own uploads make, and no other batches and parameters."""

import math
from pathlib import Path

import pytest
import torch

from protos.coordinator_pb2 import Purpose, Round
from tests.support import small_config
from vfl.config import load_config, parse_config
from vfl.datasets.slices import load_data, slice_for
from vfl.errors import RunFailedError, UserError
from vfl.local.simulation import simulate
from vfl.observation.schedule import batches
from worker.checks import OrderChecks
from worker.main import defence_plan

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml"))


def checks_of(federation=None, **changes):
    """The checks of worker 0 of two, which are trained for six rounds of four of their 24 samples."""
    federation = {"workers": 2, "batch_size": 4, "rounds": 6, **(federation or {})}
    config = small_config(federation=federation, **changes)
    data = slice_for(load_data(config), config, 0)
    return OrderChecks(config, data, defence_plan(config, 0, len(data.x), most=data.most))


def order(number, rows, version=1):
    return Round(round=number, purpose=Purpose.PURPOSE_TRAIN, parameters_version=version, indices=rows)


def agreed(seed=3, rounds=6):
    return [rows.tolist() for rows in batches("epochs", 24, 4, rounds, seed=seed)]


def test_only_the_batches_that_the_seed_draws_are_followed():
    checks, drawn = checks_of(), agreed()
    checks.round(order(1, drawn[0]))
    swapped = [*drawn[1][1:], drawn[2][0]]  # of the right size, no sample twice
    with pytest.raises(RunFailedError, match="round 2 names other samples than the agreed schedule"):
        checks.round(order(2, swapped))
    with pytest.raises(RunFailedError, match="agreed schedule"):
        checks_of().round(order(1, agreed(seed=4)[0]))
    with pytest.raises(RunFailedError, match="agreed schedule"):
        checks_of().round(order(1, drawn[0][::-1]))


def test_the_checks_can_be_left_out_one_by_one():
    checks_of({"checks": {"schedule": False}}).round(order(1, range(4)))
    checks_of({"checks": False}).round(order(1, [7]))
    with pytest.raises(RunFailedError, match="names 1 samples"):
        checks_of({"checks": {"schedule": False}}).round(order(1, [7]))
    with pytest.raises(UserError, match=r"federation\.checks"):
        small_config(federation={"checks": {"scedule": False}})


OWN = {"bottom.w": torch.arange(6.0).reshape(2, 3), "bottom.b": torch.ones(2)}


def test_the_first_parameters_are_those_that_the_config_makes():
    checks_of().parameters(1, dict(OWN), OWN)
    other = {**OWN, "bottom.b": OWN["bottom.b"] * 1.001}
    with pytest.raises(RunFailedError, match=r"first bottom\.b is not what the config's seed makes here"):
        checks_of().parameters(1, other, OWN)
    checks_of({"checks": {"first_parameters": False}}).parameters(1, other, OWN)


def trained(training, version=2, change=0.0, upload=True, federation=None, **changes):
    """Send a worker the parameters that follow from its upload, each a little changed."""
    checks = checks_of(federation, training=training, **changes)
    checks.parameters(1, dict(OWN), OWN)
    gradients = {name: torch.full_like(tensor, 0.5) for name, tensor in OWN.items()}
    if upload:
        checks.round(order(1, agreed()[0]))
        checks.uploaded(1, gradients)
    step = {"sgd": 0.1 * 0.5, "adam": 0.1}[training["optimizer"]]
    checks.parameters(version, {name: tensor - step + change for name, tensor in OWN.items()}, OWN)
    return checks


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_parameters_are_those_that_the_optimiser_makes_of_the_workers_own_upload(name):
    training = {"optimizer": name, "lr": 0.1}
    checks = trained(training)
    with pytest.raises(RunFailedError, match=f"up to 0.001 off what {name} makes of this worker's own gradient"):
        trained(training, change=1e-3)
    trained(training, change=1e-3, federation={"checks": {"steps": False}})
    with pytest.raises(RunFailedError, match=r"round 2 wants parameters 1, .* with parameters 2"):
        checks.round(order(2, agreed()[1], version=1))
    checks.round(order(2, agreed()[1], version=2))


def test_a_worker_that_has_just_begun_takes_the_first_parameters_first():
    training = {"optimizer": "adam", "lr": 0.1}
    later = {name: tensor + 0.3 for name, tensor in OWN.items()}
    with pytest.raises(RunFailedError, match="first parameters are number 4, and this worker has just begun"):
        checks_of(training=training).parameters(4, later, OWN)
    restarted = checks_of(training=training)
    restarted.start_late()
    restarted.parameters(4, later, OWN)  # three steps of Adam can be that far
    restarted = checks_of(training=training)
    restarted.start_late()
    with pytest.raises(RunFailedError, match=r"jumps by 1, and adam goes 0\.3 at most"):
        restarted.parameters(4, {name: tensor + 1 for name, tensor in OWN.items()}, OWN)


def test_parameters_come_after_the_upload_and_none_is_left_out():
    training = {"optimizer": "sgd", "lr": 0.1}
    with pytest.raises(RunFailedError, match="before this worker uploaded for round 1"):
        trained(training, upload=False)
    with pytest.raises(RunFailedError, match="it left some out"):
        trained(training, version=4)


def test_with_clipped_gradients_a_worker_knows_how_far_a_step_goes():
    adam = {"optimizer": "adam", "lr": 0.1, "clip_norm": 1.0}
    trained(adam)
    trained(adam, change=0.05)  # another step within the bound: whose gradients were clipped is not known here
    with pytest.raises(RunFailedError, match=r"bottom\.\w jumps by 0\.3, and adam goes 0\.1 at most"):
        trained(adam, change=-0.2)
    sgd = {"optimizer": "sgd", "lr": 0.1, "clip_norm": 1.0}
    trained(sgd, change=0.05 - 0.09 / math.sqrt(8))
    with pytest.raises(RunFailedError, match=r"jump by 0\.11, and sgd goes 0\.1 at most"):
        trained(sgd, change=0.05 - 0.11 / math.sqrt(8))


def test_parameters_that_come_again_are_the_same_again():
    checks = trained({"optimizer": "sgd", "lr": 0.1})
    now = {name: tensor - 0.05 for name, tensor in OWN.items()}
    checks.parameters(2, dict(now), now)
    with pytest.raises(RunFailedError, match="sends parameters 2 again, and they are not those"):
        checks.parameters(2, OWN, now)
    with pytest.raises(RunFailedError, match="sends parameters 1 again"):
        checks.parameters(1, OWN, now)  # no checkpoint is planned from which a coordinator could go back
    resumable = trained({"optimizer": "sgd", "lr": 0.1}, federation={"checkpoint_every": 1})
    resumable.parameters(1, OWN, now)


def _small(path):
    """A config of this repository with few samples and rounds, without its attack."""
    config = load_config(ROOT / "configs" / path, ["attack={name: none}", "adversary=coordinator", "auxiliary=0"])
    tree = config.model_dump(mode="json")
    if config.data.name not in ("csv", "parquet"):
        tree["data"]["samples"] = 48
    size = min(config.federation.batch_size, 12)  # more than there are classes: else answers could span no more
    tree["federation"] |= {"batch_size": size, "rounds": 7, "epochs": None, "checks": True}
    return parse_config(tree, str(path))


@pytest.mark.parametrize("path", CONFIGS, ids=str)
def test_an_honest_run_of_every_config_raises_no_alarm(path, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = _small(path)
    try:
        data = load_data(config)
    except UserError as error:
        pytest.skip(f"its data are not here: {error}")
    simulate(config, data, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}},
        {"training": {"optimizer": "adam", "lr": 0.01, "schedule": {"frozen_epochs": 1, "warmup_epochs": 2}}},
        {"training": {"optimizer": "adam", "lr": 0.01, "accumulate": 3}},
        {"training": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "local_steps": 3, "local_lr": 0.05}},
        {"training": {"optimizer": "adam", "lr": 0.01, "clip_norm": 0.1}},
        {"training": {"optimizer": "sgd", "lr": 0.1, "clip_norm": 0.1, "momentum": 0.5}},
        {"training": {"optimizer": "adam", "lr": 0.01, "evaluate_every": 2, "evaluate_first": True}},
        {"training": {"optimizer": "adam", "lr": 0.01}, "federation": {"kind": "horizontal", "batch_size": 3}},
        {"training": {"optimizer": "adam", "lr": 0.01}, "model": {"name": "mlp", "shared": True}},
        {"training": {"optimizer": "adam", "lr": 0.01}, "defence": {"name": "noise", "scale": 0.1}},
    ],
    ids=str,
)
def test_an_honest_run_raises_no_alarm_however_it_trains(changes, tmp_path):
    config = small_config(**{**changes, "federation": {"rounds": 12, **changes.get("federation", {})}})
    simulate(config, load_data(config), tmp_path)
