"""Inversion of representations: data comes back from what flows into a layer, whatever the model."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from attacker.inversion import Inversion, InversionOptions, invert
from attacker.inversion.pooling import SoftenedPooling, soft_max_pool2d
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
        model,
        "fc",
        targets,
        SHAPE,
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
