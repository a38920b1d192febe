"""The detector: silent on true gradients of any shape, and it names what it sees in altered ones."""

import pytest
import torch
from torch import Tensor

from attacker.adaptive.detector import Detector, seen_in
from tests.attacker.test_adaptive import clipped, faked, noisy, pruned, quantised, true


def gradients(random: torch.Generator, size: int = 5, outputs: int = 40, inputs: int = 60) -> dict[str, Tensor]:
    """A batch's gradients as a ReLU network has them: v and h with zeros, single units dead."""
    h = torch.randn(size, inputs, generator=random).relu()
    v = torch.randn(size, outputs, generator=random) * (torch.rand(size, outputs, generator=random) < 0.5)
    v[:, :3], h[:, :5] = 0, 0
    return {"fc.weight": v.T @ h / size, "fc.bias": v.mean(0)}


def looked(alter, rounds: int = 12, **shape: int) -> Detector:
    random, detector = torch.Generator().manual_seed(0), Detector(1)
    for _ in range(rounds):
        detector.look(shape.get("size", 5), (alter(gradients(random, **shape)),), {}, ["fc"])
    return detector


@pytest.mark.parametrize(
    "shape",
    [{}, {"size": 1}, {"size": 30}, {"size": 60}, {"size": 8, "inputs": 4}, {"outputs": 4}, {"size": 2, "inputs": 900}],
)
def test_true_gradients_are_not_suspected(shape):
    detector = looked(true, **shape)
    assert detector.findings == ()
    assert detector.shares == (0.0,)


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (noisy(0.01), "full rank: noise or fake values"),
        (faked(), "full rank: noise or fake values"),
        (pruned(0.1), "pruned (90% zeros)"),
        (quantised(4), "quantised (at most 16"),
        (clipped(1.0), "clipped"),
    ],
)
def test_altered_gradients_are_flagged_and_it_says_why(alter, words):
    detector = looked(alter)
    assert detector.shares == (1.0,)
    assert any(words in finding.sentence for finding in detector.findings)


@pytest.mark.parametrize("alter", [pruned(0.1), quantised(3)])
def test_compression_shows_even_where_batches_fill_the_layer(alter):
    assert looked(alter, size=60).shares == (1.0,)


def test_pruning_shows_where_what_is_left_has_little_rank():
    assert looked(pruned(0.1), size=10, outputs=32, inputs=16).shares == (1.0,)


def test_only_the_rounds_that_reach_the_limit_count_as_clipped():
    norms = sorted(
        float(gradients(g)["fc.weight"].norm()) for g in [torch.Generator().manual_seed(0)] for _ in range(12)
    )
    (finding,) = looked(clipped(norms[6])).findings
    assert 4 <= finding.rounds <= 8
    assert finding.of == 12


def test_the_same_batch_again_is_no_clipping():
    detector, one = Detector(1), gradients(torch.Generator().manual_seed(0))
    for _ in range(10):
        detector.look(5, (one,), {}, ["fc"])
    assert detector.findings == ()


def test_a_bias_that_does_not_belong_to_its_weight_is_seen():
    one = gradients(torch.Generator().manual_seed(0))
    assert seen_in(one["fc.weight"], one["fc.bias"], 5) is None
    assert seen_in(one["fc.weight"], one["fc.bias"] + torch.randn(40), 5) is not None


def test_no_gradient_at_all_is_nothing_to_see():
    assert looked(lambda tensors: {name: torch.zeros_like(t) for name, t in tensors.items()}).shares == (0.0,)
