"""`exact` by one gradient: every batch from its own, whatever the optimiser does and whatever the rows are called."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacker.exact import Exact
from attacker.exact.one_gradient import recover, search
from attacker.exact.one_gradient.batch import Batch
from attacker.interface import Recovery, silent
from attacker.inversion import InversionOptions
from attacker.refusal import RefusalError
from tests.attacker.test_exact_attack import images, setting_for
from vfl.local.one_process import observations
from vfl.observation import Observation, Setting
from vfl.optimisers.training import TrainingConfig
from vfl.registry import PluginSection

ADAM = TrainingConfig(optimizer="adam", lr=1e-3)
FROZEN = TrainingConfig(lr=0.0)


def recovered(
    setting: Setting, x: Tensor, y: Tensor, training: TrainingConfig = ADAM, change: Any = lambda o: o, **options: Any
) -> Recovery:
    attack = Exact(**options).start(setting)
    for observation in observations(setting, x, y, training):
        attack.observe(change(observation))
    return attack.recover(silent)


def errors(setting: Setting, recovery: Recovery, x: Tensor) -> Tensor:
    """Return the root mean square error of each row as the recovery names it; one for a row that was not found."""
    assert recovery.slices is not None
    apart = [(own - box.cut(x)).flatten(1) for own, box in zip(recovery.slices, setting.boxes, strict=True)]
    return torch.cat(apart, dim=1).square().mean(dim=1).sqrt().nan_to_num(1.0)


def found(setting: Setting, recovery: Recovery, x: Tensor) -> int:
    """Return how many samples were found, whatever they are called: each by a row of its own."""
    assert recovery.slices is not None
    rows = torch.cat([own.flatten(1) for own in recovery.slices], dim=1).nan_to_num(9.0)
    truth = torch.cat([box.cut(x).flatten(1) for box in setting.boxes], dim=1)
    right = torch.cdist(rows, truth) / truth.shape[1] ** 0.5 < 1e-2
    return int(right[linear_sum_assignment(~right.numpy())].sum())


@pytest.mark.parametrize(
    "training", [ADAM, TrainingConfig(lr=0.1, momentum=0.9, weight_decay=5e-4)], ids=["Adam", "SGD"]
)
def test_one_epoch_of_any_optimiser_gives_every_image_and_label(training: TrainingConfig) -> None:
    x, y = images(12)
    setting = setting_for(x, 4, 3, frozen=False, workers=2)
    recovery = recovered(setting, x, y, training)
    assert found(setting, recovery, x) == 12
    assert {len(cell) for cell in recovery.cells} == {4}  # within a batch nothing says which is which
    assert recovery.labels is not None
    for cell in map(list, recovery.cells):
        assert sorted(recovery.labels[cell].tolist()) == sorted(y[cell].tolist())


def test_later_rounds_tell_who_is_who_though_the_parameters_have_moved() -> None:
    x, y = images(12)
    setting = setting_for(x, 4, 9, frozen=False, workers=2)
    recovery = recovered(setting, x, y)
    in_cells = {n for cell in recovery.cells for n in cell}
    alone = [n for n in range(12) if n not in in_cells]
    assert len(alone) >= 6
    assert float(errors(setting, recovery, x)[alone].max()) < 1e-2
    assert recovery.labels is not None
    assert torch.equal(recovery.labels[alone], y[alone])
    assert recovery.used[:3] == ("indices", "parameters", "gradients")


def test_what_the_first_epoch_hides_a_later_round_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = images(12)
    setting = setting_for(x, 4, 6, frozen=False, workers=2)
    solve, rounds = search.solve_batch, []

    def forgetful(*args: Any, **kwargs: Any) -> Batch:
        """Lose a whole sample of the first round, and another's slice at one worker."""
        batch = solve(*args, **kwargs)
        rounds.append(args[2].number)
        if args[2].number == 1:
            first, *rest = batch.rows[1:]
            assert set(first.h) == {0, 1}
            return replace(batch, rows=(replace(first, h={0: first.h[0]}), *rest))
        return batch

    monkeypatch.setattr(search, "solve_batch", forgetful)
    recovery = recovered(setting, x, y)
    assert found(setting, recovery, x) == 12
    lost = set(rounds) - {1, 2, 3}
    assert lost  # rounds of the second epoch, those that have what is missing


def test_slices_that_no_round_determines_are_joined_over_their_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = images(8)
    setting = setting_for(x, 4, 4, frozen=False, workers=2)
    monkeypatch.setattr(search, "ROOM", 1e9)  # as if every h had too few values
    joined: list[int] = []
    join = recover.join_rounds

    def counting(found: search.Search, progress: Any) -> bool:
        before = int(found.people.sure.sum())
        more = join(found, progress)
        joined.append(int(found.people.sure.sum()) - before)
        return more

    monkeypatch.setattr(recover, "join_rounds", counting)
    recovery = recovered(setting, x, y, inversion=InversionOptions(levels=0))
    assert joined[0] > 0  # none was sure before
    assert found(setting, recovery, x) == 8


