"""What a transcript says of its run: the setting of the party that wrote it, and what that party holds itself."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from vfl.config import RunConfig
from vfl.files import PRIVATE, write_atomically
from vfl.files.tensor_file import DamagedError, read_tensors, write_tensors
from vfl.folder.transcript.parties import check_tensors
from vfl.limits import CLASSES, FEATURES, SAMPLES, plain
from vfl.observation import Held, Setting
from vfl.observation.setting import UNKNOWN
from vfl.partition import Box, tiling_problem
from vfl.seats import COORDINATOR, OneSeat, Seat, adversary_of, seats_of

_HELD = "held.safetensors"
_AUXILIARY = "auxiliary"
_SCHEDULES = ("epochs", "uniform", "orthogonal")
_SEAT: TypeAdapter[Any] = TypeAdapter(OneSeat)
_KEYS = {"boxes", "classes", "samples", "batch_size", "schedule", "shares", "labels", "unknown", "seat", "widths"}


def setting_tree(setting: Setting) -> dict[str, Any]:
    """Return a setting as JSON has it, without what is in the config already."""
    seats = {} if setting.seats == (COORDINATOR,) else {"seat": adversary_of(setting.seats), "widths": setting.widths}
    return {
        "boxes": [{"sample_shape": b.sample_shape, "start": b.start, "stop": b.stop} for b in setting.boxes],
        "classes": setting.classes,
        "samples": setting.samples,
        "batch_size": setting.batch_size,
        "schedule": setting.schedule,
        "shares": setting.topology.shares,
        **({} if setting.labels is None else {"labels": list(setting.labels)}),
        **({"unknown": sorted(setting.unknown)} if setting.unknown else {}),
        **seats,
    }


def setting_from(tree: Any, config: RunConfig, rounds: int) -> Setting:
    """Return the setting of a transcript, or raise an error of what is wrong with it."""
    if not isinstance(tree, dict):
        raise TypeError(f"setting is {str(tree)[:40]!r}, expected keys and values")
    if odd := sorted(tree.keys() - _KEYS):
        raise ValueError(f"it has a key that no setting has: {plain(odd[0])}")
    seat = _seat(tree.get("seat", "coordinator"), config)
    sizes = {name: tree[name] for name in ("classes", "samples", "batch_size")}
    most = {"classes": CLASSES, "samples": SAMPLES, "batch_size": SAMPLES}
    if not all(type(size) is int and 0 < size <= most[name] for name, size in sizes.items()):
        named = ", ".join(f"{name} {sizes[name]}, at most {most[name]}" for name in sizes)
        raise ValueError(f"these are not whole numbers from 1 on that fit: {named}")
    if tree["batch_size"] > tree["samples"]:
        raise ValueError(f"batches of {tree['batch_size']} of {tree['samples']} samples")
    if tree["schedule"] not in _SCHEDULES:
        raise ValueError(f"schedule is {plain(str(tree['schedule']))!r}, expected one of {', '.join(_SCHEDULES)}")
    boxes = _boxes(tree["boxes"], config, whole=seat == COORDINATOR)
    shares = tuple(_list(tree.get("shares", []), "shares", int))
    wanted = (config.federation.workers, tree["samples"]) if config.topology.is_horizontal else (0, 0)
    if not all(type(share) is int and share > 0 for share in shares) or (len(shares), sum(shares)) != wanted:
        raise ValueError(f"{shares} samples for {config.federation.workers} workers of a {config.federation.kind} run")
    labels = _labels(tree.get("labels"), tree["samples"], tree["classes"], number=config.training.loss == "squared")
    knows = config.topology.labels_at_coordinator if seat == COORDINATOR else seat.kind == "label_holder"
    if (labels is None) == knows:
        raise ValueError("it has labels exactly if its party holds them (federation.label_holder)")
    if seat == COORDINATOR:
        known = Setting.of(config, boxes, tree["classes"], tree["samples"], shares=shares, labels=labels)
    else:
        widths = _widths(tree["widths"], len(boxes))
        known = replace(_at(config, seat, boxes, sizes), labels=labels, widths=widths)
    unknown = _unknown(tree.get("unknown", []), seat, config)
    return replace(known, batch_size=tree["batch_size"], schedule=tree["schedule"], rounds=rounds, unknown=unknown)


def _seat(found: Any, config: RunConfig) -> Seat:
    try:
        seat: Any = _SEAT.validate_python(found)
    except ValidationError:
        raise ValueError(f"seat is {plain(repr(found))}, expected coordinator, label_holder or a worker's") from None
    return seats_of(seat, config.topology)[0]


def _unknown(found: Any, seat: Seat, config: RunConfig) -> frozenset[str]:
    if not isinstance(found, list) or not all(isinstance(one, str) and one in UNKNOWN for one in found):
        raise ValueError(f"unknown is {found!r}, expected some of {', '.join(UNKNOWN)}")
    if found and (seat != COORDINATOR or config.topology.is_horizontal or config.topology.labels_at_coordinator):
        raise ValueError("unknown: only a vertical federation's coordinator without labels may not know all of it")
    if "batch_size" in found and "indices" not in found:
        raise ValueError("unknown: indices tell the batch's size")
    return frozenset(found)


def _at(config: RunConfig, seat: Seat, boxes: tuple[Box, ...], sizes: dict[str, int]) -> Setting:
    own = dict(enumerate(boxes)).get(seat.worker or 0, Box.nothing(boxes[0].sample_shape))
    known = Setting.at(config, seat, own, sizes["classes"], samples=sizes["samples"])
    return replace(known, boxes=boxes)


def _list(found: Any, name: str, kind: type) -> list[Any]:
    if not isinstance(found, list) or not all(isinstance(one, kind) for one in found):
        raise ValueError(f"{name} is {plain(repr(found))}, expected a list of {'numbers' if kind is int else 'slices'}")
    return found


def _boxes(trees: Any, config: RunConfig, *, whole: bool) -> tuple[Box, ...]:
    """Return the slices' places; only the coordinator is sure to know all of them."""
    _list(trees, "boxes", dict)
    boxes = tuple(Box(tuple(b["sample_shape"]), tuple(b["start"]), tuple(b["stop"])) for b in trees)
    if not all(type(edge) is int for box in boxes for edge in (*box.sample_shape, *box.start, *box.stop)):
        raise ValueError("its slices have bounds that are no whole numbers")
    if len(boxes) != config.topology.bottoms or not 0 < math.prod(boxes[0].sample_shape) <= FEATURES:
        raise ValueError(f"{len(boxes)} slices for {config.topology.bottoms} bottom models")
    problem = tiling_problem(boxes) if whole or not any(box.empty for box in boxes) else _misfit(boxes)
    if problem:
        raise ValueError(problem)
    return boxes


