"""Which features of a sample each worker holds: boxes that tile the whole sample."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise, product

import torch
from torch import Tensor

from vfl.errors import UserError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """A worker's slice: start <= index < stop in each dimension of the whole sample."""

    sample_shape: Shape
    start: Shape
    stop: Shape

    @property
    def shape(self) -> Shape:
        """Return the shape of one sample's slice."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    def cut(self, x: Tensor) -> Tensor:
        """Return the slice of whole samples x (N, *sample_shape)."""
        return x[(slice(None), *self._window())]

    def paste(self, whole: Tensor, part: Tensor) -> None:
        """Write a slice of all samples back into its place."""
        whole[(slice(None), *self._window())] = part

    @classmethod
    def all(cls, sample_shape: Shape) -> "Box":
        """Return the whole sample."""
        return cls(sample_shape, (0,) * len(sample_shape), sample_shape)

    @classmethod
    def nothing(cls, sample_shape: Shape) -> "Box":
        """Return the slice of a label holder that has no features."""
        return cls(sample_shape, (0,) * len(sample_shape), (0,) * len(sample_shape))

    @property
    def empty(self) -> bool:
        """Whether it holds no features."""
        return self == Box.nothing(self.sample_shape)

    def problem(self) -> str | None:
        """Return what is wrong with the box itself, if anything."""
        if self.empty and self.sample_shape:
            return None
        if not len(self.sample_shape) == len(self.start) == len(self.stop) or not self.sample_shape:
            bounds = f"{len(self.start)} to {len(self.stop)} bounds"
            return f"has {bounds} for a sample of {len(self.sample_shape)} dimensions"
        for a, b, size in zip(self.start, self.stop, self.sample_shape, strict=True):
            if not 0 <= a < b <= size:
                return f"covers {a}:{b} of a dimension of size {size}"
        return None

    def overlap(self, other: "Box") -> int:
        """Return how many features two slices share."""
        edges = zip(self.start, self.stop, other.start, other.stop, strict=True)
        return math.prod(max(0, min(b, d) - max(a, c)) for a, b, c, d in edges)

    def _window(self) -> tuple[slice, ...]:
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))


def partition(sample_shape: Shape, workers: int, slices: Sequence[str] | None = None) -> list[Box]:
    """Divide a sample among the workers: as the config says, or a grid (images) or runs of columns (tables)."""
    boxes = _explicit(sample_shape, slices) if slices is not None else _even(sample_shape, workers)
    problem = tiling_problem(boxes)
    if problem:
        raise UserError(f"federation.slices: {problem}")
    return boxes


def column_boxes(widths: Sequence[int], boxes: Sequence[Box]) -> list[Box]:
    """Turn boxes of a table's columns into boxes of its features, of which column i makes widths[i]."""
    edges = list(accumulate(widths, initial=0))
    return [_box((edges[-1],), ((edges[box.start[0]], edges[box.stop[0]]),)) for box in boxes]


def tiling_problem(boxes: Sequence[Box]) -> str | None:
    """Return why the boxes do not tile the sample (a hole, an overlap), or None when they do."""
    for worker, box in enumerate(boxes):
        problem = box.problem()
        if problem:
            return f"the slice of worker {worker} {problem}"
        if box.sample_shape != boxes[0].sample_shape:
            return f"worker {worker} cuts samples of shape {box.sample_shape}, worker 0 of {boxes[0].sample_shape}"
    for (one, first), (other, second) in combinations(enumerate(boxes), 2):
        shared = first.overlap(second)
        if shared:
            return f"{shared} features are held by more than one worker, by {one} and by {other}"
    # Boxes within the sample that do not overlap tile it if they hold as many features as it has.
    missing = math.prod(boxes[0].sample_shape) - sum(math.prod(box.shape) for box in boxes)
    return f"{missing} features are held by no worker" if missing else None


def assemble(boxes: Sequence[Box], parts: Sequence[Tensor]) -> Tensor:
    """Put the workers' slices together to whole samples."""
    whole = torch.zeros((len(parts[0]), *boxes[0].sample_shape), dtype=parts[0].dtype)
    for box, part in zip(boxes, parts, strict=True):
        box.paste(whole, part.reshape(len(part), *box.shape))
    return whole


def _even(sample_shape: Shape, workers: int) -> list[Box]:
    if len(sample_shape) == 1:
        return [_box(sample_shape, (run,)) for run in _runs(sample_shape[0], workers)]
    channels, height, width = sample_shape
    rows, columns = _grid(height, width, workers)
    grid = product(_runs(height, rows), _runs(width, columns))
    return [_box(sample_shape, ((0, channels), row, column)) for row, column in grid]


def _grid(height: int, width: int, workers: int) -> tuple[int, int]:
    """Return the rows and columns of the squarest grid of so many cells that fits the image."""
    rows = [r for r in range(1, workers + 1) if workers % r == 0 and r <= height and workers // r <= width]
    if not rows:
        raise UserError(f"federation.workers: an image of {height}x{width} cannot be divided among {workers} workers")
    best = min(rows, key=lambda r: abs(math.log(r / (workers / r))))
    return best, workers // best


def _runs(size: int, parts: int) -> list[tuple[int, int]]:
    if parts > size:
        raise UserError(f"federation.workers: {size} features cannot be divided among {parts} workers")
    edges = [round(i * size / parts) for i in range(parts + 1)]
    return list(pairwise(edges))


def _explicit(sample_shape: Shape, slices: Sequence[str]) -> list[Box]:
    """Read slices such as "0:16,16:32" (rows and columns of an image) or "0:7" (columns of a table)."""
    spatial = sample_shape[-2:] if len(sample_shape) == 3 else sample_shape
    boxes = []
    for worker, text in enumerate(slices):
        given = f"federation.slices: {text!r} of worker {worker}"
        try:
            ranges = [(int(start), int(stop)) for start, stop in (part.split(":") for part in text.split(","))]
        except ValueError:
            raise UserError(f"{given} is not like '0:16,16:32' or '0:7'") from None
        if len(ranges) != len(spatial):
            needs = f"a sample of shape {sample_shape} needs {len(spatial)}"
            raise UserError(f"{given} has {len(ranges)} ranges, {needs}")
        whole = ((0, sample_shape[0]),) if len(sample_shape) == 3 else ()
        boxes.append(_box(sample_shape, (*whole, *ranges)))
    return boxes


def _box(sample_shape: Shape, ranges: Sequence[tuple[int, int]]) -> Box:
    return Box(sample_shape, tuple(a for a, _ in ranges), tuple(b for _, b in ranges))
