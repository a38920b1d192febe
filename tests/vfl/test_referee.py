import numpy as np
import pytest
import torch

from vfl.config import parse_config
from vfl.datasets.slices import load_data
from vfl.files.archive import save_arrays
from vfl.folder.record import Record, write_summary
from vfl.maths.metrics import exact_rows, psnr, r2, ssim
from vfl.recovery import Recovery
from vfl.referee import best_order, score_images, score_run, score_table


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
