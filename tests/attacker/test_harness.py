"""Every registered attack goes through the same tiny federation: what an attack may rely on, and what it must keep to.

A new attack is picked up from the registry. Where the defaults do not fit it, a row of `CASES` says what does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from attacker.interface import Attack, AttackPlugin, Progress, Recovery, attacks, silent
from attacker.start import start_attack
from tests import seats_support
from tests.seats_support import seated, seen_from
from vfl.errors import RunFailedError, UserError
from vfl.observation import AnyObservation, Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.recovery import SEEN
from vfl.referee import best_order
from vfl.registry import PluginSection
from vfl.seats import COORDINATOR, Seat, SeatKind

SAMPLES, BATCH, CLASSES, ROUNDS = 6, 2, 3, 18

SEATS: dict[SeatKind, Seat] = {
    "coordinator": COORDINATOR,
    "label_holder": Seat("label_holder", 0),
    "worker": Seat("worker", 2),
}
"""Who plays an attack of each kind."""

MODEL = PluginSection(name="mlp", hidden=[24])
"""Its first layer sees 4x4 pixels at each of the four workers."""


@dataclass(frozen=True)
class Case:
    """How an attack is tried."""

    options: dict[str, Any] = field(default_factory=dict)
    model: PluginSection = MODEL
    exact: bool = False
    """Whether it must recover every sample to 1e-3; what others achieve is their own tests' business."""
    classes: int = CLASSES
    shape: tuple[int, ...] = (1, 8, 8)
    known: int = 0
    """So many samples the adversary knows whole, of twice as many."""
    leaves_off: bool = False
    """Whether a first recover() moves where the next one goes on from; the others must come to the same again."""


CASES: dict[str, Case] = {
    "least_squares": Case(exact=True),
    "exact": Case(exact=True),
    "averaging": Case(exact=True),
    "theory": Case({"disaggregate": True}, exact=True),
    "rgap": Case({"disaggregate": True}, PluginSection(name="strided_cnn", channels=(4, 6, 8)), exact=True),
    "label_norm": Case(classes=2),
    "label_direction": Case(classes=2),
    "model_completion": Case({"known": {0: 0, 1: 1, 2: 2}, "steps": 2}),
    "inverse_network": Case({"steps": 2, "hidden": 4}, known=12),
    "sdar": Case({"steps": 1, "hidden": 4}, known=12),
    "grn": Case({"epochs": 2}, shape=(16,)),
    "bn": Case(model=PluginSection(name="cafe_cnn", batch_norm=True, fc1=8, fc2=6, output=4)),
}
FEW = {"iterations": 2, "restarts": 2}
"""Options that are set wherever an attack has them: this is no test of convergence."""


def built_in() -> Iterator[str]:
    """The project's own attacks that look on: other tests may have added theirs to the registry.

    An active one wants rounds that are played as it proposes: test_isolate.py.
    """
    for name in attacks.names():
        if attacks.find(name).__module__.startswith("attacker.") and not attacks.find(name).active:
            yield name


each_attack = pytest.mark.parametrize("name", list(built_in()))


def pictures(setting: Setting) -> tuple[Tensor, Tensor]:
    coarse = torch.rand(setting.samples, 1, 5, 5, generator=torch.Generator().manual_seed(4))
    x, shape = interpolate(coarse, size=(8, 8), mode="bilinear"), setting.boxes[0].sample_shape
    return (x if len(shape) > 1 else x.flatten(1)[:, : shape[0]]), torch.arange(setting.samples) % setting.classes


def case_of(name: str) -> Case:
    case = CASES.get(name, Case())
    few = {option: value for option, value in FEW.items() if option in attacks.find(name).model_fields}
    return replace(case, options={**few, **case.options})


def setting_of(name: str, **changes: Any) -> Setting:
    case = case_of(name)
    boxes, samples = tuple(partition(case.shape, 4)), max(SAMPLES, 2 * case.known)
    base = Setting(case.model, boxes, case.classes, samples, BATCH, "epochs", ROUNDS, True, 11, "cpu")
    setting = replace(base, **{"auxiliary": case.known, **changes})
    seats = tuple(SEATS[kind] for kind in sorted(attacks.find(name).seats[0]))
    return seated(setting, seats, *pictures(setting))


