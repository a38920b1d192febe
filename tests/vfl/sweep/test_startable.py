"""Every cell of every size of every experiment passes its attack's checks before round 1; no data files needed."""

import json
from pathlib import Path

import pytest
import torch

from attacker.start import start_attack
from tests.vfl.sweep.fabricated import planned
from vfl.datasets import Data, Facts
from vfl.datasets.slices import boxes_of, check_facts, load_data
from vfl.errors import UserError
from vfl.observation import Setting
from vfl.sweep.plan import load_plan

FILES = sorted(Path("experiments/paper").glob("*.yaml"))
ARCHIVES = {
    "cifar10.npz": ((3, 32, 32), 10),
    "mnist.npz": ((1, 28, 28), 10),
    "linnaeus5.npz": ((3, 64, 64), 5),
    "yale32.npz": ((1, 32, 32), 15),
}


def made_up(config) -> Data:
    """Data of the right shapes, in the memory of one number; the bundled sets are what they are."""
    if config.data.name != "npz":
        return load_data(config)
    wanted = config.data.model_dump()
    shape, classes = ARCHIVES[wanted["path"]]

    def some(samples):
        return torch.zeros(()).expand(samples, *shape), torch.zeros((), dtype=torch.int64).expand(samples)

    tests = some(wanted["test_samples"]) if wanted["test_samples"] else (None, None)
    return Data("image", *some(wanted["samples"]), classes, ("",) * wanted["samples"], *tests)


def refusals(plan) -> dict[str, str]:
    """What the attack of each cell would say before it starts; attacks of one form are asked once."""
    said, asked = {}, set()
    for cell in plan.cells:
        config = cell.config
        # What `cafe` refuses does not depend on rounds, nor on samples beyond a batch; its memory does.
        iterates = config.attack.name == "cafe"
        federation = config.federation.model_dump_json(exclude={"rounds", "epochs"} if iterates else set())
        form = [getattr(config, part).model_dump_json() for part in ("data", "model", "attack")]
        if (key := json.dumps([*form, federation, config.training.frozen])) in asked:
            continue
        asked.add(key)
        data = made_up(config)
        samples = min(len(data.x), 2 * config.federation.batch_size) if iterates else len(data.x)
        try:
            check_facts(config, Facts.of(data))
            start_attack(config.attack, Setting.of(config, boxes_of(data, config), data.classes, samples))
        except UserError as error:
            said[cell.name] = str(error)
    return said


@pytest.mark.parametrize("size", ["paper", "small", "smoke"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_cell_could_start(file, size):
    assert refusals(load_plan(file, size=size)) == {}


def test_a_cell_that_could_not_start_is_found(tmp_path):
    attack = {"name": "cafe", "lr_one": 0.2}
    plan = planned(
        tmp_path, axes={"K": {"four": {"federation.batch_size": 4}, "six": {}}, "a": {"b": {"attack": attack}}}
    )
    assert list(refusals(plan)) == ["six, b"]
