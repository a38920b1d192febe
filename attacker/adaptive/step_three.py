"""Step III for representations that are off: total variation stays on, the more the less h is to be trusted.

How far h is off shows once more here: what no data explains of it, |h(x) - h| / |h|, is error for certain.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attacker.inversion import InversionOptions, Wanted, invert
from attacker.inversion.attempt import roughness
from attacker.inversion.objective import Objective
from attacker.inversion.values import allowed

EXACT = 2e-3
"""Relative errors below this are rounding: the plain inversion, with its attempts and its pixel levels, is best."""
STEPS, RATE, SHARPNESS = 150, 0.03, 50.0
"""Adam's, from where the plain inversion ended."""


def invert_inexact(
    model: nn.Module,
    layer: str,
    h: Tensor,
    error: Tensor,
    *,
    shape: tuple[int, ...],
    seed: int,
    device: str,
    options: InversionOptions,
    smoothness: float,
    progress: Callable[[int, int], None],
) -> Tensor:
    """Return data (samples, *shape) with representations near h, which is off by about `error`, relative.

    With a smoothness of 0 it stops where the plain inversion ends, which is several times as fast.
    """
    x = torch.full((len(h), *shape), torch.nan)
    known = h.isfinite().all(dim=1)
    off = error.double()
    done = 0
    once = options.model_copy(update={"attempts": min(2, options.attempts), "levels": 0})
    for group, how in ((known & (error < EXACT), options), (known & (error >= EXACT), once)):
        members = group.nonzero()[:, 0]
        if len(members) == 0:
            continue

        def step(at: int, _: int, before: int = done) -> None:
            progress(before + at, 2 * len(h))

        wanted = Wanted(model.float(), layer, h[members].float(), shape)
        found = invert(wanted, seed=seed, device=device, options=how, progress=step)
        x[members] = found.x.float().cpu()
        off[members] = torch.maximum(off[members], found.residual.double().cpu())
        done += len(members)
    rough = (known & (off >= EXACT) & (smoothness > 0)).nonzero()[:, 0]
    progress(2 * len(h) - len(rough), 2 * len(h))
    for number, some in enumerate(rough.split(32) if len(rough) else ()):
        progress(2 * len(h) - len(rough) + 32 * number, 2 * len(h))
        weight = (smoothness * off[some]).float()
        x[some] = _smoothed(Objective.of(model.float().cpu(), layer, h[some].float()), x[some], weight)
    return x


def _smoothed(objective: Objective, x: Tensor, weight: Tensor) -> Tensor:
    """Return the minimum near x of the squared relative error plus each sample's weight times its roughness."""
    x = x.clone().requires_grad_()
    adam = torch.optim.Adam([x], lr=RATE, betas=(0.8, 0.95), eps=1e-12)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS)
    for _ in range(STEPS):
        loss = (objective.errors(x, SHARPNESS).square().sum(1) + weight * roughness(x)).sum()
        (x.grad,) = torch.autograd.grad(loss, x)
        adam.step()
        decay.step()
        with torch.no_grad():
            x.copy_(allowed(x))
    return x.detach()
