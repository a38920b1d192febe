"""What a worker checks before it follows an order: the order must agree with the worker's own config and data."""

from collections.abc import Mapping

from torch import Tensor

from protos.codec import CodecError, describe
from protos.coordinator_pb2 import Purpose, Round, Start
from protos.tensors_pb2 import Bundle
from vfl.config import RunConfig
from vfl.datasets.slices import WorkerData
from vfl.errors import RunFailedError
from vfl.limits import PARAMETER_BYTES

_NUMBER_BYTES = 4


def check_start(start: Start, config: RunConfig, data: WorkerData) -> None:
    """Make sure that a start is of this federation, before a model is built from its numbers."""
    topology = config.topology
    if (start.workers, start.label_holder) != (topology.parties, topology.label_holder):
        here = f"the config here {topology.parties} and {topology.label_holder}: use the same file everywhere"
        theirs = f"{start.workers} workers and label holder {start.label_holder}"
        raise RunFailedError(f"the coordinator says {theirs}, {here}")
    if data.y is not None and start.classes != data.classes:
        raise RunFailedError(f"the coordinator says {start.classes} classes, the labels here have {data.classes}")
    top = sum(start.output_widths) * max(start.classes, 1) * _NUMBER_BYTES
    if len(start.output_widths) != topology.bottoms or top > PARAMETER_BYTES:
        raise RunFailedError(f"the coordinator's outputs fit no model of {topology.parties} workers")


def check_parameters(bundle: Bundle, own: Mapping[str, Tensor]) -> None:
    """Make sure that announced parameters are those of this worker's model, before memory is taken for them."""
    try:
        announced = describe(bundle)
    except CodecError as error:
        raise RunFailedError(f"the coordinator sent broken parameters: {error}") from None
    here = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in own.items()}
    for name in here | announced:
        if here.get(name) != announced.get(name):
            theirs, ours = (side[name][1] if name in side else None for side in (announced, here))
            same = "is the config's model section the same on both?"
            raise RunFailedError(f"the coordinator's {name} has shape {theirs}, this worker's {ours}: {same}")


def check_round(order: Round, data: WorkerData) -> None:
    """Make sure that a round names only samples that this worker has."""
    evaluates = order.purpose == Purpose.PURPOSE_EVALUATE
    samples = len(data.x) if not evaluates else 0 if data.x_test is None else len(data.x_test)
    if not 0 < len(order.indices) <= samples or max(order.indices) >= samples:
        raise RunFailedError(f"round {order.round} names samples that this worker does not have: it has {samples}")
