"""Certificates: what is right is certified, and every way of being slightly wrong that we know of is not."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacker.certificate import Evidence
from attacker.certificate.explained import alone, left_over, together
from attacker.certificate.network import Pass
from vfl.local.one_process import OneProcess, observations
from vfl.maths.factors import factorize
from vfl.models.layers import fully_connected
from vfl.models.whole import first_model
from vfl.observation import Observation, Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.recovery import CERTIFIED, Recovery
from vfl.registry import PluginSection

ADAM = TrainingConfig(optimizer="adam", lr=1e-3)
FROZEN = TrainingConfig()


class Truth:
    """A small federation of two workers with six columns each, its rounds, and the data themselves."""

    def __init__(self, training: TrainingConfig, *, batch_size: int = 3, epochs: int = 3, **changes: Any) -> None:
        random = torch.Generator().manual_seed(4)
        self.x, self.y = torch.randn(24, 12, generator=random), torch.randint(3, (24,), generator=random)
        given: dict[str, Any] = {
            "model": PluginSection(name="mlp", hidden=[48]),
            "boxes": tuple(partition((12,), 2)),
            "classes": 3,
            "samples": 24,
            "batch_size": batch_size,
            "schedule": "epochs",
            "rounds": epochs * 24 // batch_size,
            "frozen": training.frozen,
            "seed": 0,
        }
        self.setting = Setting(**(given | changes))
        self.rounds = list(observations(self.setting, self.x, self.y, training))

    def certified(self, x: Tensor, *, rounds: list[Observation] | None = None, y: Tensor | None = None) -> Tensor:
        """Tell which of these samples the rounds certify."""
        bottoms = first_model(self.setting).bottoms
        layers = [fully_connected(own, box.shape)[0] for own, box in zip(bottoms, self.setting.boxes, strict=True)]
        evidence = Evidence(self.setting, layers)
        for observation in self.rounds if rounds is None else rounds:
            evidence.add(observation)
        certificates = evidence.certify([box.cut(x) for box in self.setting.boxes], self.y if y is None else y)
        return (certificates < CERTIFIED).all(dim=1)


@pytest.mark.parametrize("training", [FROZEN, ADAM], ids=["frozen", "Adam"])
@pytest.mark.parametrize("batch_size", [3, 6, 12])  # fewer than columns, as many, more
def test_the_truth_is_certified(training: TrainingConfig, batch_size: int) -> None:
    truth = Truth(training, batch_size=batch_size)
    assert bool(truth.certified(truth.x).all())


def longer(x: Tensor, _: Truth) -> Tensor:
    x[5] *= 1.01
    return x


def mixed_with_a_batch_mate(x: Tensor, truth: Truth) -> Tensor:
    mate = next(int(n) for n in truth.rounds[-1].indices if n != 5) if 5 in truth.rounds[-1].indices else 6
    x[5] += 0.01 * x[mate]
    return x


def one_value_off(x: Tensor, _: Truth) -> Tensor:
    x[5, 7] += 0.02
    return x


def exchanged(x: Tensor, _: Truth) -> Tensor:
    x[[5, 6]] = x[[6, 5]]
    return x


@pytest.mark.parametrize("wrong", [longer, mixed_with_a_batch_mate, one_value_off, exchanged])
@pytest.mark.parametrize("batch_size", [3, 6, 12])
@pytest.mark.parametrize("training", [FROZEN, ADAM], ids=["frozen", "Adam"])
def test_what_is_wrong_is_not(training: TrainingConfig, batch_size: int, wrong: Any) -> None:
    truth = Truth(training, batch_size=batch_size)
    certified = truth.certified(wrong(truth.x.clone(), truth))
    assert not bool(certified[5])
    if batch_size == 3:  # and where batches fit the layer, others are certified all the same
        assert int(certified.sum()) >= 20


def test_a_wrong_label_is_not() -> None:
    truth = Truth(ADAM)
    y = truth.y.clone()
    y[5] = (y[5] + 1) % 3
    assert not bool(truth.certified(truth.x, y=y)[5])
    assert not bool(truth.certified(truth.x, y=torch.where(torch.arange(24) == 5, -1, truth.y))[5])


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_round_that_contradicts_is_enough(which: int) -> None:
    """Every round counts, the first and the last as well as those in the middle."""
    truth = Truth(ADAM)
    at = [t for t, one in enumerate(truth.rounds) if 5 in one.indices][which]
    one = truth.rounds[at]
    bottoms = [
        {name: g * (1.01 if name.endswith("weight") else 1) for name, g in own.items()} for own in one.gradients.bottoms
    ]
    rounds = [*truth.rounds]
    rounds[at] = replace(one, gradients=replace(one.gradients, bottoms=tuple(bottoms)))
    certified = truth.certified(truth.x, rounds=rounds)
    assert not bool(certified[one.indices].any())
    assert int(certified.sum()) == 24 - len(one.indices)


def test_a_cell_is_certified_only_as_it_was_parted() -> None:
    """Two samples that share all their rounds: their mixtures span the same space."""
    truth = Truth(FROZEN, batch_size=2, schedule="epochs", rounds=12)
    a, b = truth.rounds[0].indices.tolist()
    rounds = [truth.rounds[0], replace(truth.rounds[0], round=2)]
    assert bool(truth.certified(truth.x, rounds=rounds)[[a, b]].all())
    x = truth.x.clone()
    x[a], x[b] = 0.99 * x[a] + 0.01 * x[b], 0.99 * x[b] + 0.01 * x[a]
    assert not bool(truth.certified(x, rounds=rounds)[[a, b]].any())
    x = truth.x.clone()
    x[[a, b], :6] = x[[b, a], :6]  # one worker's slices exchanged
    assert not bool(truth.certified(x, rounds=rounds)[[a, b]].any())


def test_workers_slices_that_the_network_cannot_tell_apart_are_not_certified_together() -> None:
    """Two samples of one class and a faint top model: with one worker's slices exchanged all comes back the same."""
    truth = Truth(FROZEN, batch_size=2, rounds=12)
    one = truth.rounds[0]
    a, b = one.indices.tolist()
    truth.y[a] = truth.y[b]
    crossed = truth.x.clone()
    crossed[[a, b], 6:] = crossed[[b, a], 6:]
    for size, told_apart in ((1.0, True), (1e-7, False)):
        parameters = replace(one.parameters, top={name: size * own for name, own in one.parameters.top.items()})
        gradients, _ = OneProcess(truth.setting, truth.x, truth.y)(parameters, one.indices)
        rounds = [replace(one, parameters=parameters, gradients=gradients)]
        assert truth.certified(truth.x, rounds=rounds)[[a, b]].tolist() == [told_apart] * 2
        assert not bool(truth.certified(crossed, rounds=rounds)[[a, b]].any())


