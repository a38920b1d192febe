"""How long each worker's output may be, as far as the label holder's own config and data say."""

from collections.abc import Iterator, Sequence
from functools import cached_property

from vfl.config import RunConfig
from vfl.datasets.slices import WorkerData
from vfl.errors import CafeError
from vfl.models import build_bottom, output_width
from vfl.partition import Shape, partition

IMAGE = 3
"""Dimensions of a sample whose slices follow from the config alone; which columns of a table others have does not."""


class Widths:
    """The outputs that the label holder's top model is built for. Another worker computes with its own alone."""

    def __init__(self, config: RunConfig, data: WorkerData, worker: int) -> None:
        self._config, self._box, self._worker = config, data.box, worker
        self._place = config.topology.bottom_of(worker)
        self._known: dict[tuple[str, Shape], int] = {}

    def problems(self, widths: Sequence[int]) -> Iterator[str]:
        """Yield which of the coordinator's numbers cannot be."""
        for place, width in enumerate(widths):
            least, most = self._bounds.get(place, (0, width))
            if not least <= width <= most:
                planned = f"{least}" if least == most else f"{least} to {most}"
                same = "is the config's model section the same on both?"
                yield f"the coordinator says that worker {place} has outputs of {width}, this worker {planned}: {same}"

    @cached_property
    def _bounds(self) -> dict[int, tuple[int, int]]:
        """Return the least and the greatest width of each bottom model of which this worker knows it."""
        topology = self._config.topology
        own = {} if self._box.empty else {self._place: (self._box.shape, self._box.shape)}
        if not topology.holds_labels(self._worker) or topology.is_horizontal:
            slices = own
        else:
            slices = {place: self._slices(place) for place in range(topology.bottoms)} | own
        bounds = {}
        for place, shapes in slices.items():
            found = [self._width(place, shape) for shape in shapes]
            bounds[place] = (min(found), max(found))
        return bounds

    def _slices(self, place: int) -> tuple[Shape, Shape]:
        """Return the smallest and the largest slice that a worker can have; of a table, those that its model takes."""
        whole, topology = self._box.sample_shape, self._config.topology
        if len(whole) == IMAGE:
            shape = partition(whole, topology.feature_holders, self._config.federation.slices)[place].shape
            return shape, shape
        sizes = range(1, whole[0] + 1)
        least = next((size for size in sizes if self._takes(place, size)), whole[0])
        return (least,), (next((size for size in reversed(sizes) if self._takes(place, size)), least),)

    def _takes(self, place: int, columns: int) -> bool:
        """Tell whether a worker's model can be built for so many columns: not every one can."""
        try:
            self._width(place, (columns,))
        except CafeError:
            return False
        return True

    def _width(self, place: int, shape: Shape) -> int:
        section = self._config.model
        own = getattr(section, "bottoms", {}).get(place, section)
        key = (own.model_dump_json(), shape)
        if key not in self._known:
            self._known[key] = self._measured(place, shape)
        return self._known[key]

    def _measured(self, place: int, shape: Shape) -> int:
        # On `meta` a pooling layer would make torch import its compiler: a second or more of every worker's start
        return output_width(build_bottom(self._config.model, shape, self._config.seed, place), shape)
