"""`exact` while the model trains: rounds with parameters of their own."""

from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from attacker.driver.follow import Follower
from attacker.exact.moving import pursuit
from attacker.exact.moving.correct import Where, lengths_and_v, outside
from attacker.exact.moving.match import SeveralRounds, Unsettled, match_rounds, rounds_to_match
from attacker.interface import Recovery, attacks, silent
from attacker.inversion import InversionOptions
from vfl.errors import UserError
from vfl.local.one_process import observations
from vfl.maths.factors import factorize
from vfl.observation import Setting
from vfl.optimisers.training import RateSchedule, TrainingConfig
from vfl.partition import partition
from vfl.recovery import CERTIFIED
from vfl.registry import PluginSection

SHAPE = (1, 8, 8)
SUBSPACES = {"name": "exact", "method": "subspaces"}


def smooth_images(count: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    x = torch.nn.functional.interpolate(torch.rand(count, 1, 4, 4, generator=random), size=8, mode="bilinear")
    return (x * 255).round() / 255, torch.randint(4, (count,), generator=random)


def setting_for(model: str, samples: int, epochs: int, **changes: Any) -> Setting:
    given: dict[str, Any] = {
        "model": PluginSection(name=model),
        "boxes": tuple(partition(SHAPE, 2)),
        "classes": 4,
        "samples": samples,
        "batch_size": 4,
        "schedule": "epochs",
        "rounds": epochs * samples // 4,
        "frozen": False,
        "seed": 0,
    }
    return Setting(**(given | changes))


def attacked(setting: Setting, training: TrainingConfig, **options: Any) -> tuple[Recovery, Tensor, Tensor]:
    x, y = smooth_images(setting.samples)
    attack = Follower(attacks.build(PluginSection.model_validate(SUBSPACES | options)).start(setting))
    for _ in attack.follow(observations(setting, x, y, training)):
        pass
    return attack.recover(silent), x, y


def psnr(recovery: Recovery, setting: Setting, x: Tensor) -> Tensor:
    assert recovery.slices is not None
    errors = [(own - box.cut(x)).flatten(1).square() for own, box in zip(recovery.slices, setting.boxes, strict=True)]
    return -10 * torch.cat(errors, dim=1).mean(dim=1).clamp_min(1e-10).log10()


@pytest.mark.parametrize(
    "training", [TrainingConfig(lr=0.1), TrainingConfig(optimizer="adam", lr=1e-4)], ids=["SGD 0.1", "Adam 1e-4"]
)
def test_images_are_followed_through_rounds_with_parameters_of_their_own(training: TrainingConfig) -> None:
    setting = setting_for("cafe_cnn", samples=24, epochs=6)
    recovery, x, y = attacked(setting, training)
    found = psnr(recovery, setting, x)
    assert float(found.median()) > 80
    assert float((found > 30).float().mean()) >= 0.9
    assert recovery.labels is not None
    assert float((recovery.labels == y).float().mean()) >= 0.9
    assert recovery.certificates is not None
    assert recovery.certified is not None
    assert float(recovery.certified.float().mean()) > 0.8
    assert float(found[recovery.certified].min()) > 60
    assert recovery.ledger is not None
    assert recovery.ledger.versions == 36
    assert recovery.ledger.rounds == tuple(range(1, 37))
    assert recovery.ledger.other == ("pixels between 0 and 1 on 256 levels",)


def test_where_the_layer_sees_the_data_nothing_moves() -> None:
    setting = setting_for("mlp", samples=24, epochs=5)
    recovery, x, _ = attacked(setting, TrainingConfig(lr=0.1))
    assert float(psnr(recovery, setting, x).min()) > 60
    assert recovery.ledger is not None
    assert recovery.ledger.other == (), "no step III, and so nothing is taken for granted"


def test_two_frozen_epochs_of_a_warm_up_are_enough_and_later_rounds_are_not_used() -> None:
    setting = setting_for("cafe_cnn", samples=24, epochs=4)
    recovery, x, _ = attacked(setting, TrainingConfig(lr=0.1, schedule=RateSchedule(frozen_epochs=2)))
    assert recovery.ledger is not None
    assert recovery.ledger.versions == 1
    assert recovery.ledger.rounds == tuple(range(1, 14))  # the first step follows the first round of the third epoch
    frozen, _, _ = attacked(
        setting_for("cafe_cnn", samples=24, epochs=4, frozen=True, rounds=13), TrainingConfig(lr=0.0)
    )
    assert recovery.slices is not None
    assert frozen.slices is not None
    assert all(map(torch.equal, recovery.slices, frozen.slices))  # as complete as with frozen parameters
    assert torch.equal(recovery.labels, frozen.labels)
    alone = torch.ones(setting.samples, dtype=torch.bool)
    alone[[n for cell in recovery.cells for n in cell]] = False  # within a cell the order is arbitrary
    assert int(alone.sum()) >= 12
    assert float(psnr(recovery, setting, x)[alone].min()) > 60


def test_a_warm_up_that_leaves_samples_together_is_no_protection_either() -> None:
    setting = setting_for("mlp", samples=24, epochs=6)  # its layer sees the data: nothing parts a cell of two
    recovery, x, _ = attacked(setting, TrainingConfig(lr=0.1, schedule=RateSchedule(frozen_epochs=2)))
    assert recovery.ledger is not None
    assert recovery.ledger.versions > 1
    assert float(psnr(recovery, setting, x).min()) > 60


@pytest.mark.parametrize("model", ["mlp", "cafe_cnn"])
def test_a_run_that_ends_early_is_as_one_that_was_planned_so(model: str) -> None:
    planned, longer = (setting_for(model, samples=16, epochs=epochs) for epochs in (4, 12))
    x, y = smooth_images(16)
    found = []
    for setting in (planned, longer):
        attack = attacks.build(PluginSection.model_validate(SUBSPACES)).start(setting)
        for observation in islice(observations(longer, x, y, TrainingConfig(lr=0.1)), planned.rounds):
            attack.observe(observation)
        found.append(attack.recover(silent))
    first, second = found
    assert first.labels is not None
    assert float((first.labels == y).float().mean()) >= 0.9
    assert torch.equal(first.labels, second.labels)
    assert all(map(torch.equal, first.slices, second.slices))


def test_a_snapshot_before_all_were_drawn_is_a_sentence() -> None:
    setting = setting_for("mlp", samples=24, epochs=6)
    attack = attacks.build(PluginSection.model_validate(SUBSPACES)).start(setting)
    for observation in islice(observations(setting, *smooth_images(24), TrainingConfig(lr=0.1)), 3):
        attack.observe(observation)
    with pytest.raises(UserError, match=r"24 of 24 samples .* were in fewer than 3 of the 3 rounds"):
        attack.recover(silent)


def test_what_is_wrong_has_no_good_certificate() -> None:
    setting = setting_for("mlp", samples=8, epochs=3)  # so few rounds that some samples share them all
    recovery, x, _ = attacked(setting, TrainingConfig(lr=0.1))
    assert recovery.slices is not None
    assert recovery.certificates is not None
    assert recovery.cells
    error = torch.stack(
        [(own - box.cut(x)).flatten(1).abs().amax(1) for own, box in zip(recovery.slices, setting.boxes, strict=True)],
        dim=1,
    )
    sure = recovery.certificates < CERTIFIED
    assert bool(sure.any())
    assert float(error[sure].max()) < 0.02


def test_samples_without_a_direction_of_their_own_do_not_spoil_the_lengths_of_others() -> None:
    random = torch.Generator().manual_seed(2)
    h = torch.rand(6, 40, generator=random, dtype=torch.float64)
    v = torch.randn(6, 30, generator=random, dtype=torch.float64)
    directions = h / h.norm(dim=1, keepdim=True)
    directions[5] = directions[4]
    lengths, _ = lengths_and_v(factorize(v.T @ h / 6, v.mean(0), 6), directions)
    assert torch.allclose(lengths[:4], h.norm(dim=1)[:4])


def test_data_that_nearly_fit_are_moved_until_they_explain_several_rounds() -> None:
    setting = setting_for("cafe_cnn", samples=16, epochs=4)
    x, y = smooth_images(16)
    attack = attacks.build(PluginSection.model_validate(SUBSPACES)).start(setting)
    for observation in observations(setting, x, y, TrainingConfig(optimizer="adam", lr=1e-3)):
        attack.observe(observation)
    trails = attack._trails  # what the circle of corrections would begin with
    where = Where.of(trails.batches, 16, trails.middle)
    truth = setting.boxes[0].cut(x)
    noise = 0.05 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(3))
    trail = trails.workers[0]
    away = [outside(stop.factors, trail.representations(t, truth[stop.batch])) for t, stop in enumerate(trail.stops)]
    shares = {(int(n), t): float(away[t][at]) for t, stop in enumerate(trail.stops) for at, n in enumerate(stop.batch)}
    rounds = [rounds_to_match(where, n, {t: shares[n, t] for t in where.rounds[n]}) for n in range(16)]
    shown = [n for n in range(16) if max(shares[n, t] for t in rounds[n]) < 1e-5]  # not where v is nearly zero
    assert len(shown) >= 8
    samples, rounds = torch.tensor(shown), [rounds[n] for n in shown]
    start, wanted = (truth + noise).clamp(0, 1)[samples], truth[samples]
    goal = SeveralRounds.of(trail, rounds, wanted)
    assert float(goal.residuals(wanted).max()) < 1e-5  # each round with its own parameters
    assert float(goal.residuals(start).min()) > 1e-3
    unsettled, options = Unsettled(samples, rounds, start), InversionOptions(attempts=1)
    found = match_rounds(trail, unsettled, seed=0, options=options, progress=lambda _: None)
    error, before = ((one - wanted).flatten(1).square().mean(1).sqrt() for one in (found, start))
    assert float(error.median()) < 0.1 * float(before.median())
    assert bool((goal.residuals(found) < goal.residuals(start)).all())


