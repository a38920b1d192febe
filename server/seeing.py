"""A finished round as it reached the coordinator: what its workers uploaded, put together."""

from collections.abc import Mapping

from torch import Tensor

from server.inbox import Upload
from server.parameters import Parameters, gradients_of_round
from vfl.observation import Observation, averaged
from vfl.topology import Topology


def seen(
    number: int,
    indices: Tensor,
    uploads: Mapping[int, Upload],
    parameters: Parameters,
    *,
    topology: Topology,
) -> tuple[Observation, float]:
    """Return a round and its loss."""
    given = {worker: upload.gradients for worker, upload in uploads.items()}
    losses = {worker: upload.loss for worker, upload in uploads.items() if upload.loss is not None}
    about = (number, indices, parameters.version, parameters.current)
    if not topology.is_horizontal:
        gradients = gradients_of_round(given, topology.bottoms, topology.label_holder)
        return Observation(*about, gradients), losses[topology.label_holder]
    sizes = list(map(len, topology.rows_of_each(indices)))
    own = tuple(gradients_of_round({0: given[worker]}, 1, 0) for worker in range(len(sizes)))
    loss = sum(size * losses[worker] for worker, size in enumerate(sizes)) / len(indices)
    return Observation(*about, averaged(own, sizes), own), loss
