"""`exact` at a coordinator that knows the labels: samples that no batch parts are parted by their classes."""

import torch

from attacker.exact.steps12.cells import Cell
from attacker.exact.workers.labels import Joined, by_labels
from tests.attacker.test_exact_attack import attacked, images, scores, setting_for, truth


def test_known_labels_tell_the_samples_of_a_cell_apart():
    x, y = images(24)
    setting = setting_for(x, 4, 6, labels=tuple(y.tolist()))
    recovery = attacked(setting, x, y, method="one_gradient")  # one epoch: every batch is a cell
    assert recovery.used == ("indices", "parameters", "gradients", "labels")
    assert torch.equal(recovery.labels, y)
    assert all(len(set(y[list(cell)].tolist())) == 1 for cell in recovery.cells), "only equal labels stay unordered"
    alone = [n for n in range(24) if all(n not in cell for cell in recovery.cells)]
    assert len(alone) >= 8
    for worker, (found, layer) in enumerate(zip(recovery.representations, recovery.layers, strict=True)):
        h = truth(setting, x, worker, layer)
        right = (found[alone] - h[alone]).norm(dim=1) < 1e-4 * h[alone].norm(dim=1)
        assert float(right.float().mean()) >= 0.95, "each stands in its own place, not somewhere in its cell"
    error, _ = scores(setting, recovery, x, y)
    assert float((error < 1e-4).float().mean()) >= 0.95


def test_without_labels_the_same_rounds_leave_whole_cells_unordered():
    x, y = images(24)
    recovery = attacked(setting_for(x, 4, 6), x, y, method="one_gradient")
    assert {len(cell) for cell in recovery.cells} == {4}
    assert "labels" not in recovery.used


def test_a_cell_whose_labels_were_read_wrongly_keeps_its_order():
    cells = [Cell((0, 1), (0,)), Cell((2, 3), (1,)), Cell((4,), (2,))]
    read = Joined((torch.arange(5),), torch.tensor([1, 0, 2, 2, 0]), torch.arange(5.0)[:, None])
    joined, groups = by_labels(cells, read, torch.tensor([0, 1, 2, 1, 1]))
    assert joined.orders[0].tolist() == [1, 0, 2, 3, 4]
    assert joined.misfits[:, 0].tolist() == [1, 0, 2, 3, 4]
    assert joined.labels.tolist() == [0, 1, 2, 1, 1]
    assert groups == ((2, 3),)
