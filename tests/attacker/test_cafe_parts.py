"""The parts of the paper's attack: its steps against least squares and autograd, its optimisers, its phases."""

from contextlib import nullcontext

import pytest
import torch

from attacker.cafe import Cafe
from attacker.cafe.objective import Batch, DataObjective, Terms, total_variation, truncated
from attacker.cafe.phases import Phases
from attacker.cafe.steps import RowSGD, cosine_decay, inputs_objective, outputs_objective, scaled
from attacker.interface import silent
from attacker.least_squares import LeastSquares
from attacker.matching.pooling import QuickPooling
from tests.attacker.cafe_support import CNN, KACZMARZ, attacked, error, images, seen, setting_for, table, whole
from vfl.maths.adam import RowAdam
from vfl.maths.least_squares import pseudo_inverse
from vfl.models.whole import known_model, state_dict
from vfl.registry import PluginSection

# Steps I and II


@pytest.mark.parametrize(
    ("samples", "schedule", "loop"),
    [(20, "uniform", "single"), (18, "epochs", "single"), (18, "epochs", "nested")],  # 18 in fours: a short last batch
)
def test_steps_one_and_two_converge_to_least_squares(samples, schedule, loop):
    x, y = table(samples)
    setting = setting_for(x, 4, 1200, schedule=schedule)
    rounds = seen(setting, x, y)
    attack, recovery = attacked(setting, rounds, loop=loop, shares=(1, 2, 0), alpha=0, **KACZMARZ)
    inverse, rank = pseudo_inverse([o.indices for o in rounds], samples)
    assert rank == samples
    squares = LeastSquares().start(setting)
    for observation in rounds:
        squares.observe(observation)
    expected = squares.recover(silent).representations
    assert expected is not None
    assert recovery.representations is not None
    for worker in range(2):
        bias = torch.stack([o.gradients.bottoms[worker]["1.bias"] for o in rounds])
        v = inverse @ bias.double() / 4  # v_n holds 1/K of the sample's gradient
        assert error(attack.variables.v[worker].double(), v) < 1e-3
        assert error(recovery.representations[worker], expected[worker]) < 1e-2
    assert error(whole(setting, recovery, x), x) < 1e-2  # the first layer sees the data


def test_the_papers_sgd_and_adam_converge_to_least_squares_too():
    x, y = table(20)
    setting = setting_for(x, 4, 1500)
    attack, recovery = attacked(
        setting, seen(setting, x, y), lr_one=0.1, lr_two=0.02, final_two=0.02, shares=(0, 1, 0), alpha=0
    )
    assert error(whole(setting, recovery, x), x) < 0.05
    assert attack.iterations[0] == 1500


def test_replayed_rounds_save_rounds():
    x, y = table(20)
    setting = setting_for(x, 4, 100)
    rounds = seen(setting, x, y)
    inverse, _ = pseudo_inverse([o.indices for o in rounds], 20)
    true = inverse @ torch.stack([o.gradients.bottoms[0]["1.bias"] for o in rounds]).double() / 4
    plain, _ = attacked(setting, rounds, alpha=0, **KACZMARZ)
    replayed, _ = attacked(setting, rounds, alpha=0, replay=10, **KACZMARZ)
    assert error(replayed.variables.v[0].double(), true) < 0.1 * error(plain.variables.v[0].double(), true)


def test_objectives_have_autograds_gradients_and_curvature():
    random = torch.Generator().manual_seed(0)
    v, h = torch.randn(5, 7, generator=random), torch.randn(5, 9, generator=random)
    bias, weight = torch.randn(7, generator=random), torch.randn(7, 9, generator=random)
    for variable, value, found in [
        (v, lambda v: (v.sum(0) - bias).square().sum(), outputs_objective(v, bias)),
        (h, lambda h: (v.T @ h - weight).square().sum(), inputs_objective(h, v, weight, curved=True)),
    ]:
        leaf = variable.clone().requires_grad_()
        loss = value(leaf)
        (gradient,) = torch.autograd.grad(loss, leaf)
        hessian = torch.autograd.functional.hessian(value, variable).reshape(variable.numel(), -1)
        assert float(found[0]) == pytest.approx(float(loss.detach()), rel=1e-5)
        torch.testing.assert_close(found[1], gradient, rtol=1e-4, atol=1e-4)
        assert found[2] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-4)


