"""Inversion of representations: data comes back from what flows into a layer, whatever the model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from attacker.inversion import LATE, Inversion, InversionOptions, Wanted, invert, invert_together
from attacker.inversion.coarse import coarse_conv2d, faster
from attacker.inversion.estimate import estimates
from attacker.inversion.objective import Objective, lay_out
from attacker.inversion.pooling import SoftenedPooling, soft_max_pool2d
from attacker.inversion.values import near_levels
from vfl.models.layers import representation

SHAPE = (1, 8, 8)


def pooled() -> nn.Module:
    """Build the paper's network in small."""
    return net(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 48, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def without_pooling() -> nn.Module:
    """Build convolutions with strides."""
    return net(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(16, 32, 3, stride=2, padding=1))


def tanh_and_average() -> nn.Module:
    """Build a smooth network in the manner of LeNet."""
    return net(nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.Tanh())


def overlapping_pools() -> nn.Module:
    """Build pooling windows that overlap and reach beyond the edge."""
    return net(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))


def net(*layers: nn.Module) -> nn.Module:
    """Put a fully connected layer, `fc`, behind some layers."""
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        width = body(torch.zeros(1, *SHAPE)).shape[1]
    model = nn.Sequential()
    model.add_module("body", body)
    model.add_module("fc", nn.Linear(width, 3))
    return model


def images(number: int) -> Tensor:
    """Return smooth shapes with a sharp edge, in steps of 1/255 as pictures have them."""
    generator = torch.Generator().manual_seed(3)
    coarse = torch.rand((number, 1, 3, 3), generator=generator)
    x = F.interpolate(coarse, SHAPE[1:], mode="bilinear")
    x[:, :, 2:5, 3:] = 1 - x[:, :, 2:5, 3:]
    return (x * 255).round() / 255


def problem(build: Callable[[], nn.Module], number: int = 6) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a model, data, and the data's representations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build()
    x = images(number)
    return model, x, representation(model, "fc", x).detach()


def solve(
    model: nn.Module,
    targets: Tensor,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    **options: object,
) -> Inversion:
    """Invert with defaults."""
    return invert(
        Wanted(model, "fc", targets, SHAPE),
        seed=seed,
        device="cpu",
        options=InversionOptions.model_validate(options),
        progress=progress or (lambda done, total: None),
    )


def psnr(x: Tensor, truth: Tensor) -> Tensor:
    """Return each image's PSNR in dB."""
    return -10 * (x - truth).square().flatten(1).mean(1).clamp_min(1e-10).log10()


@pytest.mark.parametrize("build", [pooled, without_pooling, tanh_and_average, overlapping_pools])
@pytest.mark.parametrize("levels", [0, 256])
def test_recovers_data_of_any_architecture(build: Callable[[], nn.Module], levels: int) -> None:
    model, x, h = problem(build)
    found = solve(model, h, levels=levels)
    assert psnr(found.x, x).min() >= 40
    assert found.x.min() >= 0
    assert found.x.max() <= 1
    error = (representation(model, "fc", found.x) - h).norm(dim=1) / h.norm(dim=1)
    assert torch.allclose(found.residual, error, rtol=0.1, atol=1e-6)


def test_small_errors_in_the_targets_do_little_harm() -> None:
    model, x, h = problem(pooled)
    noise = torch.randn(h.shape, generator=torch.Generator().manual_seed(1))
    assert psnr(solve(model, h * (1 + 1e-6 * noise)).x, x).min() >= 60
    assert psnr(solve(model, h * (1 + 1e-3 * noise)).x, x).min() >= 30


def test_data_that_is_not_of_so_many_levels_is_not_rounded() -> None:
    model, x, _ = problem(without_pooling)
    x = x * 0.9 + 0.0123
    h = representation(model, "fc", x).detach()
    assert psnr(solve(model, h).x, x).min() >= 70


def test_same_seed_same_result() -> None:
    model, _, h = problem(pooled)
    first, second = solve(model, h, attempts=1, levels=0), solve(model, h, attempts=1, levels=0)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.residual, second.residual)
    assert not torch.equal(first.x, solve(model, h, seed=1, attempts=1, levels=0).x)


def test_chunks_and_neighbours_do_not_matter() -> None:
    model, _, h = problem(pooled)
    together = solve(model, h)
    assert torch.allclose(together.x, solve(model, h, chunk=1).x, atol=1e-4)
    assert torch.allclose(together.x, solve(model, h, chunk=4).x, atol=1e-4)
    h[0] = torch.nan
    assert torch.allclose(together.x[1:], solve(model, h).x[1:], atol=1e-4)


def test_threads_do_not_matter_and_are_left_as_they_were() -> None:
    model, _, h = problem(pooled)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(solve(model, h, chunk=2, levels=0))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0].x, results[1].x)


