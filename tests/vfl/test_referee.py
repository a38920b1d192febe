import csv
import json

import numpy as np
import pytest
import torch

from vfl.config import parse_config
from vfl.datasets.slices import boxes_of, load_data
from vfl.files.archive import save_arrays
from vfl.folder.record import Record, write_summary
from vfl.folder.recovered import write_recovery
from vfl.folder.verdict import leaks
from vfl.maths.metrics import exact_rows, psnr, r2, ssim
from vfl.observation import Setting
from vfl.partition import partition
from vfl.recovery import Recovery
from vfl.referee import best_order, score_images, score_run, score_table
from vfl.referee.estimates import Estimates


def test_psnr_is_the_closed_form_clipped_and_capped():
    truth = torch.rand(3, 3, 16, 16)
    x = truth.clone()
    x[1] = (truth[1] * 0.5 + 0.2).clamp(0, 1)
    x[2] = 5.0  # clipped to 1
    values = psnr(x, truth)
    assert values[0] == 100
    assert values[1] == pytest.approx(-10 * np.log10(float((x[1] - truth[1]).square().mean())), abs=1e-4)
    assert values[2] == pytest.approx(-10 * np.log10(float((1 - truth[2]).square().mean())), abs=1e-4)


def test_ssim_of_small_images_is_defined():
    truth = torch.rand(2, 1, 8, 8)
    assert torch.allclose(ssim(truth, truth), torch.ones(2))
    assert (ssim(torch.rand(2, 1, 8, 8), truth) < 0.9).all()


def test_the_baseline_is_the_mean_image():
    truth = torch.rand(5, 1, 16, 16)
    guess = truth.mean(0, keepdim=True).expand_as(truth)
    scores = score_images(guess, truth)
    assert scores["psnr_mean"] == pytest.approx(scores["psnr_baseline"])
    assert scores["share_30db"] == 0


def test_rows_of_a_table():
    truth = torch.tensor([[0.0, 10.0], [1.0, 20.0], [2.0, 40.0]])
    x = truth.clone()
    x[0, 0] += 0.0019
    x[1, 1] += 0.04
    assert exact_rows(x, truth).tolist() == [True, False, True]
    assert r2(truth, truth).tolist() == [1, 1]
    assert r2(truth.mean(0).expand_as(truth), truth).tolist() == [0, 0]


def test_squared_errors_in_ranges_beside_the_mean_and_an_even_draw():
    random = torch.Generator().manual_seed(0)
    truth = torch.rand(200, 3, generator=random, dtype=torch.float64) ** 2 * torch.tensor([1.0, 50.0, 1e-3])
    x, scaled = truth * 1.02, (truth - truth.amin(0)) / (truth.amax(0) - truth.amin(0))
    scores = score_table(x, truth)
    off = (x - truth) / (truth.amax(0) - truth.amin(0))
    assert scores["range_mse"] == pytest.approx(float(off.square().mean()))
    assert scores["range_mse_baseline"] == pytest.approx(float(scaled.var(0, unbiased=False).mean()))
    drawn = torch.rand(4000, 200, 3, generator=random, dtype=torch.float64)
    assert scores["range_mse_random"] == pytest.approx(float((drawn - scaled).square().mean()), rel=1e-2)


def test_the_estimates_of_a_run_under_way_are_scored_without_what_the_adversary_has_itself(tmp_path):
    tree = {
        "seed": 0,
        "data": {"name": "digits", "samples": 12},
        "federation": {"workers": 2, "batch_size": 4, "rounds": 3},
        "model": {"name": "mlp"},
        "training": {"optimizer": "adam", "lr": 0.001},
        "adversary": "label_holder",
        "auxiliary": 8,
        "attack": {"name": "inverse_network"},
    }
    config = parse_config(tree, "the test")
    data = load_data(config)
    x, told = data.x.clone(), np.arange(12) < 8
    other = boxes_of(data, config)[1]
    for sample in range(8, 12):
        other.cut(x)[sample] = 0.5  # all else is known, and no estimate
    estimates = Estimates(tmp_path, (data, config))
    (tmp_path / "snapshots").mkdir()
    save_arrays(tmp_path / "snapshots" / "00000002.npz", {"x": x.numpy(), "told": told, "cell": np.arange(12)})
    estimates.look()
    estimates.close()
    noted = json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[-1])
    truth = other.cut(data.x)[8:]
    assert noted["psnr_mean"] == pytest.approx(float(psnr(torch.full_like(truth, 0.5), truth).mean()), abs=1e-3)


