"""`cafe plan`: what it counts is what a run does, what it warns of is true, and a bad config is a sentence."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.integration.command_support import cafe
from tests.support import small_config
from vfl.config import load_config, parse_config
from vfl.datasets import Facts
from vfl.datasets.slices import data_facts, load_data
from vfl.errors import UserError
from vfl.folder.schema import as_json
from vfl.folder.summary import load_summary
from vfl.local.launch import run_federation
from vfl.plan.machine import Machine, this_machine
from vfl.plan.main import LEFT_FREE, make_plan, show_plan
from vfl.plan.terms import fit_coefficients, load_fitted, memory_terms, predict
from vfl.plan.traffic import count_traffic
from vfl.plan.workload import setting_of, workload_of
from vfl.referee import score_run

ROOT = Path(__file__).parents[3]
ROOMY = Machine(cores=2, memory=1 << 50, disk=1 << 50)


def measured(config, folder):
    run_federation(config, load_data(config), folder)
    sizes = as_json(load_summary(folder).bytes)
    return {key: sizes[key] for key in ("up", "down", "peer")}


@pytest.mark.parametrize(
    ("changes", "evaluations"),
    [
        ({"data": {"name": "digits", "samples": 24, "test_samples": 0}}, 0),
        ({"training": {"lr": 0.1, "evaluate_every": 3}, "federation": {"batch_size": 7, "rounds": 7}}, 3),
        ({"federation": {"workers": 2, "label_holder": 1, "label_holder_features": False}}, 1),
    ],
)
def test_bytes_of_a_run_are_counted_to_the_byte(changes, evaluations, tmp_path):
    config = small_config(**changes)
    found, sizes = workload_of(config).traffic, measured(config, tmp_path)
    assert (found.down, found.peer) == (sizes["down"], sizes["peer"])
    # how many test samples will be right nobody knows: a number that takes up to 3 bytes an evaluation
    assert abs(found.up - sizes["up"]) <= 3 * evaluations
    on_disk = sum(path.stat().st_size for path in (tmp_path / "transcript").glob("*.safetensors"))
    tensors = workload_of(config).transcript_bytes
    files = 2 * config.federation.rounds
    assert tensors <= on_disk <= tensors + files * 8192  # each file names its tensors, and has a checksum


def test_without_a_transcript_as_many_bytes_can_wait_for_the_attack():
    kept = workload_of(small_config(attack={"name": "exact"}))
    not_kept = workload_of(small_config(attack={"name": "exact"}, transcript=False))
    nobody = workload_of(small_config(transcript=False))
    assert (kept.waiting_bytes, nobody.waiting_bytes, not_kept.transcript_bytes) == (0, 0, 0)
    assert not_kept.waiting_bytes == kept.transcript_bytes > 0


def test_a_bundle_of_several_chunks_is_counted_as_it_is_sent(tmp_path):
    config = small_config(model={"name": "mlp", "hidden": [1024, 1024]}, federation={"workers": 2, "rounds": 1})
    load = workload_of(config)
    assert load.largest_model_bytes > 4 << 20  # more than a message takes
    found, sizes = load.traffic, measured(config, tmp_path)
    assert (found.down, found.peer) == (sizes["down"], sizes["peer"])
    assert abs(found.up - sizes["up"]) <= 3


def test_two_epochs_are_needed_where_batches_have_room():
    exact = {"name": "exact", "method": "subspaces"}
    config = small_config(attack=exact, model={"name": "mlp", "hidden": [64]}, federation={"rounds": 2})
    plan = make_plan(config, Path(), ROOMY)
    assert plan.load.needs.method == "subspaces"
    assert plan.load.needs.rounds == 2 * 3  # 24 samples in batches of 8
    (warning,) = plan.warnings
    assert "The attack exact cannot run here: " in warning
    assert "nothing about safety; these attacks can run here" in warning
    assert warning.endswith("With 6 rounds exact could run.")


def test_an_attack_that_no_number_of_rounds_lets_start_is_a_warning_with_what_can_run(capsys):
    config = small_config(attack={"name": "least_squares"}, training={"lr": 0.1})
    plan = make_plan(config, Path(), ROOMY)
    (warning,) = plan.warnings
    assert warning.startswith("The attack least_squares cannot run here: it needs frozen parameters, and")
    assert "these attacks can run here (attack.name): cafe, " in warning
    assert plan.tree()["attack"]["refusal"] in warning
    show_plan(plan)
    assert "least_squares, which cannot run here" in capsys.readouterr().out


@pytest.mark.parametrize(("frozen_epochs", "epochs"), [(0, 3), (1, 3), (2, 2)])
def test_while_parameters_move_three_epochs_are_needed(frozen_epochs, epochs):
    training = {"lr": 0.1, "schedule": {"frozen_epochs": frozen_epochs}}
    model, federation = {"name": "mlp", "hidden": [64]}, {"rounds": 9}  # three epochs of 24 samples in batches of 8
    exact = {"name": "exact", "method": "subspaces"}
    config = small_config(attack=exact, model=model, training=training, federation=federation)
    plan = make_plan(config, Path(), ROOMY)
    assert plan.load.needs.rounds == 3 * epochs
    assert plan.unknown  # that takes a time which nobody measured
    shorter = small_config(attack=exact, model=model, training=training, federation={"rounds": 6})
    assert any("exact cannot run here" in text for text in make_plan(shorter, Path(), ROOMY).warnings) == (epochs == 3)


def test_one_gradient_needs_one_epoch_whatever_moves():
    training, model = {"optimizer": "adam", "lr": 1e-3}, {"name": "mlp", "hidden": [64]}
    config = small_config(attack={"name": "exact"}, model=model, training=training, federation={"rounds": 9})
    plan = make_plan(config, Path(), ROOMY)
    assert plan.load.needs.method == "one_gradient"
    assert plan.load.needs.rounds == 3
    assert plan.unknown


def test_where_frozen_epochs_are_all_that_there_is_nothing_moves():
    training = {"lr": 0.1, "schedule": {"frozen_epochs": 2}}
    config = small_config(attack={"name": "exact"}, training=training, federation={"rounds": 6}, transcript=False)
    load = workload_of(config)
    assert load.frozen
    still = workload_of(small_config(attack={"name": "exact"}, federation={"rounds": 6}, transcript=False))
    assert load.waiting_bytes == still.waiting_bytes
    later = workload_of(config.model_copy(update={"federation": config.federation.model_copy(update={"rounds": 9})}))
    assert later.waiting_bytes == 12 / 7 * still.waiting_bytes  # 9 rounds, and the parameters before 7, 8 and 9


def test_least_squares_needs_as_many_rounds_as_tell_all_samples_apart():
    """The oracle is the rank of the drawn batches' matrix itself."""
    config = small_config(attack={"name": "least_squares"}, federation={"batch_size": 6, "rounds": 1})
    needed = workload_of(config).needs.rounds
    from vfl.observation.schedule import batches

    def rank(rounds):
        matrix = np.zeros((rounds, 24))
        for row, batch in zip(matrix, batches("epochs", 24, 6, rounds, seed=config.seed), strict=True):
            row[batch] = 1
        return np.linalg.matrix_rank(matrix)

    assert rank(needed) == 24
    assert rank(needed - 4) < 24


