"""What each seat must see, from autograd on the undivided data: the oracle of taps, transcripts and attacks."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from server.parameters import Parameters
from vfl.models.whole import known_model
from vfl.observation import (
    AnyObservation,
    CoalitionObservation,
    Held,
    LabelHolderObservation,
    ModelTensors,
    Observation,
    PartyObservation,
    Setting,
    WorkerObservation,
)
from vfl.observation.schedule import batches_of
from vfl.optimisers.training import TrainingConfig
from vfl.seats import COORDINATOR, Seat


def seated(setting: Setting, seats: tuple[Seat, ...], x: Tensor, y: Tensor) -> Setting:
    """Return a setting as these seats have it."""
    workers = [seat.worker for seat in seats if seat.worker is not None]
    labels = tuple(y.tolist()) if any(seat.kind == "label_holder" for seat in seats) else None
    widths = tuple(known_model(setting, Parameters(setting, TrainingConfig()).current).widths)
    known = x[: setting.auxiliary] if setting.auxiliary else None
    held = Held({worker: setting.boxes[worker].cut(x) for worker in workers}, known)
    return replace(setting, seats=seats, labels=labels, held=held, widths=widths if workers else ())


def seen_from(setting: Setting, x: Tensor, y: Tensor, training: TrainingConfig) -> Iterator[AnyObservation]:
    """Yield the rounds as the setting's seats see them."""
    parameters = Parameters(setting, training)
    for number, indices in enumerate(batches_of(setting), start=1):
        version, current = parameters.version, parameters.current
        model = known_model(setting, current)
        outputs = [bottom(box.cut(x)[indices]) for bottom, box in zip(model.bottoms, setting.boxes, strict=True)]
        loss = cross_entropy(model.top(torch.cat(outputs, dim=1)), y[indices])
        flat = [parameter for module in (*model.bottoms, model.top) for parameter in module.parameters()]
        found = iter(torch.autograd.grad(loss, [*outputs, *flat], materialize_grads=True))
        answers = tuple(next(found) for _ in outputs)
        named = [{name: next(found) for name, _ in one.named_parameters()} for one in (*model.bottoms, model.top)]
        gradients = ModelTensors(tuple(named[:-1]), named[-1])
        sent = tuple(output.detach() for output in outputs)
        about = (number, indices, version)
        parts = tuple(_part(seat, about, current, gradients, sent, answers) for seat in setting.seats)
        yield parts[0] if len(parts) == 1 else CoalitionObservation(parts)
        parameters.update(number, gradients)


def _part(seat, about, current, gradients, sent, answers) -> PartyObservation:
    if seat == COORDINATOR:
        return Observation(*about, current, gradients)
    own = dict(enumerate(current.bottoms)).get(seat.worker, {})
    if seat.kind == "worker":
        return WorkerObservation(*about, own, sent[seat.worker], answers[seat.worker])
    return LabelHolderObservation(*about, own, current.top, sent, answers, gradients.top)


def tensors_of(observation: AnyObservation) -> dict[str, Tensor]:
    """Return all tensors of an observation, by where they are in it."""
    found: dict[str, Tensor] = {}

    def collect(where: str, value: object) -> None:
        if isinstance(value, Tensor):
            found[where] = value
        elif isinstance(value, dict):
            for key, one in value.items():
                collect(f"{where}.{key}", one)
        elif isinstance(value, tuple):
            for place, one in enumerate(value):
                collect(f"{where}.{place}", one)
        elif hasattr(value, "__dataclass_fields__"):
            for name in value.__dataclass_fields__:
                collect(f"{where}.{name}", getattr(value, name))

    collect("", observation)
    return found
