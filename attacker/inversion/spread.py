"""Where the chunks of step III are worked on: on this machine's cores, or all over a Ray cluster."""

from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from attacker.inversion.attempt import Chunk
from attacker.inversion.on_ray import on_ray
from attacker.inversion.options import InversionOptions
from attacker.inversion.parallel import in_parallel


def spread(
    chunks: Sequence[Chunk], options: InversionOptions
) -> Generator[list[tuple[int, tuple[Tensor, Tensor]]], None, None]:
    """Yield, many times a second, the (number, result) of chunks that are done since; closing it stops the others."""
    if options.engine == "ray":
        return on_ray(chunks, options.address)
    return in_parallel(chunks, _threads(chunks))


def _threads(chunks: Sequence[Chunk]) -> int:
    """Return how many at a time: on a graphics card one, which fills it."""
    fills = any(torch.device(chunk.problem.device).type != "cpu" for chunk in chunks)
    return 1 if fills else torch.get_num_threads()