def _misfit(boxes: tuple[Box, ...]) -> str | None:
    if any(box.sample_shape != boxes[0].sample_shape for box in boxes):
        return "its slices are of samples of different shapes"
    return next((problem for box in boxes if (problem := box.problem())), None)


def _widths(found: Any, workers: int) -> tuple[int, ...]:
    if not isinstance(found, list) or len(found) != workers or not all(type(one) is int for one in found):
        raise ValueError(f"its widths are not {workers} whole numbers")
    if not all(0 < one <= FEATURES for one in found):
        raise ValueError(f"its widths are not from 1 to {FEATURES}")
    return tuple(found)


def _labels(found: Any, samples: int, classes: int, *, number: bool) -> tuple[float, ...] | None:
    """Return the labels that a party knew, None if it knew none."""
    if found is None:
        return None
    right = isinstance(found, list) and len(found) == samples
    if number:
        if not right or not all(type(label) is float and math.isfinite(label) for label in found):
            raise ValueError(f"its labels are not {samples} numbers")
        return tuple(found)
    if not right or not all(type(label) is int and 0 <= label < classes for label in found):
        raise ValueError(f"its labels are not {samples} numbers below {classes}")
    return tuple(found)


def write_held(folder: Path, setting: Setting) -> None:
    """Write what the party holds itself; the coordinator holds nothing."""
    held = {f"x.{worker}": part.contiguous() for worker, part in setting.held.slices.items()}
    if setting.held.auxiliary is not None:
        held[_AUXILIARY] = setting.held.auxiliary.contiguous()
    if held:
        write = partial(write_tensors, tensors=held, about={}, checked=True)
        write_atomically(folder / _HELD, write, durably=False, mode=PRIVATE)


def read_held(folder: Path, setting: Setting) -> Setting:
    """Return a setting with what the party held itself."""
    worker = setting.seats[0].worker
    if worker is None:
        return setting
    expected = {}
    if setting.topology.holds_features(worker):
        expected[f"x.{worker}"] = torch.empty((setting.samples, *setting.boxes[worker].shape), device="meta")
    if setting.auxiliary:
        whole = (setting.auxiliary, *setting.boxes[0].sample_shape)
        expected[_AUXILIARY] = torch.empty(whole, device="meta")
    if not expected:
        return setting
    if not (folder / _HELD).exists():
        raise DamagedError(f"{folder} lacks {_HELD}, what the party that wrote it holds itself")
    most = 4 * sum(one.nbytes for one in expected.values()) + (1 << 16)
    found = read_tensors(folder / _HELD, checked=True, most=most)[0]
    check_tensors(folder / _HELD, found, expected)
    own = {worker: found[f"x.{worker}"]} if f"x.{worker}" in found else {}
    return replace(setting, held=Held(own, found.get(_AUXILIARY)))