def test_what_a_batch_leaves_of_the_top_models_gradient_counts_at_every_worker() -> None:
    ones = torch.ones(2, 3)
    passed = Pass(h=(ones, ones), v=(ones, 2 * ones), z=(ones, ones), u=ones)
    nothing = torch.zeros(4)
    assert [float(one) for one in together([nothing, nothing, nothing], passed, 2)] == [0, 0]
    left = [float(one) for one in together([nothing, nothing, torch.ones(4)], passed, 2)]
    assert left[0] > 0
    assert left[1] == pytest.approx(2 * left[0])  # in the units of each worker's own part


def test_a_sample_is_certified_where_it_is_at_all_workers() -> None:
    recovery = Recovery(certificates=torch.tensor([[1e-6, 1e-6], [1e-6, 1e-2], [1e-2, 1e-6], [1e-6, torch.nan]]))
    assert recovery.certified is not None
    assert recovery.certified.tolist() == [True, False, False, False]


def rounding_off(shape: tuple[int, ...]) -> nn.Module:
    """A bottom model that reads its second column as a category's number."""
    return _Categories(shape[0])


class _Categories(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.embedding, self.dense = nn.Embedding(8, 4), nn.Linear(columns + 3, 32)
        self.out = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        category = self.embedding(x[:, 1].long().clamp(0, 7))
        return self.out(torch.relu(self.dense(torch.cat([x[:, :1], category, x[:, 2:]], dim=1))))


def test_what_no_gradient_shows_is_not_certified() -> None:
    truth = Truth(ADAM, model=PluginSection(name=f"{__name__}:rounding_off"))
    assert not bool(truth.certified(truth.x).any())  # 2.3 and 2.7 are the same category


def test_noise_leaves_nothing_certified() -> None:
    truth = Truth(ADAM)
    random = torch.Generator().manual_seed(1)

    def noisy(g: Tensor) -> Tensor:
        return g + 0.01 * g.square().mean().sqrt() * torch.randn(g.shape, generator=random)

    rounds = [
        replace(
            one,
            gradients=replace(
                one.gradients, bottoms=tuple({k: noisy(g) for k, g in own.items()} for own in one.gradients.bottoms)
            ),
        )
        for one in truth.rounds
    ]
    assert not bool(truth.certified(truth.x, rounds=rounds).any())


def made_up(samples: int, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.rand(samples, inputs, generator=random), torch.randn(samples, outputs, generator=random)


def test_a_sample_alone_is_held_against_both_spaces_and_its_own_length() -> None:
    h, v = made_up(5, 40, 30)
    factors = factorize(v.T @ h / 5, None, 5)
    assert float(alone(factors, h, v).max()) < 1e-5
    assert float(alone(factors, h * 1.1, v)[0]) == pytest.approx(0.1, rel=1e-3)
    assert float(alone(factors, h + 0.1 * h.flip(0).roll(1, 1), v).min()) > 1e-2
    assert float(alone(factors, h, v + 0.1 * v.flip(0).roll(1, 1)).min()) > 1e-2


def test_what_good_samples_leave_has_the_rank_of_the_others() -> None:
    h, v = made_up(6, 40, 30)
    factors = factorize(v.T @ h / 6, None, 6)
    part = float((h.norm(dim=1) * v.norm(dim=1)).min() / 6)
    assert float(left_over(factors, h, v, 0)) < 1e-5 * part
    assert float(left_over(factors, h[:4], v[:4], 2)) < 1e-5 * part
    assert float(left_over(factors, h[:4], v[:4], 1)) > 0.1 * part
    wrong = h.clone()
    wrong[0] = wrong[0].roll(1)
    assert float(left_over(factors, wrong[:4], v[:4], 2)) > 1e-2 * part


def test_rounds_beyond_the_memory_are_left_out_and_counted() -> None:
    truth = Truth(ADAM)
    layers = [fully_connected(own, (6,))[0] for own in first_model(truth.setting).bottoms]
    evidence = Evidence(truth.setting, layers, most_bytes=100_000)
    for observation in truth.rounds:
        evidence.add(observation)
    kept = len(evidence.rounds)
    assert 0 < kept < len(truth.rounds)
    assert evidence.notes == [f"Certificates rest on the first {kept} of 24 rounds: more take too much memory."]
    certificates = evidence.certify([box.cut(truth.x) for box in truth.setting.boxes], truth.y)
    seen = torch.cat([one.samples for one in evidence.rounds])
    unseen = [n for n in range(24) if n not in seen.tolist()]
    assert bool(certificates[unseen].isnan().all())


def test_names_may_be_those_of_the_attack() -> None:
    """Without indices a sample is known by the batch that it was found in."""
    truth = Truth(ADAM)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    place = order.argsort()
    layers = [fully_connected(own, (6,))[0] for own in first_model(truth.setting).bottoms]
    evidence = Evidence(truth.setting, layers)
    for observation in truth.rounds[:8]:
        evidence.add(observation)
    slices = [box.cut(truth.x[order]) for box in truth.setting.boxes]
    batches = {one.round: place[one.indices] for one in truth.rounds[:8]}
    assert bool((evidence.certify(slices, truth.y[order], batches=batches) < CERTIFIED).all())
    assert not bool((evidence.certify(slices, truth.y[order]) < CERTIFIED).any())
