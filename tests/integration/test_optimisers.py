"""An optimiser of the user's own, from a file beside the config, through a whole federation."""

import json

import pytest
import torch

from tests.integration.command_support import cafe
from tests.support import small_config

OWN = '''
"""An optimiser with options and a state of its own."""
from pathlib import Path

import torch

from vfl.optimisers import Optimiser


class Signs(torch.optim.Optimizer):
    def __init__(self, parameters, lr, memory):
        super().__init__(parameters, {"lr": lr, "memory": memory})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"], state["steps"] = torch.zeros_like(parameter), torch.zeros(())
                state["mean"].lerp_(parameter.grad, 1 - group["memory"])
                state["steps"] += 1
                parameter -= group["lr"] * state["mean"].sign() / state["steps"].sqrt()
                if state["steps"] == 5 and Path("stop").exists():
                    raise ValueError("it was to stop here")


class Own(Optimiser):
    """Steps of one length, by the sign of a mean."""

    keeps, counts = frozenset({"mean"}), frozenset({"steps"})
    memory: float = 0.9

    def start(self, parameters, lr):
        return Signs(parameters, lr, self.memory)


class Forgetful(Own):
    keeps = frozenset()
'''

CONFIG = """
seed: 3
data: {name: digits, samples: 24, test_samples: 10}
federation: {workers: 2, batch_size: 8, rounds: 8, checkpoint_every: 2}
model: {name: mlp, hidden: [6]}
training: {optimizer: "my_optimiser:Own", lr: 0.05, memory: 0.5}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "my_optimiser.py").write_text(OWN)
    (folder / "run.yaml").write_text(CONFIG)
    return folder


def test_an_own_optimiser_trains_and_a_resumed_run_ends_where_an_undisturbed_one_does(folder):
    done = cafe("run", "run.yaml", "--quiet", "--out", "whole", cwd=folder)
    assert done.returncode == 0, done.stderr
    training = json.loads((folder / "whole" / "summary.json").read_text())["config"]["training"]
    assert training["optimizer"] == "my_optimiser:Own"
    assert training["memory"] == 0.5
    (folder / "stop").touch()
    failed = cafe("run", "run.yaml", "--quiet", "--out", "parts", cwd=folder)
    (folder / "stop").unlink()
    assert failed.returncode == 1
    assert "the optimizer plug-in my_optimiser:Own failed in step: ValueError: it was to stop here" in failed.stderr
    resumed = cafe("run", "run.yaml", "--quiet", "--out", "parts", "--resume", cwd=folder)
    assert resumed.returncode == 0, resumed.stderr
    whole, parts = (torch.load(folder / name / "model.pt", weights_only=True) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["training.memori=1"], "training.memori: there is no such key (my_optimiser:Own has the options memory)"),
        (
            ["training.optimizer=sdg"],
            "training.optimizer: there is no optimizer called 'sdg'; choose one of adam, adamw, sgd",
        ),
        (["training.optimizer=sgd"], "run.yaml: training.memory: there is no such key"),
        (["training.optimizer=my_optimiser:Missing"], "training.optimizer: 'my_optimiser:Missing' cannot be imported"),
        (["training.optimizer=my_optimiser:Signs"], "is not a plug-in class (a subclass of vfl.optimisers.Optimiser)"),
        (["training.optimizer=my_optimiser:Forgetful"], "my_optimiser:Forgetful remembers mean of a parameter"),
    ],
)
def test_what_is_wrong_with_an_optimiser_is_said(folder, changes, sentence):
    done = cafe("run", "run.yaml", "--quiet", "--out", "wrong", *(f"--set={one}" for one in changes), cwd=folder)
    assert done.returncode in (1, 2)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_options_stand_after_lr_in_the_recorded_config_with_their_defaults():
    training = small_config(training={"lr": 0.1}).model_dump(mode="json")["training"]
    assert list(training.items())[:4] == [("optimizer", "sgd"), ("lr", 0.1), ("momentum", 0.0), ("weight_decay", 0.0)]
    recorded = small_config(training={"optimizer": "adam", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0})
    assert recorded == small_config(training={"optimizer": "adam", "lr": 0.1})


def test_cafe_lists_the_optimisers(folder):
    listed = cafe("list", "optimizers", cwd=folder).stdout.splitlines()
    assert listed[0] == "adam             Adam (Kingma and Ba, 2015), torch.optim.Adam."
    assert listed[2].startswith("adamw ")
    assert listed[4] == "sgd              Stochastic gradient descent, torch.optim.SGD."
    assert listed[5].strip() == "options: momentum=0.0, weight_decay=0.0"