def test_unrecovered_targets_stay_unrecovered() -> None:
    model, x, h = problem(pooled)
    h[2], h[4, 5] = torch.nan, torch.inf
    found = solve(model, h)
    lost = torch.tensor([False, False, True, False, True, False])
    assert found.x[lost].isnan().all()
    assert found.residual[lost].isnan().all()
    assert psnr(found.x[~lost], x[~lost]).min() >= 40


def test_targets_of_zeros_give_something_finite() -> None:
    model, x, h = problem(pooled)
    h[1] = 0
    found = solve(model, h, attempts=2)
    assert found.x.isfinite().all()
    assert found.residual.isfinite().all()
    assert found.residual[1] > 0
    assert psnr(found.x[2:], x[2:]).min() >= 40


def test_no_targets_at_all() -> None:
    model, _, h = problem(pooled)
    assert solve(model, h[:0]).x.shape == (0, *SHAPE)
    assert solve(model, torch.full_like(h, torch.nan)).x.isnan().all()


def test_unreachable_targets_end_with_a_residual_that_says_so() -> None:
    model, _, h = problem(pooled)
    found = solve(model, torch.rand(h.shape, generator=torch.Generator().manual_seed(2)), attempts=2)
    assert found.residual.min() > 0.05


def test_late_attempts_are_for_samples_that_are_nearly_found() -> None:
    model, _, h = problem(pooled)
    unreachable = torch.rand(h.shape, generator=torch.Generator().manual_seed(2))[:2]
    some = {"search_steps": 2, "polish_steps": 3, "hopeless": 9.0}
    early, late = (solve(model, unreachable, attempts=attempts, **some) for attempts in (LATE, LATE + 2))
    assert early.residual.min() > 0.05
    assert torch.equal(late.x, early.x)
    near = h[:2]  # reachable, and with so few steps not found before
    early, late = (solve(model, near, attempts=attempts, **some) for attempts in (LATE, LATE + 2))
    assert 1e-3 < early.residual.min() < 0.05
    assert late.residual.min() < early.residual.min()


def test_models_that_are_inverted_together_have_the_data_that_each_has_by_itself() -> None:
    problems = [problem(pooled), problem(overlapping_pools, 3)]
    wanted = [Wanted(model, "fc", h, SHAPE) for model, _, h in problems]
    seen: list[tuple[int, int]] = []
    offered: list[int] = []
    how: dict[str, Any] = {"seed": 0, "device": "cpu", "options": InversionOptions(chunk=2)}
    together = invert_together(
        wanted,
        progress=lambda done, total: seen.append((done, total)),
        offer=lambda parts: offered.append(len(parts)),
        **how,
    )
    apart = [invert(one, progress=lambda done, total: None, **how) for one in wanted]
    assert all(torch.equal(one.x, other.x) for one, other in zip(together, apart, strict=True))
    assert seen[-1] == (9, 9)
    assert set(offered) == {2}


def test_progress_counts_up_to_the_total() -> None:
    model, _, h = problem(pooled)
    seen: list[tuple[int, int]] = []
    solve(model, h, chunk=2, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) >= 3
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {6}
    assert seen[-1] == (6, 6)


def test_progress_may_interrupt() -> None:
    model, _, h = problem(pooled)
    threads = torch.get_num_threads()

    def enough(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(model, h, search_steps=100_000, progress=enough)
    assert torch.get_num_threads() == threads


def test_the_model_is_left_as_it_was() -> None:
    model, _, h = problem(pooled)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    solve(model, h[:1], attempts=1)
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_options_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValidationError):
        InversionOptions.model_validate({"atempts": 3})


POOLS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(2, ceil_mode=True),
    nn.MaxPool2d(3, stride=2, padding=1),
    nn.MaxPool2d((1, 2), dilation=(1, 2)),
]


@pytest.mark.parametrize("pool", POOLS)
def test_softened_pooling_keeps_values_and_sharpens_to_the_true_gradient(pool: nn.MaxPool2d) -> None:
    x = torch.rand((2, 3, 7, 9), generator=torch.Generator().manual_seed(0), requires_grad=True)
    with SoftenedPooling(1e6):
        y = pool(x)
    assert torch.equal(y, pool(x))
    weights = torch.arange(float(y.numel())).view_as(y)
    (sharp,) = torch.autograd.grad((y * weights).sum(), x)
    (true,) = torch.autograd.grad((pool(x) * weights).sum(), x)
    assert torch.allclose(sharp, true, rtol=1e-3, atol=1e-2)


def test_softened_gradient_reaches_all_cells_of_a_window() -> None:
    x = torch.tensor([[[[1.0, 0.9], [0.5, 0.0]]]], requires_grad=True)
    soft_max_pool2d(2.0, x, 2).sum().backward()
    assert x.grad is not None
    assert x.grad.sum().item() == pytest.approx(1)
    assert (x.grad.flatten().diff() < 0).all()
    assert x.grad.min() > 0


