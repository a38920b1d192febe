"""What an attack and a worker's round do on a GPU, made certain without one.

On torch's meta device there is no data: a tensor of the CPU among the others, or a number that is looked at (for which
a GPU would have to be waited for), raises. Whole attacks, which look at numbers now and then, run on a stand-in of ours
(`tests.attacker.stand_in`). Fake CUDA tensors cannot stand in here: autograd asks for the device's own code, which
torch's CPU build has not.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attacker.cafe import Cafe
from attacker.interface import Recovery, attacks, silent
from attacker.inversion import spread
from attacker.matching import objectives, regularisers
from attacker.matching.components import depths
from attacker.matching.engine import Engine
from attacker.matching.objectives import Targets
from tests.attacker.cafe_support import CNN, MLP, images, seen, setting_for
from tests.attacker.stand_in import DEVICE, StandIn
from vfl.device import full_precision, moved
from vfl.models import build_bottom, build_top
from vfl.registry import PluginSection
from worker.party import Bottom, Top

ROWS = {
    "CAFE": {},
    "alpha 0": {"alpha": 0},
    "DLG": {"beta": 0, "gamma": 0},
    "Cosine": {"match": "cosine", "gamma": 0},
    "SAPAG": {"match": "gaussian", "beta": 0, "gamma": 0},
    "BN": {"statistics": 1e-3, "beta": 0, "gamma": 0},
    "GC": {"consistency": 1e-3, "starts": 2, "beta": 0, "gamma": 0},
    "clipped, replayed": {"clip": True, "replay": 2},
}
AT_ONCE = {"switch_one": None, "switch_two": None}


class Waits(TorchDispatchMode):
    """Counts what a GPU would have to be waited for: numbers and sizes that the program looks at."""

    LOOKS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__.strip("_")
        self.found[name] += any(look.strip("_") == name for look in self.LOOKS)
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return sum(self.found.values())


class Sent(TorchDispatchMode):
    """Counts the tensors that go from the CPU to a device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.count = device, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        to = (kwargs or {}).get("device")
        if func.overloadpacket.__name__ == "_to_copy" and to is not None and torch.device(to).type == self.device:
            self.count += args[0].device.type == "cpu"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ROWS)
def test_an_iteration_of_cafe_stays_on_its_device_and_waits_for_nothing(name):
    x, y = images(8)
    model = PluginSection.model_validate({**CNN.model_dump(), "batch_norm": name == "BN"})
    setting = setting_for(x, 3, 4, model)
    attack = Cafe(**AT_ONCE, **ROWS[name]).start(replace(setting, device="meta"))
    for observation in seen(setting, x, y):
        attack.observe(observation)
    assert attack.iterations[2] == 4
    assert {tensor.device.type for tensor in attack.variables.tensors().values()} == {"meta"}


def test_cafe_waits_once_an_iteration_while_it_watches_a_threshold_and_then_never():
    x, y = images(8)
    setting = setting_for(x, 3, 12, CNN)
    attack = Cafe(switch_one=0.0, switch_two=0.0, shares=(4, 4, 4)).start(setting)
    waited = []
    for observation in seen(setting, x, y):
        with Waits() as waits:
            attack.observe(observation)
        waited.append(waits.total)
    assert waited == [1] * 8 + [0] * 4


def test_what_a_round_brings_goes_to_the_card_once_and_parameters_when_they_change():
    x, y = images(8)
    setting = setting_for(x, 3, 4, CNN)
    attack = Cafe(**AT_ONCE).start(replace(setting, device="meta"))
    rounds = seen(setting, x, y)
    rounds[3] = replace(rounds[3], parameters=replace(rounds[3].parameters))  # as after an update
    sent = []
    for observation in rounds:
        with Sent("meta") as counted:
            attack.observe(observation)
        sent.append(counted.count)
    uploaded = sum(map(len, (*rounds[0].gradients.bottoms, rounds[0].gradients.top)))
    parameters = sum(map(len, (*rounds[0].parameters.bottoms, rounds[0].parameters.top)))
    once = uploaded + 1  # and the batch's indices
    assert sent == [once + parameters, once, once, once + parameters]


def test_what_goes_to_a_card_goes_through_pinned_memory_and_is_not_waited_for(monkeypatch):
    done = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: done.append("pinned") or tensor)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *args, **how: done.append((args, how)) or tensor)
    card = torch.device("cuda")
    moved(torch.zeros(2), card)
    assert done == ["pinned", ((card,), {"non_blocking": True})]


SHORT = {"inversion": {"attempts": 1, "search_steps": 2, "polish_steps": 2}}
WHOLE = {
    "cafe": {**AT_ONCE},
    "exact": SHORT,
    "dlg": {"iterations": 2},
    "cosine": {"iterations": 2},
    "idlg": {"iterations": 2},
    "sapag": {"iterations": 2},
    "gradient_leakage": {"iterations": 2},
    "bn": {"iterations": 2},
    "gc": {"iterations": 2},
    "theory": SHORT,
    "averaging": SHORT,
    "least_squares": {},
    "rgap": {},
}
"""Every attack from the coordinator's seat, short."""
QUICK = ("cafe", "exact", "cosine")
ROUNDS = {"exact": 12, "theory": 12, "averaging": 12, "least_squares": 24, "rgap": 6}