# Step III


def matched(name, found, uploaded):
    """Return a row's distance of gradients as its own paper writes it, from the two lists of tensors."""
    pairs = [(a.flatten(), b.flatten()) for a, b in zip(found, uploaded, strict=True)]
    if name == "squared":
        return sum((a - b).square().sum() for a, b in pairs)
    if name == "cosine":
        whole, seen = (torch.cat(side) for side in zip(*pairs, strict=True))
        return 1 - whole @ seen / (whole.norm() * seen.norm())
    kernels = [1 - torch.exp(-(a - b).square().sum() / (b.var(unbiased=False) * b.numel())) for a, b in pairs]
    return torch.stack(kernels).mean()


def equation_nine(setting, observation, slices, scores, wanted, terms, mean=()):
    """Return the objective and its gradients for slices and label scores, in float64, from autograd alone."""
    model = known_model(setting, observation.parameters).double()
    x = [part.double().requires_grad_() for part in slices]
    y = scores.double().requires_grad_()
    inputs, normed = [], []
    for bottom in model.bottoms:
        bottom.fc1.register_forward_hook(lambda _layer, given, _output: inputs.append(given[0]))
        for layer in (bottom.norm1, bottom.norm2):
            layer.register_forward_hook(lambda layer, given, _output: normed.append((layer, given[0])))
    loss = -(y.softmax(1) * model(x).log_softmax(1)).sum(1).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    uploaded = [state_dict(observation.gradients)[name].double() for name, _ in model.named_parameters()]
    varied = sum(part.diff(dim=dim).abs().sum() / len(part) for part in x for dim in (2, 3))
    represented = sum((found - of.double()).square().sum() for found, of in zip(inputs, wanted, strict=True))
    costly = float(varied.detach()) / len(x) > terms.xi
    objective = terms.alpha * matched(terms.match, gradients, uploaded) + terms.gamma * represented
    objective = objective + terms.beta * varied * costly
    if terms.statistics:
        apart = [(one.mean((0, 2, 3)) - layer.mean).norm() / layer.mean.norm() for layer, one in normed]
        spread = [
            (one.var((0, 2, 3), unbiased=False) - layer.variance).norm() / layer.variance.norm()
            for layer, one in normed
        ]
        objective = objective + terms.statistics * sum(apart + spread) / len(normed)
    if terms.consistency:
        pairs = zip(x, mean, strict=True)
        objective = objective + terms.consistency * sum((a - b).square().sum() for a, b in pairs) / len(scores)
    found = torch.autograd.grad(objective, [*x, y])
    return objective.detach(), found[:-1], found[-1]


ROWS = {
    "gradients": Terms(0.3, 0.0, 0.0, 0.0),
    "total variation": Terms(0.0, 0.7, 0.0, 0.0),
    "representations": Terms(0.0, 0.0, 0.2, 0.0),
    "CAFE": Terms(0.3, 0.7, 0.2, 0.0),
    "CAFE, smooth enough": Terms(0.3, 0.7, 0.2, 1e6),
    "Cosine": Terms(0.3, 0.7, 0.0, 0.0, match="cosine"),
    "SAPAG": Terms(0.3, 0.0, 0.0, 0.0, match="gaussian"),
    "BN": Terms(0.3, 0.0, 0.0, 0.0, statistics=0.4),
    "GC": Terms(0.3, 0.0, 0.0, 0.0, consistency=0.4),
}
"""The rows of Tables 2 and 4, and equation (9) term by term."""