def test_each_sample_may_have_a_sharpness_of_its_own() -> None:
    x = torch.rand((2, 3, 4, 4), generator=torch.Generator().manual_seed(0), requires_grad=True)
    (own,) = torch.autograd.grad(soft_max_pool2d(torch.tensor([2.0, 9.0]), x, 2).sum(), x)
    (blunt,) = torch.autograd.grad(soft_max_pool2d(2.0, x, 2).sum(), x)
    (sharp,) = torch.autograd.grad(soft_max_pool2d(9.0, x, 2).sum(), x)
    assert torch.allclose(own, torch.stack([blunt[0], sharp[1]]))
    assert not torch.allclose(blunt[1], sharp[1])


def test_estimates_are_much_nearer_than_grey_and_searches_from_them_are_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x, h = problem(pooled)
    estimated = estimates(model, "fc", h, SHAPE, seed=0)
    assert estimated is not None
    assert (psnr(estimated, x) - psnr(torch.full_like(x, 0.5), x)).min() >= 6
    again = estimates(model, "fc", h, SHAPE, seed=0)
    assert again is not None
    assert torch.equal(estimated, again)

    passes = 0

    def count(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal passes
        passes += len(inputs[0]) if inputs[0].requires_grad else 0

    model.get_submodule("body.0").register_forward_pre_hook(count)
    assert psnr(solve(model, h).x, x).min() >= 40
    with_estimates, passes = passes, 0
    monkeypatch.setattr("attacker.inversion.estimate.LARGEST", 0)
    assert psnr(solve(model, h).x, x).min() >= 40
    assert with_estimates < 0.9 * passes


def test_rows_of_tables_and_large_images_are_not_estimated() -> None:
    assert estimates(nn.Linear(5, 3), "", torch.zeros(2, 5), (5,), seed=0) is None
    assert estimates(pooled(), "fc", torch.zeros(2, 192), (3, 64, 64), seed=0) is None


@pytest.mark.parametrize("how", [(1, 2, 1, 1), (2, 1, 1, 1), ((1, 2), (2, 0), (2, 1), 2)])
def test_coarse_gradients_are_nearly_the_true_ones_and_values_are_exact(how: tuple[int, int, int, int]) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.rand((3, 4, 9, 8), generator=random, requires_grad=True)
    weight, bias = torch.randn((6, 4 // how[3], 3, 3), generator=random), torch.randn(6, generator=random)
    y = coarse_conv2d(x, weight, bias, *how)
    assert torch.equal(y, torch.conv2d(x, weight, bias, *how))
    along = torch.randn(y.shape, generator=random)
    (coarse,) = torch.autograd.grad(y, x, along)
    (true,) = torch.autograd.grad(torch.conv2d(x, weight, bias, *how), x, along)
    assert 0 < (coarse - true).norm() < 0.01 * true.norm()
    if faster():
        model = net(nn.Conv2d(1, 4, 3, padding=1)).requires_grad_(False)
        targets = torch.ones(1, 256)
        image = torch.rand((1, *SHAPE), generator=random, requires_grad=True)
        errors = Objective.of(model, "fc", targets).errors(image, 1.0)
        (used,) = torch.autograd.grad(errors.square().sum(), image)
        (plain,) = torch.autograd.grad(((representation(model, "fc", image) - targets) / 16).square().sum(), image)
        assert 0 < (used - plain).norm() < 0.01 * plain.norm()


def test_weights_that_learn_keep_their_gradient() -> None:
    x, weight = torch.rand(2, 1, 5, 5), torch.rand(3, 1, 3, 3, requires_grad=True)
    coarse_conv2d(x, weight, padding="same").sum().backward()
    assert weight.grad is not None
    (again,) = torch.autograd.grad(coarse_conv2d(x, weight, padding=1).sum(), weight)
    assert torch.allclose(again, weight.grad)


class Viewed(nn.Module):
    """Looks at its activations with .view, which takes them in torch's usual order alone."""

    def forward(self, x: Tensor) -> Tensor:
        """Return rows."""
        return x.view(len(x), -1)


def test_models_that_rely_on_the_usual_order_in_memory_are_inverted_too() -> None:
    body = [nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(16, 32, 3, stride=2, padding=1)]
    model, truth, h = problem(lambda: net(*body, Viewed()))
    coloured = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    assert lay_out(coloured, "2", torch.zeros(3, 3, 8, 8)) == torch.channels_last
    assert lay_out(model, "fc", truth) == torch.contiguous_format
    assert psnr(solve(model, h).x, truth).min() >= 40


def test_rounding_is_tried_once_pixels_are_near_their_levels() -> None:
    levels = torch.randint(0, 256, (2, 1, 8, 8), generator=torch.Generator().manual_seed(0)) / 255
    off = torch.rand((2, 1, 8, 8), generator=torch.Generator().manual_seed(1)) - 0.5
    assert near_levels(levels + 0.3 * off / 255, 256).all()
    assert not near_levels(levels + off / 255, 256).any()
    assert not near_levels(levels, 0).any()
    assert not near_levels(torch.zeros(2, 5), 256).any()