def on(device: str, name: str, monkeypatch, **options) -> tuple[Recovery, Counter[str]]:
    """What an attack recovers there from start to end, and what a card would have been waited for meanwhile."""
    x, y = images(6)
    model = MLP if name == "rgap" else PluginSection.model_validate({**CNN.model_dump(), "batch_norm": name == "bn"})
    setting = setting_for(x, 1 if name in ("idlg", "rgap") else 3, ROUNDS.get(name, 2), model)
    rounds = seen(setting, x, y)
    with StandIn() as card:
        monkeypatch.setattr(
            spread,
            "ThreadPoolExecutor",  # modes are of a thread, and step III has its own
            lambda count, **how: ThreadPoolExecutor(count, initializer=StandIn(card.found).__enter__, **how),
        )
        attack = attacks.find(name)(**WHOLE[name] | options).start(replace(setting, device=device))
        for observation in rounds:
            attack.observe(observation)
        return attack.recover(silent), card.found


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in WHOLE]
)
def test_a_whole_attack_runs_on_a_stand_in_for_a_card_and_hands_over_tensors_of_the_cpu(name, monkeypatch):
    recovery, found = on(DEVICE, name, monkeypatch)
    parts = [*(recovery.slices or ()), *(recovery.representations or ())]
    assert parts
    assert {type(part) for part in parts} == {torch.Tensor}
    assert {part.device.type for part in parts} == {"cpu"}
    assert (found.total() == 0) == (name in ("least_squares", "rgap")), found  # the page on GPUs says what runs where


@pytest.mark.parametrize("name", ["cafe", pytest.param("dlg", marks=pytest.mark.slow)])
def test_what_is_recovered_there_is_what_is_recovered_on_the_cpu(name, monkeypatch):
    (there, _), (here, _) = (on(device, name, monkeypatch) for device in (DEVICE, "cpu"))
    for one, other in zip(there.slices, here.slices, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0, equal_nan=True)


def test_the_stand_in_refuses_a_tensor_of_the_cpu_and_counts_what_is_looked_at():
    with StandIn() as card:
        there = torch.rand(3, 4).to(DEVICE)
        with pytest.raises(RuntimeError, match="a tensor of the CPU among those of the card"):
            there + torch.rand(3, 4)
        assert card.found.total() == 0
        assert float(there.sum()) == pytest.approx(float(there.cpu().sum()))
        assert card.found == {"_local_scalar_dense": 1, "to the CPU": 1}


def test_an_iteration_of_a_rival_with_adam_waits_at_most_twice(monkeypatch):
    few, many = (on(DEVICE, "cosine", monkeypatch, iterations=count)[1].total() for count in (2, 6))
    assert many - few <= 2 * 4


@pytest.mark.parametrize("objective", ["squared", "cosine", "gaussian"])
def test_the_rivals_objective_and_its_gradient_stay_on_their_device(objective):
    x, y = images(6)
    setting = replace(setting_for(x, 3, 1, CNN), device="meta")
    (observation,) = seen(replace(setting, device="cpu"), x, y)
    engine = Engine(setting)
    targets = Targets.of([one.reshape(1, -1) for one in engine.flat(observation.gradients)], depths(engine))
    slices = [torch.rand(3, *box.shape, device="meta", requires_grad=True) for box in setting.boxes]
    scores = torch.rand(3, setting.classes, device="meta", requires_grad=True)
    guess = engine.guess(engine.flat(observation.parameters), slices, scores.softmax(1))
    named = {"squared": objectives.squared, "cosine": objectives.cosine, "gaussian": objectives.GaussianKernel()}
    value = named[objective]([one.reshape(1, -1) for one in guess.gradients], targets)
    whole = torch.cat([part.flatten(1) for part in slices], 1).reshape(3, 1, 8, 8)
    smooth = regularisers.total_variation(regularisers.Situation(whole, scores, guess, 1))
    found = torch.autograd.grad((value + smooth).sum(), [*slices, scores])
    assert {one.device.type for one in found} == {"meta"}


def test_a_workers_round_stays_on_its_device_and_the_label_holder_waits_for_the_loss_alone():
    bottom = Bottom(build_bottom(CNN, (1, 8, 8), 0, 0), torch.rand(6, 1, 8, 8), None, "meta")
    output = bottom.forward(torch.tensor([0, 2, 5]))
    gradients = bottom.backward(torch.rand(3, 10))
    assert {one.device.type for one in (output, *gradients.values())} <= {"meta", "cpu"}
    top = Top(build_top(CNN, [10, 10], 5, 0), torch.arange(6) % 5, None, "cpu")
    outputs = [torch.rand(3, 10) for _ in range(2)]
    with Waits() as waits:
        top.learn(outputs, torch.tensor([0, 2, 5]))
    assert waits.total == 1


@contextmanager
def as_before() -> Iterator[None]:
    flags = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


def test_gpus_multiply_in_full_precision():
    with as_before():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        full_precision()
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32


def test_every_attack_is_known_to_the_page_on_gpus():
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    ours = [name for name in attacks.builtin_names() if attacks.find(name).__module__.startswith("attacker.")]
    assert {"cafe", "exact"} < set(ours)  # other tests register some of their own
    assert all(f"`{name}`" in page for name in ours if name != "none")