def test_a_column_without_a_range_spoils_nothing():
    truth = torch.tensor([[0.1, 1.0], [0.1, 2.0], [0.1, 4.0]])
    x = truth + 1e-7
    assert exact_rows(x, truth).all()
    assert r2(x, truth)[0].isnan()
    assert score_table(x, truth)["r2"] == pytest.approx(1, abs=1e-6)


def test_a_cell_is_scored_under_its_best_assignment():
    truth = torch.rand(5, 1, 4, 4)
    shuffled = truth[torch.tensor([0, 3, 2, 1, 4])]
    cell = torch.tensor([0, 1, 2, 1, 4])
    assert torch.equal(shuffled[best_order(shuffled, truth, cell)], truth)
    alone = torch.arange(5)
    assert torch.equal(best_order(shuffled, truth, alone), alone)


def test_a_sample_that_was_found_is_not_given_away_for_a_lost_one():
    truth = torch.tensor([0.6, 1.0]).reshape(2, 1, 1, 1).expand(2, 1, 4, 4)
    found = torch.tensor([0.5, 0.6]).reshape(2, 1, 1, 1).expand(2, 1, 4, 4)  # grey for the second, which was lost
    assert best_order(found, truth, torch.zeros(2, dtype=torch.long)).tolist() == [1, 0]


def test_labels_without_images_are_counted_in_the_order_that_fits_within_cells(tmp_path):
    config = parse_config({"data": {"name": "digits", "samples": 6}, "federation": {"batch_size": 3, "rounds": 2}}, "x")
    data = load_data(config)
    found = data.y.clone()
    found[[0, 1, 2]] = data.y[[1, 2, 0]]  # a cell's order is arbitrary
    found[4] = -1  # unknown
    write_summary(tmp_path, config, None, Record(rounds=1))
    save_arrays(tmp_path / "recovered.npz", {"labels": found.numpy(), "cell": np.array([0, 0, 0, 3, 4, 5])})
    assert score_run(tmp_path, config, data).attack.label_accuracy == pytest.approx(5 / 6)


@pytest.mark.parametrize("used", [["gradients"], ["gradients", "labels"]])
def test_labels_go_with_their_samples_unless_they_were_told(tmp_path, used):
    config = parse_config({"data": {"name": "digits", "samples": 4}, "federation": {"batch_size": 2, "rounds": 2}}, "x")
    data = load_data(config)
    write_summary(tmp_path, config, None, Record(rounds=2), recovery=Recovery(used=tuple(used)))
    labels = data.y.clone() if "labels" in used else data.y[[1, 0, 2, 3]]
    found = {"x": data.x[[1, 0, 2, 3]].numpy(), "cell": np.array([0, 0, 2, 3]), "labels": labels.numpy()}
    save_arrays(tmp_path / "recovered.npz", found)
    assert score_run(tmp_path, config, data).attack.label_accuracy == 1
    with np.load(tmp_path / "recovered.npz") as arrays:
        assert arrays["labels"].tolist() == data.y.tolist()


def test_what_an_attack_says_of_a_sample_goes_where_the_sample_goes(tmp_path):
    config = parse_config({"data": {"name": "digits", "samples": 4}, "federation": {"batch_size": 2, "rounds": 2}}, "x")
    data = load_data(config)
    write_summary(tmp_path, config, None, Record(rounds=2))
    found = {"x": data.x[[1, 0, 2, 3]].numpy(), "cell": np.array([0, 0, 2, 3])}
    found |= {"certificates": np.array([[0.1], [0.2], [0.3], [0.4]]), "representation_0": np.arange(4.0).reshape(4, 1)}
    save_arrays(tmp_path / "recovered.npz", found)
    score_run(tmp_path, config, data)
    with np.load(tmp_path / "recovered.npz") as arrays:
        assert arrays["certificates"].ravel().tolist() == [0.2, 0.1, 0.3, 0.4]
        assert arrays["representation_0"].ravel().tolist() == [1, 0, 2, 3]


