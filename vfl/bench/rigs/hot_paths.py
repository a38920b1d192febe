"""The hot paths of a run, each with its floor: the same arithmetic on the same shapes with nothing around it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.exact.steps12.cells import Cell, cells_of
from attacker.exact.steps12.solve import solve
from attacker.inversion import InversionOptions, Wanted, invert
from protos.codec import Assembler, announce
from protos.wire import UPLOAD, ChunkView
from server.parameters import Parameters, gradients_of_round
from vfl.maths.factors import OVERSAMPLING, Factors, factorize
from vfl.models import build_bottom
from vfl.models.layers import representation
from vfl.observation import BOTTOM, Setting, with_prefix
from vfl.observation.schedule import batches
from vfl.optimisers import optimisers
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection
from vfl.seeds import seeded
from worker.defences import Chain, Plan
from worker.party import Bottom

SHAPE, WORKERS, BATCH_SIZE = (3, 32, 32), 4, 40
MODEL = PluginSection(name="cafe_cnn")
LIMIT = 1 << 30


@dataclass(frozen=True)
class HotPath:
    """A path and its floor; each call does the whole work once."""

    name: str
    against: str
    ours: Callable[[], object]
    floor: Callable[[], object]
    turns: int = 15


def hot_paths(short: bool) -> list[HotPath]:
    """Return them all, on CIFAR-10's shapes with the paper's network."""
    batch_size = 8 if short else BATCH_SIZE
    return [
        worker_round(batch_size),
        *codec(),
        *(aggregation(name) for name in optimisers.builtin_names()),
        observing(batch_size),
        steps_one_two(64 if short else 400, 8 if short else 20),  # cells of one, as with large N
        steps_one_two(64 if short else 400, 16 if short else 40),  # cells of four
        step_three(2 if short else 8, InversionOptions(search_steps=3 if short else 25, polish_steps=5, attempts=1)),
    ]


def worker_round(batch_size: int) -> HotPath:
    """A worker's round without the wire, beside forward and backward of its slice."""
    box = partition(SHAPE, WORKERS)[0]
    model = build_bottom(MODEL, box.shape, 0, 0)
    x = torch.rand(400, *box.shape, generator=torch.Generator().manual_seed(0))
    bottom, parameters = Bottom(model, x, None, "cpu"), list(model.parameters())
    chain = Chain((PluginSection(name="none"),), Plan(0, 400, batch_size, 1000, "epochs"))
    indices, at_output = torch.arange(batch_size), torch.rand(batch_size, 10) / batch_size

    def ours() -> object:
        rows = chain.rows(1, indices)
        with seeded(0, "worker 0", 1):
            bottom.forward(rows)
        gradients = with_prefix(BOTTOM, bottom.backward(at_output))
        return chain.apply(gradients, 1, rows=rows, x=bottom.batch(rows), model=bottom.model)

    return HotPath(
        "worker round",
        "PyTorch: forward and backward",
        ours,
        lambda: torch.autograd.grad(model(x[indices]), parameters, at_output),
    )


def codec() -> list[HotPath]:
    """A worker's upload into messages and out of them, beside copying its bytes."""
    model = build_bottom(MODEL, partition(SHAPE, WORKERS)[0].shape, 0, 0)
    tensors = with_prefix(BOTTOM, {name: one.detach().clone() for name, one in model.named_parameters()})
    bundle, messages = announce(tensors), list(UPLOAD.chunks(tensors.values()))
    raw = torch.cat([one.reshape(-1) for one in tensors.values()])

    def write() -> object:
        announce(tensors)
        return list(UPLOAD.chunks(tensors.values()))

    def read() -> object:
        assembler = Assembler(bundle, LIMIT)
        for message in messages:
            part = UPLOAD.read(message)
            assert isinstance(part, ChunkView)
            assembler.add(part.offset, part.data)
        return assembler.finish()

    return [
        HotPath("codec, writing", "memcpy of the same bytes", write, raw.clone, 40),
        HotPath("codec, reading", "memcpy of the same bytes", read, raw.clone, 40),
    ]


def aggregation(optimizer: str) -> HotPath:
    """A round's uploads put together and the step taken, beside the optimiser's step alone."""
    boxes = tuple(partition(SHAPE, WORKERS))
    setting = Setting(MODEL, boxes, 10, 400, BATCH_SIZE, "epochs", 1000, frozen=False, seed=0)
    training = TrainingConfig.model_validate({"optimizer": optimizer, "lr": 1e-3})
    parameters = Parameters(setting, training)
    uploads = {
        worker: {name: torch.full_like(one, 1e-3) for name, one in parameters.expected_from(worker).items()}
        for worker in range(WORKERS)
    }
    plain = [nn.Parameter(one.clone()) for upload in uploads.values() for one in upload.values()]
    given = [one for upload in uploads.values() for one in upload.values()]
    step = training.build_optimiser().start(plain, training.lr)

    def floor() -> None:
        for parameter, gradient in zip(plain, given, strict=True):
            parameter.grad = gradient
        step.step()

    return HotPath(
        f"aggregation and step, {optimizer}",
        f"torch.optim.{type(step).__name__} alone",
        lambda: parameters.update(1, gradients_of_round(uploads, WORKERS, 0)),
        floor,
    )