def test_a_machine_that_is_too_small_is_told_so():
    config = load_config(ROOT / "configs/digits.yaml", ["transcript=true"])
    plan = make_plan(config, Path(), ROOMY)
    assert not plan.warnings
    tight = replace(ROOMY, memory=plan.memory_total - 1)
    (warning,) = make_plan(config, Path(), tight).warnings
    assert "The machine is too small" in warning
    disk = plan.load.transcript_bytes + plan.load.results_bytes + LEFT_FREE
    assert not make_plan(config, Path(), replace(ROOMY, disk=disk)).warnings
    (warning,) = make_plan(config, Path(), replace(ROOMY, disk=disk - 1)).warnings
    assert "The disk is too small" in warning


def test_rounds_that_would_not_all_find_room_while_they_wait_for_the_attack_are_told_of():
    config = load_config(ROOT / "configs/digits.yaml", ["transcript=false"])
    load = make_plan(config, Path(), ROOMY).load
    disk = load.waiting_bytes + load.results_bytes + LEFT_FREE
    assert load.waiting_bytes > 0
    assert not make_plan(config, Path(), replace(ROOMY, disk=disk)).warnings
    (warning,) = make_plan(config, Path(), replace(ROOMY, disk=disk - 1)).warnings
    assert "The disk does not hold all rounds" in warning


def test_what_was_not_measured_is_not_estimated():
    moving = small_config(
        attack={"name": "exact"}, model={"name": "mlp", "hidden": [64]}, training={"lr": 0.1}, federation={"rounds": 9}
    )
    plan = make_plan(moving, Path(), ROOMY)
    assert plan.unknown
    assert "attack" not in plan.memory
    assert set(plan.seconds) == {"federation", "scoring"}


