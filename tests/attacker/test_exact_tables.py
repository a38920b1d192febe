import pytest
import torch

from attacker.exact import choice
from attacker.exact.choice import choose
from attacker.interface import attacks, silent
from vfl.errors import UserError
from vfl.local.one_process import observations
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection


def setting(epochs, **changes):
    """90 rows of 12 columns at two workers, batches of 12, the last one of 6: least squares needs 13 epochs."""
    values = {
        "model": PluginSection(name="mlp", hidden=[32]),
        "boxes": tuple(partition((12,), 2)),
        "classes": 2,
        "samples": 90,
        "batch_size": 12,
        "schedule": "epochs",
        "rounds": 8 * epochs,
        "frozen": True,
        "seed": 0,
    }
    return Setting(**{**values, **changes})


def recover(given):
    torch.manual_seed(1)
    x, y = torch.randn(90, 12), torch.arange(90) % 2
    x[:, 3] *= 10  # an outlier's column
    running = attacks.build(PluginSection(name="exact")).start(given)
    for observation in observations(given, x, y, TrainingConfig()):
        running.observe(observation)
    return x, y, running.recover(silent)


def right_rows(given, x, recovery):
    found = torch.cat([part.float() for part in recovery.slices], dim=1)
    return float(((found - x).abs() <= 1e-3 * (x.amax(0) - x.amin(0))).all(1).float().mean())


def test_with_rounds_enough_tables_are_least_squares():
    given = setting(15)
    assert choose(given, "auto").method == "least_squares"
    x, y, recovery = recover(given)
    assert right_rows(given, x, recovery) == 1.0
    assert torch.equal(recovery.labels, y)


def test_with_fewer_rounds_than_rows_rank_one_completes_them():
    given = setting(9)  # rank 64 of 90
    assert choose(given, "auto").method == "rank_one"
    x, y, recovery = recover(given)
    assert right_rows(given, x, recovery) == 1.0
    assert torch.equal(recovery.labels, y)
    assert int(recovery.certified.sum()) >= 30


def test_logistic_regression_takes_as_many_rounds_as_rows_and_then_leaks_all():
    regression = PluginSection(name="mlp", hidden=[], output=1)
    with pytest.raises(
        UserError, match=r"needs 13 epochs .* by rank one it needs larger first layers, .* has 6 inputs and 1 outputs"
    ):
        choose(setting(9, model=regression), "auto")
    given = setting(15, model=regression)
    x, y, recovery = recover(given)
    assert right_rows(given, x, recovery) == 1.0
    assert torch.equal(recovery.labels, y)


def test_too_few_epochs_are_refused_with_what_either_way_needs():
    with pytest.raises(UserError, match=r"needs 13 epochs \(104 rounds\).*by rank one it needs about \d epochs"):
        choose(setting(3), "auto")


def small_linear(epochs, **changes):
    """12 rows in batches of 3 through a linear bottom: the layer has room, but its v have one dimension alone."""
    values = {"model": PluginSection(name="mlp", hidden=[]), "samples": 12, "batch_size": 3, "rounds": 4 * epochs}
    return setting(epochs, **{**values, **changes})


def recover_small(given, blank=(), **options):
    torch.manual_seed(1)
    x, y = torch.randn(12, 12), torch.arange(12) % 2
    x[list(blank)] = 0
    running = attacks.build(PluginSection(name="exact", **options)).start(given)
    for observation in observations(given, x, y, TrainingConfig()):
        running.observe(observation)
    return x, y, running.recover(silent)


def test_where_subspaces_leave_rows_open_least_squares_is_tried_and_said_to_be_used():
    given = small_linear(6)
    assert choose(given, "auto").method == "subspaces"
    assert recover_small(given, method="subspaces")[2].certificates.isnan().all()
    x, y, recovery = recover_small(given)
    assert right_rows(given, x, recovery) == 1.0
    assert torch.equal(recovery.labels, y)
    assert recovery.notes[:2] == (
        "The attack split each batch's gradients into those of its samples, by least squares.",
        "Subspaces were tried first: they explain 0 of 24 slices, least squares 24.",
    )


def test_where_subspaces_find_all_least_squares_is_not_tried():
    given = small_linear(6, model=PluginSection(name="mlp", hidden=[64]), batch_size=2, rounds=36)
    recovery = recover_small(given)[2]
    assert recovery.notes[0] == "The attack split each batch's gradients into those of its samples, by subspaces."
    assert recovery.certified.all()


def test_with_too_few_rounds_for_least_squares_the_notes_say_how_many_would_do():
    recovery = recover_small(small_linear(3))[2]
    assert recovery.certificates.isnan().all()
    assert any("it needs 4 epochs (16 rounds) for 12 samples in batches of 3" in note for note in recovery.notes)


def test_what_was_not_recovered_for_want_of_rounds_is_told_from_what_no_gradient_shows():
    parted = "24 of 24 slices were not recovered: 24 because these rounds do not tell them from other samples'"
    assert any(note.startswith(parted) for note in recover_small(small_linear(3))[2].notes)
    wide = small_linear(6, model=PluginSection(name="mlp", hidden=[64]), batch_size=2, rounds=36)
    notes = recover_small(wide, blank=[3], method="subspaces")[2].notes
    silent = "because the gradients of a batch of theirs show nothing but the others"
    assert f"2 of 24 slices were not recovered: 2 {silent}." in notes


def test_least_squares_is_not_kept_ready_where_it_would_take_much_memory(monkeypatch):
    given = small_linear(6)
    assert choose(given, "auto").beside is not None
    monkeypatch.setattr(choice, "MOST_BYTES", choice.squares_bytes(given, choose(given, "auto").layers) - 1)
    assert choose(given, "auto").beside is None
    assert any("set attack.method to least_squares" in note for note in recover_small(given)[2].notes)
