"""What `exact` does in pieces, so that memory and time grow with the samples and not with their square."""

from types import SimpleNamespace

import torch

from attacker.exact.collect import ENOUGH, Rounds
from attacker.exact.steps12 import directions
from attacker.exact.steps12.cells import Cell, cells_of
from attacker.exact.steps12.directions import SAME, Directions, merge
from attacker.exact.steps12.solve import Solved
from attacker.exact.workers import labels, tails
from attacker.exact.workers.labels import Network, join_workers
from vfl.models import build_bottom, build_top
from vfl.registry import PluginSection


def test_directions_that_coincide_are_found_whatever_block_they_are_in(monkeypatch):
    monkeypatch.setattr(directions, "BLOCK", 7)
    random = torch.Generator().manual_seed(0)
    vectors = torch.randn(30, 40, generator=random, dtype=torch.float64)
    vectors[:, 25], vectors[:, 39], vectors[:, 9] = vectors[:, 3], -vectors[:, 3], vectors[:, 8] + 1e-7
    vectors /= vectors.norm(dim=0)
    merged = merge(Directions(vectors, torch.arange(40)))
    alike = (vectors.T @ vectors).abs() > 1 - 0.5 * SAME**2  # the oracle: all at once
    assert torch.equal(merged.of[:, None] == merged.of[None], alike)
    assert merged.vectors.shape[1] == 37


def test_rounds_are_kept_as_long_as_they_part_samples_or_show_them_again():
    samples, random = 60, torch.Generator().manual_seed(0)
    rounds = Rounds(SimpleNamespace(samples=samples, seed=0), SimpleNamespace(method="subspaces", layers=()))
    seen: list[torch.Tensor] = []
    drawn = torch.zeros(samples)
    for number in range(120):
        batch = torch.randperm(samples, generator=random)[: 7 if number % 3 else 15]
        # the oracle: the cells of all batches that were kept, found anew
        before = {cell.samples for cell in cells_of([torch.arange(samples), *seen], samples)}
        after = {cell.samples for cell in cells_of([torch.arange(samples), *seen, batch], samples)}
        wanted = after != before or bool((drawn[batch] < ENOUGH).any())
        assert rounds._wanted(batch) == wanted, number
        if wanted:
            seen.append(batch)
            drawn[batch] += 1


def test_labels_are_the_same_however_few_samples_are_looked_at_at_a_time(monkeypatch):
    section, shape, samples = PluginSection.model_validate({"name": "mlp", "hidden": [16]}), (6,), 11
    bottoms = [build_bottom(section, shape, 0, worker) for worker in range(2)]
    top = build_top(section, [10, 10], 3, 0)
    random = torch.Generator().manual_seed(1)
    h = [torch.rand(samples, 6, generator=random, dtype=torch.float64) for _ in bottoms]
    for own in h:
        own[4] = torch.nan
    whole = torch.randint(3, (samples,), generator=random)
    solved = [Solved(own, _sent_back(bottoms, top, h, whole, worker)) for worker, own in enumerate(h)]
    cells = [Cell((n,), (0, 1)) for n in range(samples)]

    def joined():
        return join_workers(cells, solved, Network(bottoms, ["1", "1"], [shape, shape], top))

    at_once = joined()
    monkeypatch.setattr(labels, "CHUNK", 3)
    monkeypatch.setattr(tails, "CHUNK", 3)
    in_pieces = joined()
    assert torch.equal(in_pieces.labels, at_once.labels)
    known = torch.arange(samples) != 4
    assert torch.equal(at_once.labels[known], whole[known])
    assert torch.allclose(in_pieces.misfits, at_once.misfits, atol=1e-12, equal_nan=True)


def _sent_back(bottoms, top, h, whole, worker):
    """The oracle: autograd's gradient at the outputs of a worker's first layer."""
    outputs = []
    sent = []
    for bottom, own in zip(bottoms, h, strict=True):
        model = bottom.double()
        outputs.append((own @ model[1].weight.T + model[1].bias).detach().requires_grad_())
        sent.append(model[3](torch.relu(outputs[-1])))
    loss = torch.nn.functional.cross_entropy(top.double()(torch.cat(sent, dim=1)), whole, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, [outputs[worker]])
    return gradient