@pytest.mark.parametrize(
    "attack", [{"name": "cafe", "loop": "single"}, {"name": "dlg", "iterations": 3}], ids=lambda attack: attack["name"]
)
def test_of_an_attack_that_goes_on_guessing_no_rounds_are_called_enough(attack, capsys):
    plan = make_plan(small_config(attack=attack), Path(), ROOMY)
    assert plan.tree()["attack"]["rounds_needed"] is None
    show_plan(plan)
    shown = capsys.readouterr().out
    assert "needs" not in shown
    (total,) = [line for line in shown.splitlines() if line.startswith("  in all")]
    assert total.rstrip().endswith("without the attack")


def test_results_on_the_disk_are_the_files_that_a_run_writes(tmp_path):
    config = small_config(attack={"name": "exact"}, model={"name": "mlp", "hidden": [64]}, federation={"rounds": 6})
    data = load_data(config)
    run_federation(config, data, tmp_path)
    first = (tmp_path / "recovered.npz").stat().st_size
    score_run(tmp_path, config, data)
    written = first + sum((tmp_path / name).stat().st_size for name in ("recovered.npz", "model.pt"))
    counted = workload_of(config).results_bytes
    assert counted <= written <= 1.2 * counted + 20_000  # names, labels, certificates


def test_all_of_cifar10_is_planned_where_there_is_less_of_it(tmp_path, monkeypatch):
    pixels, labels = np.zeros((20, 32, 32, 3), dtype=np.uint8), np.arange(20) % 10
    np.savez(tmp_path / "cifar10.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    monkeypatch.setenv("CAFE_DATA", str(tmp_path))
    config = load_config(ROOT / "configs/scale/cifar10_50000.yaml")
    assert data_facts(config) == Facts(50_000, 0, (3, 32, 32), 10)
    with pytest.raises(UserError, match=r"data\.samples: 50000 asked for, the data set has 20"):
        load_data(config)
    with pytest.raises(UserError, match=r"data\.samples: 50001 asked for, the data set has 50000"):
        data_facts(load_config(ROOT / "configs/scale/cifar10_50000.yaml", ["data.samples=50001"]))


def test_a_million_samples_are_planned_without_making_them():
    config = load_config(ROOT / "configs/scale/million.yaml", ["federation.batch_size=200"])
    assert data_facts(config) == Facts(1_000_000, 0, (3, 32, 32), 10)
    plan = make_plan(config, Path(), replace(ROOMY, memory=1 << 30))
    assert plan.load.needs.rounds == 2 * 5_000
    assert any(text.startswith("samples") for text in plan.beyond)
    assert any("too small" in text for text in plan.warnings)


def test_facts_of_an_archive_are_those_of_its_data(tmp_path):
    random = np.random.default_rng(0)
    for name, shape in (("gray", (9, 6, 5)), ("last", (9, 6, 5, 3)), ("first", (9, 3, 6, 5)), ("table", (9, 4))):
        pixels = random.random(shape) if name == "table" else random.integers(0, 255, shape, dtype=np.uint8)
        np.savez(
            tmp_path / f"{name}.npz", x_train=pixels, y_train=np.arange(9) % 4, x_test=pixels, y_test=np.arange(9) % 5
        )
        data = {"name": "npz", "path": str(tmp_path / f"{name}.npz"), "samples": 7}
        config = small_config(data=data)
        assert data_facts(config) == Facts.of(load_data(config)), name


def test_synthetic_images_are_what_their_facts_say_and_do_not_depend_on_how_many():
    few, many = (
        load_data(parse_config({"data": {"name": "synthetic", "samples": n, "shape": [1, 8, 8]},
                                "federation": {"batch_size": 2, "rounds": 1}}, "the test"))
        for n in (5, 4100)
    )  # fmt: skip
    assert bool((many.x[:5] == few.x).all())
    assert 0.2 < float((many.x == 0).float().mean()) < 0.8
    assert float(many.x.min()) >= 0
    assert float(many.x.max()) <= 1


def test_the_fit_finds_the_coefficients_it_was_made_of():
    terms = [{"runs": 1.0, "gflop": float(n), "idle": float(n % 3)} for n in (1, 5, 8, 40)]
    found = fit_coefficients(terms, [2.0 + 0.5 * one["gflop"] for one in terms])
    assert found == pytest.approx({"runs": 2.0, "gflop": 0.5, "idle": 0.0}, abs=1e-9)
    assert predict(found, {"runs": 1, "gflop": 10}, {"gflop": 2.0}) == pytest.approx(12.0)


def test_the_fit_leaves_what_is_known_alone():
    terms = [{"runs": 1.0, "pairs gflop": float(n)} for n in (0, 4, 9)]
    found = fit_coefficients(
        terms, [1.0 + 3.0 * one["pairs gflop"] for one in terms], {"pairs gflop": 3.0, "other": 1.0}
    )
    assert found == pytest.approx({"runs": 1.0, "pairs gflop": 3.0})


def test_the_shipped_model_covers_the_measured_range_and_what_it_measured():
    fitted = load_fitted()
    assert fitted.ranges["samples"][0] <= 200
    assert fitted.ranges["samples"][1] >= 8000
    assert fitted.ranges["workers"] == (2, 64)
    for one in fitted.points:
        load = workload_of(parse_config(dict(one["config"]), "a measured point"))
        counted = {"up": load.traffic.up, "down": load.traffic.down, "peer": load.traffic.peer}
        # the label holder may have heard from a peer of the next round when it writes how many bytes it has exchanged
        assert sum(abs(counted[key] - one["bytes"][key]) for key in counted) <= 3
        for process in ("coordinator", "attack"):
            if process in one["memory"]:
                planned = 1e9 * predict(fitted.memory[process], memory_terms(load)[process])
                assert one["memory"][process] <= planned * (1 + 1e-9), one["config"]


def test_the_command_prints_the_plan_for_programs():
    done = cafe("plan", ROOT / "configs/digits.yaml", "--json", "--cores", "1", "--memory", "0.1")
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    assert tree["machine"]["cores"] == 1
    assert tree["seconds"]["total"] > 0
    assert "too small" in tree["warnings"][0]


def test_a_plan_is_shown_with_its_doubts_and_warnings(capsys, monkeypatch):
    monkeypatch.delenv("CAFE_DATA", raising=False)
    config = load_config(ROOT / "configs/scale/cifar10_50000.yaml", ["federation.batch_size=250"])
    show_plan(make_plan(config, Path(), replace(ROOMY, memory=1 << 30)))
    shown = " ".join(capsys.readouterr().out.split())
    assert "exact by subspaces, needs 400 rounds" in shown
    assert "between workers" in shown
    assert "no run like this was measured: samples: 50,000 here, " in shown
    assert "Warning: The machine is too small" in shown


def test_a_bad_config_is_a_sentence():
    done = cafe("plan", ROOT / "configs/digits.yaml", "--set", "federation.wrokers=2")
    assert done.returncode == 2
    assert "wrokers" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "says"), [("data.samples=2000", "data.samples"), ("attack.name=nothing", "nothing")]
)
def test_what_cannot_be_planned_is_said(change, says):
    with pytest.raises(UserError, match=says):
        make_plan(load_config(ROOT / "configs/digits.yaml", [change]), Path(), ROOMY)