def grey(value: float, count: int = 1) -> torch.Tensor:
    return torch.full((count, 1, 8, 8), value)


@pytest.mark.parametrize(("decibels", "share"), [(29.9, 0.0), (30.1, 1.0)])
def test_an_image_counts_as_rebuilt_from_30_decibels_on(decibels, share):
    assert score_images(grey(0.5 + 10 ** (-decibels / 20)), grey(0.5))["share_30db"] == share


TWO_WORKERS = {"federation": {"workers": 2, "batch_size": 3, "rounds": 2}}


def scored(folder, tree, x=None, labels=None, used=("gradients",), cell=None):
    """Score what an attack has left in a folder."""
    config = parse_config({"federation": {"batch_size": 3, "rounds": 2}, **tree}, "the test")
    data = load_data(config)
    write_summary(folder, config, None, Record(rounds=2), recovery=Recovery(used=used))
    found = {"cell": np.arange(len(data.x)) if cell is None else np.array(cell)}
    found |= {} if x is None else {"x": x(data).numpy()}
    found |= {} if labels is None else {"labels": labels(data).numpy()}
    save_arrays(folder / "recovered.npz", found)
    return data, score_run(folder, config, data).attack


def test_lost_pixels_are_scored_as_grey(tmp_path):
    lost = lambda data: torch.full_like(data.x, torch.nan)  # noqa: E731
    data, attack = scored(tmp_path, {"data": {"name": "digits", "samples": 6}} | TWO_WORKERS, lost)
    grey = torch.full_like(data.x, 0.5)
    assert attack.psnr_mean == pytest.approx(float(psnr(grey, data.x).mean()))
    for box, party in zip(partition((1, 8, 8), 2), attack.parties, strict=True):
        assert party.psnr == pytest.approx(float(psnr(box.cut(grey), box.cut(data.x)).mean()))
    assert attack.samples_lost == 6


def test_each_slice_is_scored_beside_the_mean_image(tmp_path):
    first, second = partition((1, 8, 8), 2)

    def half(data):
        x = data.x.mean(0, keepdim=True).expand_as(data.x).clone()
        first.cut(x).copy_(first.cut(data.x))
        return x

    data, attack = scored(tmp_path, {"data": {"name": "digits", "samples": 12}} | TWO_WORKERS, half)
    known, kept = attack.parties
    assert (known.psnr, known.leak[:28]) == (100, "worker 0's part (100.0 dB, g")
    assert kept.psnr == pytest.approx(kept.psnr_baseline)
    assert not kept.leak
    own = second.cut(data.x)
    assert kept.psnr_baseline == pytest.approx(score_images(own, own)["psnr_baseline"])
    assert attack.ssim_mean > attack.ssim_baseline + 0.05


def test_labels_are_scored_beside_the_most_frequent_class_and_unknown_ones_apart(tmp_path):
    def half(data):
        return torch.where(torch.arange(len(data.y)) < 60, data.y, -1)

    data, attack = scored(tmp_path, {"data": {"name": "digits", "samples": 120}}, labels=half)
    guess = float((data.y == data.y.mode().values).float().mean())
    assert (attack.labels.right, attack.labels.unknown) == (0.5, 0.5)
    assert attack.labels.guess == pytest.approx(guess)
    assert attack.labels.leaked


def test_labels_that_the_attack_knew_are_no_leak(tmp_path):
    tree = {"data": {"name": "digits", "samples": 12}}
    attack = scored(tmp_path, tree, labels=lambda data: data.y, used=("gradients", "labels"))[1]
    assert (attack.label_accuracy, attack.labels) == (1, None)


def test_samples_whose_order_the_truth_decides_are_counted(tmp_path):
    tree = {"data": {"name": "digits", "samples": 6}}
    assert scored(tmp_path, tree, lambda data: data.x, cell=[0, 0, 2, 2, 2, 5])[1].ordered == 5