@pytest.mark.parametrize("trust", [True, False])
def test_gradients_that_show_nobody_leave_every_sample_unknown(trust: bool) -> None:
    x, y = images(12)
    setting = setting_for(x, 4, 3, frozen=False, workers=2)

    def drowned(observation: Observation) -> Observation:
        draw = torch.Generator().manual_seed(observation.round)
        noisy = tuple(
            {name: torch.randn(part.shape, generator=draw) for name, part in own.items()}
            for own in observation.gradients.bottoms
        )
        return replace(observation, gradients=replace(observation.gradients, bottoms=noisy))

    recovery = recovered(setting, x, y, change=drowned, trust_indices=trust)
    assert recovery.slices is not None
    assert all(own.isnan().all() for own in recovery.slices)
    assert any("12 of 12 samples were not recovered" in note for note in recovery.notes)


def test_an_attack_that_comes_late_looks_at_no_round_before() -> None:
    x, y = images(12)
    setting = setting_for(x, 4, 6, frozen=False, workers=2)
    shown: list[Observation] = []
    recovery = recovered(setting, x, y, change=lambda o: shown.append(o) or o, first_round=6)
    batch = shown[-1].indices
    others = sorted(set(range(12)) - set(batch.tolist()))
    assert recovery.rounds == (6,)
    assert found(setting, recovery, x) >= 3
    assert recovery.slices is not None
    assert bool(recovery.slices[0][others].isnan().all())
    with pytest.raises(RefusalError, match="before round 6"):
        Exact(method="subspaces", first_round=6).start(setting_for(x, 4, 6))


def renamed(samples: int) -> Any:
    """Return a change of observations: other names for the rows in each round, as `defence: indices` makes them."""

    def change(observation: Observation) -> Observation:
        names = torch.randperm(samples, generator=torch.Generator().manual_seed(observation.round))
        return replace(observation, indices=names[observation.indices])

    return change


@pytest.mark.parametrize(("schedule", "rounds"), [("epochs", 3), ("uniform", 8)])
def test_rows_whose_names_are_made_up_are_found_once_each(schedule: str, rounds: int) -> None:
    x, y = images(12)
    setting = setting_for(x, 4, rounds, schedule=schedule, frozen=False, workers=2)
    drawn: set[int] = set()

    def change(observation: Observation) -> Observation:
        drawn.update(observation.indices.tolist())
        return renamed(12)(observation)

    recovery = recovered(setting, x, y, change=change, trust_indices=False)
    assert found(setting, recovery, x) == len(drawn)
    assert recovery.slices is not None
    assert int(recovery.slices[0].flatten(1).isfinite().all(dim=1).sum()) == len(drawn)
    assert recovery.cells == (tuple(range(12)),)
    assert "indices" not in recovery.used


def test_overlapping_batches_name_their_samples() -> None:
    x, y = images(12)
    setting = setting_for(x, 3, 14, schedule="uniform", workers=2)
    recovery = recovered(setting, x, y, FROZEN, method="one_gradient")
    in_cells = {n for cell in recovery.cells for n in cell}
    seen = [n for n in range(12) if n not in in_cells]
    assert len(seen) >= 6
    assert float(errors(setting, recovery, x)[seen].max()) < 1e-2


def test_it_is_chosen_where_two_epochs_of_frozen_parameters_are_not_to_be_had() -> None:
    x, _ = images(24)
    frozen = Exact().start(setting_for(x, 8, 6))
    one_epoch, moving = Exact().start(setting_for(x, 8, 3)), Exact().start(setting_for(x, 8, 6, frozen=False))
    assert type(frozen).__name__ == "ExactAttack"
    assert type(one_epoch).__name__ == type(moving).__name__ == "OneGradient"
    followed = Exact().start(setting_for(x, 8, 9, frozen=False))  # three epochs: samples could be followed, too
    assert type(followed).__name__ == "OrTogether"


def test_where_one_gradient_shows_little_the_rounds_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = images(12)
    setting = setting_for(x, 4, 12, frozen=False, workers=2)
    solve = search.solve_batch

    def blind(*args: Any, **kwargs: Any) -> Batch:
        batch = solve(*args, **kwargs)
        return replace(batch, rows=batch.rows[:1])

    monkeypatch.setattr(search, "solve_batch", blind)
    recovery = recovered(setting, x, y, TrainingConfig(lr=0.01))
    assert found(setting, recovery, x) >= 10
    assert any("kept what certifies more: subspaces" in note for note in recovery.notes)


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (PluginSection(name="mlp", hidden=()), {"method": "one_gradient"}, "takes what a ReLU leaves"),
        (PluginSection(name="cafe_cnn", fc1=6), {"method": "one_gradient"}, "holds a batch"),
        (PluginSection(name="cafe_cnn"), {"method": "subspaces", "trust_indices": False}, "indices to join rounds by"),
    ],
)
def test_what_it_needs_is_said_before_the_first_round(
    model: PluginSection, options: dict[str, Any], words: str
) -> None:
    x, _ = images(24)
    with pytest.raises(RefusalError, match=words):
        Exact(**options).start(setting_for(x, 12, 6, model))