@pytest.mark.parametrize("gigabytes", ["nan", "inf"])
def test_memory_that_is_no_number_is_a_sentence(gigabytes):
    done = cafe("plan", ROOT / "configs/digits.yaml", "--memory", gigabytes)
    assert done.returncode == 2
    assert "--memory" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_run_would_refuse_is_not_planned():
    with pytest.raises(UserError, match=r"federation\.batch_size: 99 is more than the 24 samples"):
        make_plan(small_config(federation={"batch_size": 99}, attack={"name": "none"}), Path(), ROOMY)


def test_the_coordinators_own_label_holder_is_a_process_too():
    plans = [make_plan(small_config(federation={"label_holder": who}), Path(), ROOMY) for who in (0, "coordinator")]
    assert [plan.load.parties for plan in plans] == [4, 5]
    assert plans[1].memory_total > plans[0].memory_total


def test_this_machine_has_cores_memory_and_disk(tmp_path):
    machine = this_machine(tmp_path / "not" / "there" / "yet")
    assert machine.cores >= 1
    assert machine.memory > 0
    assert machine.disk > 0


def test_evaluations_are_counted_with_the_parameters_they_need():
    """An evaluation after the last round needs the parameters of that round once more; one in the middle does not."""
    base = {"training": {"lr": 0.1}, "federation": {"batch_size": 8, "rounds": 4}}
    config = small_config(**base)
    setting = setting_of(config, data_facts(config))
    from vfl.models.whole import first_model
    from vfl.plan.workload import _uploads

    model = first_model(setting)
    without, with_tests = (
        count_traffic(config, setting, test_samples=n, uploads=_uploads(model, config), widths=model.widths)
        for n in (0, 30)
    )
    assert with_tests.down - without.down > sum(p.numel() * 4 for p in model.parameters())
