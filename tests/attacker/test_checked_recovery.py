"""What an attack returns is held against the setting; what does not fit is a sentence with the attack's name."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from attacker.interface import Attack, AttackPlugin, Progress, Recovery, Setting, share, silent
from attacker.start import start_attack
from tests.attacker.test_harness import SAMPLES, case_of, each_attack, rounds_of, setting_of
from vfl.errors import CafeError, RunFailedError
from vfl.observation import Observation
from vfl.registry import PluginSection
from vfl.topology import Topology

SHAPE = (SAMPLES, 1, 4, 4)
"""Of what each of the four workers holds."""
FIT = tuple(torch.zeros(SHAPE) for _ in range(4))
WIDE = tuple(torch.zeros(SAMPLES, 16) for _ in range(4))
"""What flows into the first dense layer of each."""


def part(first: Any) -> tuple[Any, ...]:
    return (first, *FIT[1:])


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "it must return a Recovery, not NoneType"),
    "too few slices": (lambda: Recovery(FIT[:3]), "slices must have a tensor for each of the 4 workers, not 3"),
    "stacked slices": (lambda: Recovery(torch.stack(FIT)), r"slices must be a tuple, not a float32 tensor"),
    "flat slices": (
        lambda: Recovery(part(torch.zeros(SAMPLES, 16))),
        r"slices\[0\] must be a dense floating-point tensor of shape \(6, 1, 4, 4\), not a float32 tensor of shape"
        r" \(6, 16\)",
    ),
    "lost samples": (lambda: Recovery(part(torch.zeros(5, 1, 4, 4))), r"slices\[0\] must be .*shape \(5, 1, 4, 4\)"),
    "numpy": (lambda: Recovery(part(np.zeros(SHAPE))), r"slices\[0\] must be .*, not numpy.ndarray"),
    "whole numbers": (lambda: Recovery(part(torch.zeros(SHAPE).long())), r"slices\[0\] must be .* int64 tensor"),
    "sparse": (lambda: Recovery(part(torch.zeros(SHAPE).to_sparse())), r"not a sparse_coo float32 tensor"),
    "labels as a list": (lambda: Recovery(FIT, labels=[0] * SAMPLES), "labels must be a tensor of whole .*, not list"),
    "labels as numbers": (lambda: Recovery(FIT, labels=torch.zeros(SAMPLES)), "labels must be .* float32 tensor"),
    "too few labels": (lambda: Recovery(FIT, labels=torch.zeros(2).long()), r"of shape \(6,\), -1 where .* \(2,\)"),
    "no such label": (
        lambda: Recovery(labels=torch.tensor([0, 1, 2, 99, 0, 0])),
        "labels must be from 0 to 2, or -1 where unknown, not 99",
    ),
    "below unknown": (lambda: Recovery(labels=torch.full((SAMPLES,), -2)), "not -2"),
    "representations": (
        lambda: Recovery(representations=part(torch.zeros(SAMPLES, 3, 3))),
        r"representations\[0\] must be a dense floating-point tensor of shape \(6, any\)",
    ),
    "layers": (lambda: Recovery(layers=("fc",)), "layers must have a string for each of the 4 workers, not 1"),
    "cells as numbers": (lambda: Recovery(cells=(0, 1)), "each of the cells must be a tuple of integers, not int"),
    "cells as a tensor": (lambda: Recovery(cells=torch.zeros(3)), "cells must be a tuple, not a float32 tensor"),
    "a cell of others": (lambda: Recovery(cells=((0, 6),)), r"samples from 0 to 5, not \(0, 6\)"),
    "an empty cell": (lambda: Recovery(cells=((),)), r"samples from 0 to 5, not \(\)"),
    "certificates": (
        lambda: Recovery(certificates=torch.zeros(SAMPLES)),
        r"certificates must be a dense floating-point tensor of shape \(6, 4\), not a float32 tensor of shape \(6,\)",
    ),
    "rounds to come": (lambda: Recovery(rounds=(1, 99)), "of those that it was shown, and round 99 was not"),
    "one note": (lambda: Recovery(notes="A note."), "notes must be a tuple, not str"),
    "numbers as notes": (lambda: Recovery(notes=(1,)), "notes must be a tuple of strings, and one of them is int"),
    "no such layer": (
        lambda: Recovery(representations=WIDE, layers=("1", "1", "nope", "1")),
        r"layers\[2\] must be the name of a layer of the model, not 'nope'",
    ),
    "layers of nothing": (lambda: Recovery(layers=("1",) * 4), "layers must come with representations"),
    "another width": (
        lambda: Recovery(representations=(*WIDE[:3], torch.zeros(SAMPLES, 3)), layers=("1",) * 4),
        r"representations\[3\] must have the shape \(6, 16\), as wide as the input of 1, not .* \(6, 3\)",
    ),
    "all samples": (lambda: Recovery((torch.zeros(SHAPE),)), "slices must have .* 4 workers, not 1"),
    "share of a worker": (lambda: Recovery((torch.zeros(2, 1, 4, 4),)), "slices must have"),
    "altered": (lambda: Recovery(altered=(0.5,)), "altered must have a number for each of the 4 workers, not 1"),
}
RIGHT: dict[str, Callable[[], Recovery]] = {
    "nothing": Recovery,
    "with a gradient": lambda: Recovery(part(torch.zeros(SHAPE, requires_grad=True) * 2), labels=torch.arange(6) % 3),
    "layers": lambda: Recovery(representations=WIDE, layers=("1",) * 4),
    "rounds twice": lambda: Recovery(rounds=(1, 1)),
    "half": lambda: Recovery(part(torch.zeros(SHAPE, dtype=torch.bfloat16))),
    "lists": lambda: Recovery(list(FIT), cells=[[0, 1]], notes=["A note."], rounds=[1]),
    "unknown": lambda: Recovery(part(torch.full(SHAPE, torch.nan)), labels=torch.full((SAMPLES,), -1)),
    "shorter labels": lambda: Recovery(FIT, labels=torch.zeros(SAMPLES, dtype=torch.int32)),
    "tensors in cells": lambda: Recovery(FIT, cells=(torch.tensor([2, 3]),), rounds=torch.tensor([1])),
}


class Returning(AttackPlugin):
    """Returns what it is told to, at the end or on the way."""

    what: str
    early: bool = False

    def start(self, _setting: Setting) -> Attack:
        def recover(progress: Progress) -> Any:
            make = RIGHT.get(self.what) or WRONG[self.what.removeprefix("wrong ")][0]
            if self.early:
                share(progress, make)
                return Recovery()
            return make()

        return SimpleNamespace(observe=lambda _: None, recover=recover)


def returned(what: str, progress: Progress = silent, early: bool = False, **changes: Any) -> Recovery:
    setting = setting_of("exact")
    name = PluginSection(name=f"{__name__}:Returning", what=what, early=early)
    attack = start_attack(name, replace(setting, **changes))
    if not changes:
        attack.observe(rounds_of(setting)[0])
    return attack.recover(progress)


class Watching:
    """A progress that takes every estimate."""

    def __init__(self) -> None:
        self.seen: list[Recovery] = []

    def __call__(self, *_: object) -> None:
        pass

    def estimate(self, make: Callable[[], Recovery]) -> None:
        self.seen.append(make())


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_told_with_the_attacks_name(what, early):
    told = rf"^the attack plug-in \S+:Returning failed in recover: .*{WRONG[what][1]}"
    with pytest.raises(RunFailedError, match=told):
        returned(f"wrong {what}", Watching(), early)


@pytest.mark.parametrize("what", RIGHT)
def test_what_fits_comes_as_plain_tensors_and_tuples(what):
    recovery = returned(what)
    for tensor in recovery.slices or ():
        assert not tensor.requires_grad
        tensor.numpy()
    assert all(isinstance(number, int) for cell in recovery.cells for number in cell)
    assert isinstance(recovery.notes, tuple)


def test_an_estimate_on_the_way_need_not_be_detached_either():
    watching = Watching()
    returned("with a gradient", watching, early=True)
    assert not watching.seen[0].slices[0].requires_grad


def test_in_a_horizontal_federation_each_workers_own_samples_count():
    setting = setting_of("exact")
    whole = {"boxes": setting.boxes[:1], "topology": Topology(2, kind="horizontal", shares=(2, 4))}
    with pytest.raises(RunFailedError, match=r":Returning failed in recover: slices must have .* 1 workers, not 4"):
        returned("unknown", **whole)
    with pytest.raises(RunFailedError, match=r"slices\[0\] must be .* shape \(2, 1, 4, 4\), .* shape \(6, 1, 4, 4\)"):
        returned("wrong all samples", **whole)
    with pytest.raises(RunFailedError, match=r"slices\[0\] must be .* shape \(4, 1, 4, 4\), .* shape \(2, 1, 4, 4\)"):
        returned("wrong share of a worker", **whole)  # fits the first, and not the second
    assert returned("nothing", **whole).slices is None


def test_rounds_come_in_order_and_once():
    assert returned("rounds twice").rounds == (1,)


@each_attack
def test_our_own_attacks_return_what_fits(name):
    setting = setting_of(name)
    attack = start_attack(PluginSection(name=name, **case_of(name).options), setting)
    for observation in rounds_of(setting):
        attack.observe(observation)
    assert isinstance(attack.recover(Watching()), Recovery)


class Leaving(AttackPlugin):
    """Ends the program."""

    def start(self, _setting: Setting) -> Attack:
        return self

    def observe(self, _observation: Observation) -> None:
        raise SystemExit(0)

    def recover(self, _progress: Progress) -> Recovery:
        raise KeyboardInterrupt


def test_an_attack_does_not_end_the_program_but_a_person_does():
    attack = start_attack(PluginSection(name=f"{__name__}:Leaving"), setting_of("exact"))
    with pytest.raises(CafeError, match="Leaving failed in observe: SystemExit: 0"):
        attack.observe(rounds_of(setting_of("exact"))[0])
    with pytest.raises(KeyboardInterrupt):
        attack.recover(silent)