def start(name: str, setting: Setting) -> Attack:
    return attacks.build(PluginSection(name=name, **case_of(name).options)).start(setting)


def rounds_of(setting: Setting) -> list[AnyObservation]:
    x, y = pictures(setting)
    return list(seen_from(setting, x, y, TrainingConfig()))


def attacked(name: str, setting: Setting, seen: list[AnyObservation]) -> Recovery:
    attack = start(name, setting)
    for observation in seen:
        attack.observe(observation)
    return attack.recover(silent)


def tensors_of(recovery: Recovery) -> list[Tensor]:
    """All that was recovered, for comparison."""
    several = [*(recovery.slices or ()), *(recovery.representations or ())]
    return several + [tensor for tensor in (recovery.labels, recovery.certificates) if tensor is not None]


def assert_same(found: Recovery, expected: Recovery) -> None:
    assert found.notes == expected.notes
    assert found.cells == expected.cells
    for left, right in zip(tensors_of(found), tensors_of(expected), strict=True):
        assert torch.equal(left.isnan(), right.isnan())
        assert torch.equal(left.nan_to_num(), right.nan_to_num())


def assert_sensible(setting: Setting, recovery: Recovery) -> None:
    """Right shapes, labels that exist, and slices that are finite or, where lost, NaN throughout."""
    for values, box in zip(recovery.slices or (), setting.boxes, strict=bool(recovery.slices)):
        assert values.shape == (setting.samples, *box.shape)
        known = values.flatten(1).isfinite()
        assert torch.equal(known.all(dim=1), known.any(dim=1))
        assert values[~known.all(dim=1)].isnan().all()
    for values in recovery.representations or ():
        assert len(values) == setting.samples
        assert not values.isinf().any()
    if recovery.labels is not None:
        assert recovery.labels.shape == (setting.samples,)
        assert recovery.labels.min() >= -1
        assert recovery.labels.max() < setting.classes
    pixels = {"pixels between 0 and 1", "pixels between 0 and 1 on 256 levels"}
    told = {
        "the classes of 3 samples",
        "12 samples known whole",
        "12 samples of the same kind",
        "columns at mean 0 and deviation 1",
    }
    assert set(recovery.used) <= {"indices", "parameters", "labels"} | {"own slice"} | set(SEEN) | pixels | told
    members = [n for cell in recovery.cells for n in cell]
    assert len(set(members)) == len(members)
    assert all(0 <= n < setting.samples for n in members)


def assert_known_answer(name: str, setting: Setting, recovery: Recovery) -> None:
    assert_sensible(setting, recovery)
    if not case_of(name).exact:
        return
    x, y = pictures(setting)
    assert recovery.slices is not None
    found = torch.empty_like(x)
    for box, part in zip(setting.boxes, recovery.slices, strict=True):
        box.paste(found, part)
    order = best_order(found, x, recovery.cell_of(setting.samples))
    assert (found[order] - x).abs().max() < 1e-3
    if recovery.labels is not None:
        assert torch.equal(recovery.labels[order], y)


@each_attack
def test_it_recovers_what_it_claims_and_leaves_what_it_was_shown_alone(name):
    setting = setting_of(name)
    seen = rounds_of(setting)
    before = [{where: tensor.clone() for where, tensor in seats_support.tensors_of(one).items()} for one in seen]
    assert_known_answer(name, setting, attacked(name, setting, seen))
    for observation, then in zip(seen, before, strict=True):
        now = seats_support.tensors_of(observation)
        assert all(torch.equal(now[where], then[where]) for where in then)


@pytest.mark.parametrize("name", [name for name in built_in() if "disaggregate" in attacks.find(name).model_fields])
def test_disaggregated_samples_are_told_apart(name):
    setting = setting_of(name)
    attack = attacks.build(PluginSection(name=name, **{**case_of(name).options, "disaggregate": True})).start(setting)
    for observation in rounds_of(setting):
        attack.observe(observation)
    recovery = attack.recover(silent)
    assert_known_answer(name, setting, recovery)
    assert recovery.cells == ()