TABLE = {"data": {"name": "breast_cancer", "samples": 60}}


def in_file_units(data):
    mean, deviation = torch.tensor([scale for column in data.columns for scale in column.scales]).T
    return data.x * deviation + mean


def test_rows_in_the_units_of_the_file_are_compared_in_these(tmp_path):
    def some(data):
        x = in_file_units(data)
        x[48:] = torch.nan
        return x

    data, attack = scored(tmp_path, TABLE, some)
    assert attack.share_exact == pytest.approx(0.8)
    assert attack.columns[0].exact.right == 0.8
    assert any("not scaled" in str(note) for note in attack.notes)
    with (tmp_path / "rows.csv").open() as file:
        row = next(csv.DictReader(file))
    column = data.columns[0]
    assert float(row[column.name]) == pytest.approx(column.first[0], rel=1e-3)


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 30.0, 1000.0])
def test_rows_that_were_not_recovered_are_not_taken_for_other_units(tmp_path, scale):
    torch.manual_seed(0)
    attack = scored(tmp_path, TABLE, lambda data: scale * torch.randn_like(data.x))[1]
    assert not attack.notes
    assert attack.share_exact == 0


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
def test_what_the_adversary_holds_itself_is_no_leak(name, tmp_path):
    """The label holder's own slice is right, the others' are as wrong as a guess."""
    federation = {"workers": 2, "batch_size": 8, "rounds": 1}
    tree = {"data": {"name": name}, "federation": federation, "adversary": ["coordinator", "label_holder"]}
    config = parse_config(tree, "the test")
    data = load_data(config)
    x = data.x.mean(0, keepdim=True).expand_as(data.x).clone()
    boxes_of(data, config)[0].paste(x, boxes_of(data, config)[0].cut(data.x))
    setting = Setting.of(config, boxes_of(data, config), data.classes, len(data.x))
    slices = tuple(box.cut(x) for box in setting.boxes)
    write_summary(tmp_path, config, setting, Record(rounds=1), recovery=Recovery(slices=slices))
    write_recovery(tmp_path, setting, Recovery(slices=slices))
    attack = score_run(tmp_path, config, data).attack
    assert [party.worker for party in attack.parties] == [1]
    assert not leaks(attack)
    if name == "digits":
        assert attack.psnr_mean == pytest.approx(attack.psnr_baseline)
    else:
        assert attack.share_exact == 0
        assert attack.r2 == pytest.approx(0.0, abs=1e-6)
        assert {column.worker for column in attack.columns} == {1}


def test_mse_is_beside_psnr_and_slices_are_also_scored_on_their_own(tmp_path):
    config = parse_config(
        {
            "data": {"name": "digits", "samples": 6, "test_samples": 0},
            "federation": {"workers": 4, "batch_size": 3, "rounds": 1},
            "model": {"name": "mlp"},
        },
        "the test",
    )
    data = load_data(config)
    x = (data.x + 0.1 * torch.rand(data.x.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    x[:, :, :4, :4] = data.x[:, :, :4, :4]  # the first worker's slice is right
    write_summary(tmp_path, config, None, Record(rounds=1), recovery=Recovery())
    save_arrays(tmp_path / "recovered.npz", {"x": x.numpy(), "cell": np.arange(6)})
    attack = score_run(tmp_path, config, data).attack
    error = (x - data.x).double().square()
    assert attack.mse_mean == pytest.approx(float(error.mean()), rel=1e-6)
    guess = (data.x.mean(0) - data.x).double().square().mean()
    assert attack.mse_baseline == pytest.approx(float(guess), rel=1e-5)
    parts = [error[:, :, a : a + 4, b : b + 4].flatten(1).mean(1) for a in (0, 4) for b in (0, 4)]
    of_slices = [(-10 * part.log10()).clamp(max=100).mean() for part in parts]
    assert attack.psnr_slices == pytest.approx(float(sum(of_slices) / 4), rel=1e-5)
    assert attack.parties[0].mse == 0
    assert attack.psnr_slices > attack.psnr_mean
