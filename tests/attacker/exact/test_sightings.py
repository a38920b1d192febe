"""Slices that no round alone determines, from several rounds with other parameters: held against the true ones."""

import torch
from torch import Tensor, nn

from attacker.exact.one_gradient.sightings import SeveralRounds, Sighting, Sightings, invert_several
from attacker.inversion import InversionOptions
from vfl.models.layers import representation

ROUNDS, SAMPLES = 4, 5


def networks() -> dict[int, nn.Module]:
    """Return a network with each round's parameters: 27 inputs of its layer for slices of 36 values."""
    draws = torch.Generator().manual_seed(0)
    found: dict[int, nn.Module] = {}
    for at in range(ROUNDS):
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 8), nn.ReLU()
        )
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draws) / 3
        found[at] = model.eval()
    return found


def slices() -> Tensor:
    return torch.rand(SAMPLES, 1, 6, 6, generator=torch.Generator().manual_seed(1)).mul(255).round() / 255


def inverted(models: dict[int, nn.Module], rounds: int) -> tuple[Tensor, Tensor]:
    true = slices()
    with torch.no_grad():
        h = {at: representation(model, "4", true) for at, model in models.items()}
    goal = SeveralRounds(models, "4", [[(at, h[at][n]) for at in range(rounds)] for n in range(SAMPLES)])
    start = (true + 0.15 * torch.randn(true.shape, generator=torch.Generator().manual_seed(3))).clamp(0, 1)
    return invert_several(goal, start, seed=0, options=InversionOptions(levels=0), progress=lambda *_: None)


def test_several_rounds_determine_what_one_leaves_open() -> None:
    models, true = networks(), slices()
    alone, left = inverted(models, 1)
    assert float(left.median()) < 1e-2  # as good as explained, by other slices than the true ones
    assert bool(((alone - true).flatten(1).abs().amax(dim=1) > 0.05).all())
    together, left = inverted(models, ROUNDS)
    right = (together - true).flatten(1).abs().amax(dim=1) < 1e-2
    assert torch.equal(right, left < 1e-3)
    assert int(right.sum()) >= 4


def test_what_a_slice_would_be_in_another_round_finds_its_row_there() -> None:
    models, true = networks(), slices()
    near = (true + 0.02 * torch.randn(true.shape, generator=torch.Generator().manual_seed(2))).clamp(0, 1)
    with torch.no_grad():
        h = {at: representation(models[at], "4", true).double() for at in (0, 1)}
    # persons 0 to 4 were seen in round 0, and again, unrecognised and in another order, as 5 to 9 in round 1
    order = [3, 1, 4, 0, 2]
    sightings = Sightings([Sighting(0, 0, h[0][n], n) for n in range(SAMPLES)])
    sightings.all += [Sighting(1, 0, h[1][n], SAMPLES + at) for at, n in enumerate(order)]
    estimates = torch.cat([near, near[order]])

    def predict(at: int, people: Tensor) -> Tensor:
        with torch.no_grad():
            return representation(models[at], "4", estimates[people]).double()

    everybody = torch.ones(2 * SAMPLES, dtype=torch.bool)
    groups = list(sightings.groups(0, everybody, predict, lambda *_: True))
    assert {tuple(sorted(group)) for group in groups} == {(n, SAMPLES + order.index(n)) for n in range(SAMPLES)}
    assert list(sightings.groups(0, everybody, predict, lambda *_: True)) == []  # each group is tried once
    other = Sightings(sightings.all)
    assert list(other.groups(0, everybody, predict, lambda *_: False)) == []