@pytest.mark.parametrize("name", ROWS)
def test_equation_nine_and_all_that_replaces_its_terms_have_autograds_gradients_for_data_and_labels(name):
    terms = ROWS[name]
    x, y = images(6)
    model = PluginSection.model_validate({**CNN.model_dump(), "batch_norm": name == "BN"})
    setting = setting_for(x, 3, 1, model)
    (observation,) = seen(setting, x, y)
    random = torch.Generator().manual_seed(1)
    slices, mean = ([torch.rand(3, *box.shape, generator=random) for box in setting.boxes] for _ in range(2))
    scores = torch.rand(3, setting.classes, generator=random)
    wanted = [torch.rand(3, 128 * (box.shape[1] // 4) * (box.shape[2] // 4), generator=random) for box in setting.boxes]
    ours = DataObjective(setting, ["fc1", "fc1"], terms)
    batch = Batch(observation.parameters, ours.engine.flat(observation.gradients))
    moved = ours(batch, slices, scores, wanted=wanted, mean=mean)
    objective, of_slices, of_scores = equation_nine(setting, observation, slices, scores, wanted, terms, mean)
    assert float(moved.objective) == pytest.approx(float(objective), rel=1e-4)
    for found, expected in zip(moved.slices, of_slices, strict=True):
        assert expected.norm() > 0
        assert error(found, expected) < 1e-3
    if terms.alpha:
        assert of_scores.norm() > 0
        assert error(moved.labels, of_scores) < 1e-3
    else:
        assert moved.labels is None


def test_step_three_weighs_its_terms_as_the_options_say_and_slows_down_to_final_three():
    x, y = images(4)
    setting = setting_for(x, 2, 2, CNN, schedule="epochs")
    weights = {"alpha": 0.5, "beta": 0.03, "gamma": 0.07, "xi": 0.0}
    attack = Cafe(shares=(0, 0, 1), lr_three=0.01, final_three=0.2, **weights).start(setting)
    # each sample is drawn once, and Adam's first step is as long as its rate; half way that is between 1 and 0.2
    for observation, rate in zip(seen(setting, x, y), (0.01, 0.006), strict=True):
        rows, variables = observation.indices, attack.variables
        before, scores = [part[rows] for part in variables.x], variables.y[rows]
        attack.observe(observation)
        wanted = [part[rows] for part in variables.h]
        objective, *_ = equation_nine(setting, observation, before, scores, wanted, Terms(**weights))
        assert attack.objectives[2] == pytest.approx(float(objective), rel=1e-4)
        steps = torch.stack([(part[rows] - was).abs().max() for part, was in zip(variables.x, before, strict=True)])
        assert steps.tolist() == pytest.approx([rate] * 2, rel=1e-3)


@pytest.mark.parametrize("size", [8, 7])
def test_quick_pooling_is_torchs_with_ties_and_odd_edges_up_to_its_second_derivative(size):
    random = torch.Generator().manual_seed(0)
    x = (4 * torch.rand(3, 2, size, size, generator=random)).round()  # many equal neighbours
    at_output = torch.rand(3, 2, 4, 4, generator=random)
    found = []
    for mode in (nullcontext(), QuickPooling()):
        leaf, gradient = x.clone().requires_grad_(), at_output.clone().requires_grad_()
        with mode:
            pooled = torch.nn.MaxPool2d(2, ceil_mode=True)(leaf)
        (first,) = torch.autograd.grad(pooled, leaf, gradient, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(3).sum(), gradient)
        found.append((pooled, first, second))
    assert all(map(torch.equal, *found))
    assert "Pool" in type(found[1][0].grad_fn).__name__
    assert "MaxPool" not in type(found[1][0].grad_fn).__name__


# Optimisers


def test_adam_by_rows_is_torchs_when_every_sample_is_in_every_batch():
    random = torch.Generator().manual_seed(0)
    ours = torch.rand(6, 3, 2, generator=random)
    theirs = ours.clone().requires_grad_()
    adam, oracle = RowAdam(ours, (0.9, 0.99), 1e-8), torch.optim.Adam([theirs], lr=0.03, betas=(0.9, 0.99))
    for _ in range(20):
        gradient = torch.randn(6, 3, 2, generator=random)
        adam.step(ours, torch.randperm(6, generator=random).sort().values, gradient, 0.03)
        theirs.grad = gradient
        oracle.step()
    torch.testing.assert_close(ours, theirs.detach())


def test_each_row_has_its_own_adam():
    random = torch.Generator().manual_seed(0)
    together = torch.rand(4, 3, generator=random)
    start, alone = together.clone(), [together[n : n + 1].clone() for n in range(4)]
    adam, singles = RowAdam(together, (0.9, 0.999), 1e-8), [RowAdam(row, (0.9, 0.999), 1e-8) for row in alone]
    for _ in range(15):
        rows = torch.randperm(3, generator=random)[:2]  # the last row is never drawn
        gradient = torch.randn(2, 3, generator=random)
        adam.step(together, rows, gradient, 0.1)
        for n, own in zip(rows.tolist(), gradient, strict=True):
            singles[n].step(alone[n], torch.tensor([0]), own[None], 0.1)
    torch.testing.assert_close(together, torch.cat(alone))
    assert torch.equal(together[3], start[3])
    assert adam.counts[3] == 0
    assert not adam.first[3].any()
    assert not adam.second[3].any()


def test_sgd_scaled_by_the_curvature_solves_a_batch_at_rate_one():
    v, bias = torch.rand(6, 4), torch.rand(4)
    rows = torch.tensor([0, 2, 5])
    _, gradient, curvature = outputs_objective(v[rows], bias)
    RowSGD().step(v, rows, gradient, scaled(1.0, curvature))
    torch.testing.assert_close(v[rows].sum(0), bias)


def test_the_rate_falls_to_its_share_and_stays_there():
    rates = [cosine_decay(0.1, 0.02, share) for share in (0.0, 0.5, 1.0, 2.0)]
    assert rates == pytest.approx([0.1, 0.051, 0.002, 0.002])
    assert cosine_decay(0.1, 1.0, 0.7) == pytest.approx(0.1)


# Total variation


def test_total_variation_below_the_threshold_costs_nothing():
    x = torch.tensor([[[[0.0, 1.0], [0.5, 0.5]]]], requires_grad=True)
    assert float(total_variation(x.detach())) == pytest.approx(0.5 + 0.5 + 1.0 + 0.0)
    assert float(truncated([x, x], 1.9).detach()) == pytest.approx(4.0)
    assert torch.autograd.grad(truncated([x], 1.9), x)[0].abs().sum() > 0
    below = truncated([x, x], 2.1)
    assert float(below.detach()) == 0.0
    assert torch.autograd.grad(below, x)[0].abs().sum() == 0


def test_tables_have_no_total_variation():
    assert float(total_variation(torch.rand(4, 7))) == 0.0


# Phases


def ran(phases: Phases, rounds: int, objectives: tuple[float, float] = (1.0, 1.0)) -> list[list[int]]:
    history = []
    for _ in range(rounds):
        steps: list[int] = []

        def step(number: int, value: float, steps: list[int] = steps):
            return lambda _share: (steps.append(number), value)[1]

        phases.iterate(step(1, objectives[0]), step(2, objectives[1]), step(3, 0.0))
        history.append(steps)
    return history


def test_nested_loops_run_one_step_after_the_other():
    history = ran(Phases("nested", 9, (1, 1, 1), (1e-9, 5e-9)), 11)
    assert history == [[1]] * 3 + [[2]] * 3 + [[3]] * 5


def test_nested_loops_can_leave_steps_out():
    assert ran(Phases("nested", 4, (0, 1, 1), (None, None)), 4) == [[2]] * 2 + [[3]] * 2


def test_the_single_loop_switches_at_its_thresholds_and_goes_on_with_all_steps():
    assert ran(Phases("single", 10, (1, 0, 0), (1e-9, 5e-9)), 3, (1e-10, 1e-9)) == [[1, 2, 3]] * 3
    assert ran(Phases("single", 10, (1, 0, 0), (1e-9, 5e-9)), 3, (1e-10, 6e-9)) == [[1, 2]] * 3
    assert ran(Phases("single", 10, (1, 0, 0), (1e-9, 5e-9)), 3, (2e-9, 0.0)) == [[1]] * 3
    assert ran(Phases("single", 10, (1, 0, 0), (None, None)), 3) == [[1, 2, 3]] * 3


def test_the_single_loop_waits_no_longer_than_its_shares_say():
    assert ran(Phases("single", 10, (2, 3, 5), (1e-9, 5e-9)), 7) == [[1]] * 2 + [[1, 2]] * 3 + [[1, 2, 3]] * 2


def test_a_step_knows_how_far_it_is():
    shares: list[tuple[int, float]] = []
    phases = Phases("nested", 8, (1, 1, 2), (None, None))
    for _ in range(8):
        phases.iterate(*(lambda share, n=n: (shares.append((n, share)), 1.0)[1] for n in range(3)))
    assert shares == [(0, 0.0), (0, 0.5), (1, 0.0), (1, 0.5), (2, 0.0), (2, 0.25), (2, 0.5), (2, 0.75)]