def observing(batch_size: int) -> HotPath:
    """One worker's gradient reduced to its factors, beside the products and decompositions alone."""
    random = torch.Generator().manual_seed(0)
    gradient = (
        torch.randn(256, batch_size, generator=random) @ torch.randn(batch_size, 2048, generator=random) / batch_size
    )
    bias, width = torch.randn(256, generator=random), batch_size + OVERSAMPLING
    exact, mixing = gradient.double(), torch.randn(2048, width, dtype=torch.float64)

    def floor() -> None:
        span = torch.linalg.qr(exact @ mixing).Q
        basis = torch.linalg.qr(exact.T @ span).Q
        span, triangle = torch.linalg.qr(exact @ basis)
        u, _, vh = torch.linalg.svd(triangle)
        _ = span @ u, basis @ vh.T

    return HotPath(
        "observing a gradient", "LAPACK: three QRs and an SVD", lambda: factorize(gradient, bias, batch_size), floor
    )


def steps_one_two(samples: int, batch_size: int) -> HotPath:
    """Steps I and II at one worker, beside the decompositions of cells and batches alone."""
    random = torch.Generator().manual_seed(0)
    h = torch.randn(samples, 2048, generator=random, dtype=torch.float64).clamp_min(0)
    v = torch.randn(samples, 256, generator=random, dtype=torch.float64)
    drawn = list(batches("orthogonal", samples, batch_size, 2 * -(-samples // batch_size), seed=0))
    factors = [factorize((v[rows].T @ h[rows] / len(rows)).float(), v[rows].mean(0), len(rows)) for rows in drawn]
    cells = cells_of(drawn, samples)
    return HotPath(
        f"steps I and II, N {samples}, K {batch_size}",
        "LAPACK: products, eigh, svd, pinv",
        lambda: solve(cells, drawn, factors, samples),
        lambda: _meetings(cells, factors),
        3,
    )


def _meetings(cells: list[Cell], factors: list[Factors]) -> None:
    """Do the linear algebra that every way of solving needs: where batches meet, and each batch taken apart."""
    for cell in cells:
        first, second = (factors[t].left for t in cell.rounds[:2])
        overlap, several = first.T @ second, len(cell.samples)
        basis = first @ torch.linalg.eigh(overlap @ overlap.T)[1][:, -several:]
        for _ in cell.samples if several > 1 else ():  # each sample's zeros, half of its coordinates, fix it
            _ = torch.linalg.svd(basis[: len(basis) // 2], full_matrices=False)
    for own in factors:
        inside = own.left.T @ own.left
        rows = torch.linalg.pinv(inside) @ (own.sigma[:, None] * own.right.T)
        q, r = torch.linalg.qr(rows.T)
        _ = torch.linalg.pinv(r) @ q.T


def step_three(samples: int, options: InversionOptions) -> HotPath:
    """The inversion of representations, beside Adam with as many forward and backward passes of the same sizes."""
    shape = partition(SHAPE, WORKERS)[0].shape
    model = build_bottom(MODEL, shape, 0, 0).requires_grad_(False)
    x = torch.rand(samples, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        targets = representation(model, "fc1", x)
    passes: list[tuple[int, bool]] = []

    def note(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        passes.append((len(inputs[0]), inputs[0].requires_grad))

    handle = model.get_submodule("conv1").register_forward_pre_hook(note)

    def run() -> object:
        passes.clear()
        wanted = Wanted(model, "fc1", targets, shape)
        return invert(wanted, seed=0, device="cpu", options=options, progress=lambda _done, _of: None)

    run()
    wanted = tuple(passes)
    handle.remove()

    def floor() -> None:
        guess = torch.full_like(x, 0.5).requires_grad_()
        adam = torch.optim.Adam([guess], lr=0.1)
        for rows, learns in wanted:
            with torch.set_grad_enabled(learns):
                errors = representation(model, "fc1", guess[:rows]) - targets[:rows]
            if learns:
                adam.zero_grad()
                errors.square().sum().backward()
                adam.step()

    return HotPath(
        f"step III, {samples} slices, {len(wanted)} passes", "PyTorch: Adam with as many passes", run, floor, 5
    )