@each_attack
def test_it_depends_on_the_seed_and_on_no_other_chance(name):
    setting = setting_of(name)
    seen = rounds_of(setting)
    torch.manual_seed(1)
    first = attacked(name, setting, seen)
    torch.manual_seed(2)
    assert_same(attacked(name, setting, seen), first)


@each_attack
def test_it_can_be_asked_early_and_go_on(name):
    setting = setting_of(name)
    seen = rounds_of(setting)
    attack = start(name, setting)
    for observation in seen[: ROUNDS // 2]:
        attack.observe(observation)
    try:
        assert_sensible(setting, attack.recover(silent))
    except UserError as error:
        assert_sentence(error)
    for observation in seen[ROUNDS // 2 :]:
        attack.observe(observation)
    later = attack.recover(silent)
    assert_known_answer(name, setting, later)
    if not case_of(name).leaves_off:
        assert_same(later, attacked(name, setting, seen))


@each_attack
def test_it_can_be_interrupted_and_asked_again(name):
    setting = setting_of(name)
    attack, calls = start(name, setting), []
    for observation in rounds_of(setting):
        attack.observe(observation)
    undisturbed = attack.recover(lambda *at: calls.append(at))
    assert all(0 <= done <= total for _, done, total in calls)

    def interrupt(*at):
        interrupted.append(at)
        if len(interrupted) == max(1, len(calls) // 2):
            raise KeyboardInterrupt

    interrupted: list[tuple[str, int, int]] = []
    if calls:
        with pytest.raises(KeyboardInterrupt):
            attack.recover(interrupt)
    again = attack.recover(silent)
    assert_known_answer(name, setting, again)
    if not case_of(name).leaves_off:
        assert_same(again, undisturbed)


def assert_sentence(error: UserError) -> None:
    assert len(str(error).split()) > 4
    assert "\n" not in str(error)


@each_attack
@pytest.mark.parametrize("what", ["zero gradients", "one sample", "one class", "no round"])
def test_degenerate_input_gives_something_sensible_or_a_sentence(name, what):
    changes = {
        "one sample": {"samples": 1, "batch_size": 1, "rounds": 2},
        "one class": {"classes": 1},
    }
    setting = setting_of(name, **changes.get(what, {}))
    seen = [] if what == "no round" else rounds_of(setting)
    if what == "zero gradients":
        for where, tensor in (pair for one in seen for pair in seats_support.tensors_of(one).items()):
            if any(what in where for what in ("gradients", "answer", "output")):
                tensor.zero_()
    try:
        assert_sensible(setting, attacked(name, setting, seen))
    except UserError as error:
        assert_sentence(error)


def _showing(progress: Progress | None, *others: object) -> Recovery:
    if progress is not None:
        progress("shown", 1, 1)
    return Recovery(used=("gradients",), notes=tuple(map(str, others)))


RECOVER: dict[str, Callable[..., Recovery]] = {
    "its name": lambda progress: _showing(progress),
    "another name": lambda report: _showing(report),
    "no name": lambda *given: _showing(*given),
    "before others": lambda progress, steps=2: _showing(progress, steps),
    "none": lambda: _showing(None),
    "keywords": lambda *, steps=2: _showing(None, steps),
}


class Shaped(AttackPlugin):
    """Takes its progress, or does not."""

    how: str

    def start(self, _setting: Setting) -> Attack:
        return SimpleNamespace(observe=lambda _: None, recover=RECOVER[self.how])


@pytest.mark.parametrize("how", RECOVER)
def test_an_attack_is_given_progress_first_and_has_to_take_it(how):
    attack = start_attack(PluginSection(name=f"{__name__}:Shaped", how=how), setting_of("exact"))
    steps: list[tuple[str, int, int]] = []
    if how in ("none", "keywords"):
        with pytest.raises(RunFailedError, match=r":Shaped failed in recover: TypeError: .* takes 0 positional"):
            attack.recover(silent)
        return
    recovery = attack.recover(lambda *step: steps.append(step))
    assert steps == [("shown", 1, 1)]
    assert recovery.notes == (("2",) if how == "before others" else ())
