"""The paper's theory against numbers: what its theorems need, what its proofs say, and its appendix's example."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attacker.matching.engine import Engine
from tests.attacker.cafe_support import images, setting_for
from vfl.models import build_bottom, build_top
from vfl.partition import partition
from vfl.registry import PluginSection

N, K, ROUNDING = 800, 40, 1e-6


def v_star(d2: int) -> Tensor:
    """The gradients at the first dense layer's output of one worker, of 800 images in the paper's network."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(N, 3, 32, 32, generator=random), torch.randint(10, (N,), generator=random)
    section = PluginSection.model_validate({"name": "cafe_cnn", "fc1": d2})
    boxes, outputs = partition((3, 32, 32), 4), []
    bottoms = [build_bottom(section, box.shape, 0, worker) for worker, box in enumerate(boxes)]
    bottoms[0].fc1.register_forward_hook(lambda _layer, _given, output: outputs.append(output))
    z = torch.cat([bottom(box.cut(x)) for bottom, box in zip(bottoms, boxes, strict=True)], 1)
    loss = cross_entropy(build_top(section, [10] * 4, 10, 0)(z), y, reduction="sum") / K
    (v,) = torch.autograd.grad(loss, outputs[0])
    return v.double()


@pytest.mark.parametrize("d2", [256, 1024])
def test_theorem_2_holds_although_its_premise_does_not(d2):
    """V* has not the rank N, neither with the code's d2 nor with the text's; F2 is strongly convex all the same."""
    v = v_star(d2)
    values = torch.linalg.svdvals(v)
    rank = int((values > ROUNDING * values[0]).sum())
    assert rank < N
    assert (rank < d2) if d2 == 256 else (rank < N < d2)
    # The Hessian of F2 is that of F1, c I + b 11^T with c > 0, times V V^T entry by entry: c |v_n|^2 on the diagonal
    # and a part that is at least 0. It is positive definite as soon as no v_n is 0.
    c, b = 2 * K * (N - K) / (N * (N - 1)), 2 * K * (K - 1) / (N * (N - 1))
    lengths = v.square().sum(1)
    assert float(lengths.min()) > 0
    hessian = c * torch.diag(lengths) + b * v @ v.T
    assert float(torch.linalg.eigvalsh(hessian)[0]) >= 0.999 * c * float(lengths.min())


def f1(error: Tensor, batch: tuple[int, ...]) -> float:
    """F1(V; s) for V = V* + error: the bias's gradient is what the batch's rows of V* add up to."""
    return float(error[list(batch)].sum(0).square().sum())


def test_the_expectation_of_f1_is_not_what_the_appendix_says():
    """For N = 6, K = 3, over all 20 batches."""
    n, k = 6, 3
    error = torch.randn(n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batches = list(itertools.combinations(range(n), k))
    mean = sum(f1(error, batch) for batch in batches) / len(batches)
    whole, of_sum = float(error.square().sum()), float(error.sum(0).square().sum())
    assert mean == pytest.approx(k / n * ((n - k) / (n - 1) * whole + (k - 1) / (n - 1) * of_sum), rel=1e-12)
    assert mean != pytest.approx(k / n * whole, rel=1e-2)


def test_the_appendixs_bound_can_be_broken_and_what_bound_holds():
    n, k = 6, 3
    error = torch.eye(n, dtype=torch.float64) - 1 / n  # rows that add up to 0
    phi = max(f1(error, batch) for batch in itertools.combinations(range(n), k))
    whole = float(error.square().sum())
    assert whole > n / k * phi  # "epsilon_1 <= N/K phi_1"
    assert whole <= n * (n - 1) / (k * (n - k)) * phi * (1 + 1e-12)


def test_appendix_a_one_batch_of_all_takes_two_samples_for_each_other_and_batches_of_two_do_not():
    """K = N = 3: gradients that add up to the same, from data that is not the same; K = 2 tells."""
    x, y = images(3)
    setting = setting_for(x, 2, 1, PluginSection.model_validate({"name": "cafe_cnn", "fc1": 32}))
    engine = Engine(setting)
    parameters = [p.detach() for bottom in engine._bottoms for p in bottom.parameters()]
    parameters += [p.detach() for p in engine._top.parameters()]
    targets = torch.eye(setting.classes)[y]

    def gradients(samples: list[int]) -> list[Tensor]:
        slices = [box.cut(x)[samples] for box in setting.boxes]
        return [one.detach() for one in engine.guess(parameters, slices, targets[samples]).gradients]

    def apart(true: list[int], guessed: list[int]) -> float:
        found, seen = gradients(guessed), gradients(true)
        return float(sum((a - b).square().sum() for a, b in zip(found, seen, strict=True)))

    wrong = {0: 1, 1: 0, 2: 2}  # the guess has the first two samples in each other's place
    length = float(sum(one.square().sum() for one in gradients([0, 1, 2])))
    assert apart([0, 1, 2], [wrong[n] for n in (0, 1, 2)]) < 1e-10 * length  # equation of K = N = 3: solved, and wrong
    assert apart([0, 1], [wrong[n] for n in (0, 1)]) < 1e-10 * length  # the first of the three for K = 2
    for batch in ([1, 2], [0, 2]):  # the second and the third exclude it
        assert apart(batch, [wrong[n] for n in batch]) > 1e-3 * length
        assert apart(batch, batch) == 0