def test_a_batch_comes_apart_into_lengths_and_v() -> None:
    random = torch.Generator().manual_seed(1)
    h = torch.rand(5, 40, generator=random, dtype=torch.float64)
    v = torch.randn(5, 12, generator=random, dtype=torch.float64)
    factors = factorize(v.T @ h / 5, v.mean(0), 5)
    elsewhere = torch.randn(1, 40, generator=random, dtype=torch.float64)
    directions = torch.cat([h, elsewhere]) / torch.cat([h, elsewhere]).norm(dim=1, keepdim=True)
    lengths, found = lengths_and_v(factors, directions)
    assert torch.allclose(lengths[:5], h.norm(dim=1))
    assert torch.allclose(found[:5], v)
    assert bool(lengths[5].isnan())


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({"schedule": "uniform"}, {}, "needs epochs .* while the parameters move, and it is uniform"),
        ({}, {"method": "least_squares"}, "by least squares it needs frozen parameters"),
        ({"batch_size": 20}, {}, "40 inputs, two batches, while the parameters move, and worker 0 has none"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_the_first_round(
    changes: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    setting = setting_for("mlp", samples=40, epochs=4, **changes)
    with pytest.raises(UserError, match=sentence):
        attacks.build(PluginSection.model_validate(SUBSPACES | options)).start(setting)


@pytest.mark.parametrize(("still", "starts"), [(0, False), (11, False), (12, True)])
def test_too_few_epochs_are_a_sentence_before_the_first_round(still: int, starts: bool) -> None:
    attack = attacks.build(PluginSection.model_validate(SUBSPACES))
    setting = setting_for("cafe_cnn", samples=24, epochs=2, still_rounds=still)
    if starts:
        attack.start(setting)
        return
    with pytest.raises(
        UserError, match=r"needs 3 epochs \(18 rounds\) .* while the parameters move, and the run has 12"
    ):
        attack.start(setting)


def test_a_run_that_ended_early_has_too_few_rounds() -> None:
    setting = setting_for("cafe_cnn", samples=24, epochs=3)
    x, y = smooth_images(setting.samples)
    attack = attacks.build(PluginSection.model_validate(SUBSPACES)).start(setting)
    for observation in islice(observations(setting, x, y, TrainingConfig(lr=0.1)), 12):
        attack.observe(observation)
    with pytest.raises(UserError, match="in fewer than 3 of the 12 rounds"):
        attack.recover(silent)


def test_where_the_likeliest_cannot_be_matched_the_others_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam at 3e-3 leaves many samples open; what matching makes of a group decides about the next."""
    setting = setting_for("cafe_cnn", samples=24, epochs=4, boxes=tuple(partition(SHAPE, 1)))
    monkeypatch.setattr(pursuit, "GROUPS", (3, 5))
    tried: list[int] = []

    def in_vain(_trail: object, unsettled: Unsettled, **_: object) -> Tensor:
        tried.append(len(unsettled.samples))
        return unsettled.x

    training = TrainingConfig(optimizer="adam", lr=3e-3)
    options = {"inversion": {"attempts": 1, "hopeless": 1.0}}
    monkeypatch.setattr(pursuit, "match_rounds", in_vain)
    attacked(setting, training, **options)
    assert tried == [3]
    truth = smooth_images(24)[0]

    def at_first(_trail: object, unsettled: Unsettled, **_: object) -> Tensor:
        tried.append(len(unsettled.samples))
        return truth[unsettled.samples] if len(tried) == 2 else unsettled.x

    monkeypatch.setattr(pursuit, "match_rounds", at_first)
    attacked(setting, training, **options)
    assert tried == [3, 3, 5]
    monkeypatch.setattr(pursuit, "match_rounds", lambda _trail, unsettled, **_: truth[unsettled.samples])
    recovery, _, _ = attacked(setting, training, **options)
    assert float((psnr(recovery, setting, truth) > 60).float().mean()) > 0.9


def test_where_nobodys_data_fit_the_circle_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = setting_for("cafe_cnn", samples=12, epochs=4, boxes=tuple(partition(SHAPE, 1)))
    corrected: list[int] = []
    correct = pursuit.Pursuit._correct

    def counted(self: pursuit.Pursuit) -> Tensor:
        corrected.append(1)
        return correct(self)

    monkeypatch.setattr(pursuit.Pursuit, "_correct", counted)
    options = {"inversion": {"attempts": 1, "acceptable": 1e-12, "hopeless": 2.0}}  # nothing is so near
    attacked(setting, TrainingConfig(optimizer="adam", lr=3e-3), **options)
    assert len(corrected) == pursuit.PATIENCE
