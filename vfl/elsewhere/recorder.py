"""The recorder: a context manager around somebody's own training loop that writes what reaches the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vfl.config import RunConfig, parse_config
from vfl.elsewhere.networks import describe
from vfl.errors import UserError
from vfl.files.archive import save_arrays
from vfl.folder.transcript import TranscriptWriter
from vfl.models.whole import first_model
from vfl.observation import ModelTensors, Observation, Setting, Tensors
from vfl.observation.setting import UNKNOWN
from vfl.partition import partition

Gradients = Sequence[Mapping[str, Tensor]]
"""By party: the gradient of each parameter of its network, under the parameter's name."""


@dataclass(frozen=True)
class Recorded:
    """What is said of the training before it begins."""

    sample_shape: tuple[int, ...]
    """Of a whole sample: (columns,) of a table, (channels, height, width) of an image."""
    classes: int
    """How many there are; 1 where a number is predicted."""
    samples: int
    """How many different samples there are."""
    slices: Sequence[str] | None = None
    """Which part of a sample each party holds, as `federation.slices` has it; even parts without."""
    unknown: Sequence[str] = ()
    """What the server does not know: "indices", "parameters", "batch_size"."""
    batch_size: int | None = None
    """The largest batch; without it that of the first round. At most so many, if its size is unknown."""
    model: Mapping[str, Any] | None = None
    """Instead of a description: the config's `model` section, which names functions that build the networks."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """The config's `training` section: the optimiser and its rate, and the loss if it is not cross-entropy."""
    truth: tuple[Any, Any] | None = None
    """All samples as the network sees them, and their labels: kept apart from the transcript, for scores alone."""
    columns: Sequence[str] | None = None
    """The names of a table's columns, with the truth."""
    units: tuple[Any, Any] | None = None
    """A table's mean and deviation of each column, with the truth: value = seen * deviation + mean in your units."""


class Recorder:
    """Writes each round as it comes; the transcript is whole whenever the program ends."""

    def __init__(self, folder: Path, bottoms: Sequence[nn.Module], top: nn.Module | None, recorded: Recorded) -> None:
        """Look at the networks: one for each party with features, and the label holder's on top of them."""
        self._known, self._modules = recorded, [*bottoms]
        self._top = top
        self.folder = folder
        self.rounds = 0
        self.bytes = 0
        """Of gradients and parameters that were written."""
        odd = [name for name in recorded.unknown if name not in UNKNOWN]
        if odd or ("batch_size" in recorded.unknown and "indices" not in recorded.unknown):
            said = odd[0] if odd else "batch_size alone, though indices tell it"
            raise UserError(f"vfl.record: unknown can name {', '.join(UNKNOWN)}, and names {said}")
        self._boxes = partition(tuple(recorded.sample_shape), len(bottoms), recorded.slices)
        self._model = dict(recorded.model) if recorded.model is not None else self._described()
        self._size = recorded.batch_size and min(recorded.batch_size, recorded.samples)
        self._batches: list[Tensor] = []
        self._versions = self._written = 0
        self._last: list[Tensors] = []
        self._writer: TranscriptWriter | None = None
        self._data = self._written_truth()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._writer is not None:
            self._begin()  # what is known only now: whether parameters moved, and how batches were drawn

    @property
    def transcript(self) -> Path:
        """Return the folder that `cafe attack` takes."""
        return self.folder / "transcript"

    def round(
        self,
        indices: Sequence[int] | Tensor | None = None,
        *,
        gradients: Gradients | None = None,
        top: Mapping[str, Tensor] | None = None,
        size: int | None = None,
    ) -> None:
        """Write a round, after `backward` and before the optimiser's step.

        `indices` are the batch's samples; where the server does not know them, `size` is how many there were. Without
        `gradients` (and `top`) those in the networks' `.grad` are written: give what is really uploaded if that is
        not the same, as where it is clipped, compressed or has noise.
        """
        batch = self._batch(indices, size)
        bottoms = gradients if gradients is not None else [_gradients(one) for one in self._modules]
        above = top if top is not None else ({} if self._top is None else _gradients(self._top))
        uploaded = ModelTensors(tuple(map(_plain, bottoms)), _plain(above))
        parameters = self._parameters()
        if self._writer is None:
            self._begin()
            self._check(uploaded)
        assert self._writer is not None
        self.rounds += 1
        self._batches.append(batch)
        version = max(self._versions, 1)
        new = self._written != version
        self._writer.observe(Observation(self.rounds, batch, version, parameters, uploaded))
        self._written = version
        self.bytes += uploaded.nbytes + (parameters.nbytes if new else 0)

    def _batch(self, indices: Sequence[int] | Tensor | None, size: int | None) -> Tensor:
        known, hidden, number = self._known, "indices" in self._known.unknown, self.rounds + 1
        if (indices is None) != hidden:
            tell = "leave them out" if hidden else "give them, or say unknown=('indices',)"
            with_or_not = "without" if indices is None else "with"
            raise UserError(f"vfl.record: round {number} comes {with_or_not} indices: {tell}")
        if indices is None:
            count = known.batch_size if "batch_size" in known.unknown else size
            if count is None:
                needs = "batch_size, the most that a batch may have" if "batch_size" in known.unknown else "size"
                raise UserError(f"vfl.record: round {number} has no indices: give {needs}")
            batch = torch.arange(count)
        else:
            batch = torch.as_tensor(indices, dtype=torch.int64).detach().cpu().flatten()
        self._size = self._size or len(batch)
        if not 0 < len(batch) <= min(self._size, known.samples) or len(batch.unique()) < len(batch):
            most = f"the largest batch has {min(self._size, known.samples)}, each once"
            raise UserError(f"vfl.record: round {number} has {len(batch)} samples; {most}")
        if not 0 <= int(batch.min()) <= int(batch.max()) < known.samples:
            raise UserError(f"vfl.record: round {number} names samples beyond the {known.samples} that there are")
        return batch

    def _parameters(self) -> ModelTensors:
        """Return the parameters in force; a new version of them if they moved since the round before."""
        parts = [*self._modules, *([] if self._top is None else [self._top])]
        if "parameters" in self._known.unknown:
            return ModelTensors(({},) * len(self._modules), {})
        now = [_plain(dict(one.named_parameters())) for one in parts]
        if not self._last or any(
            not torch.equal(tensor, before[name])
            for own, before in zip(now, self._last, strict=True)
            for name, tensor in own.items()
        ):
            self._versions += 1
            self._last = [{name: tensor.clone() for name, tensor in own.items()} for own in now]
        count = len(self._modules)
        return ModelTensors(tuple(self._last[:count]), self._last[count] if self._top is not None else {})

    def _described(self) -> dict[str, Any]:
        """Return the config's model section, from the networks themselves."""
        if self._top is None:
            raise UserError("vfl.record: give top, the network behind the parties' outputs (its last layer, at least)")
        described = [describe(one, f"vfl.record: bottoms[{party}]") for party, one in enumerate(self._modules)]
        first, *others = ({"name": "layers", "layers": layers} for layers in described)
        bottoms = dict(enumerate(others, start=1))
        return {
            **first,
            "bottoms": bottoms,
            "top": {"name": "layers", "layers": describe(self._top, "vfl.record: top")},
        }

    def _config(self) -> RunConfig:
        known = self._known
        moved = self._versions > 1 and not known.training.get("lr")
        return parse_config(
            {
                "data": self._data,
                "federation": {
                    "workers": len(self._modules),
                    "batch_size": self._size,
                    "rounds": max(self.rounds, 1),
                    "schedule": self._schedule(),
                    "slices": None if known.slices is None else [*known.slices],
                },
                "model": self._model,
                "training": {**known.training, **({"lr": MOVED} if moved else {})},
                "transcript": True,
            },
            "vfl.record",
        )

    def _setting(self) -> Setting:
        known, config = self._known, self._config()
        setting = Setting.of(config, self._boxes, known.classes, known.samples)
        if problem := setting.loss.problem(known.classes):
            raise UserError(f"vfl.record: {problem}")
        return replace(setting, unknown=frozenset(known.unknown))

    def _begin(self) -> None:
        """Write what is known of the run; the rounds that are there stay."""
        self._writer = TranscriptWriter(self.transcript, self._config(), self._setting())

    def _schedule(self) -> str:
        """Return `epochs` if every sample came once before any came again, for as long as it went."""
        if "indices" in self._known.unknown or not self._batches:
            return "epochs"
        per_epoch = -(-self._known.samples // (self._size or 1))
        epochs = [self._batches[at : at + per_epoch] for at in range(0, len(self._batches), per_epoch)]
        once = all(len(together) == len(together.unique()) for epoch in epochs if len(together := torch.cat(epoch)))
        return "epochs" if once else "uniform"

    def _check(self, uploaded: ModelTensors) -> None:
        """Refuse gradients that are not of these networks, before the first round is written."""
        model = first_model(self._setting())
        for called, found, network in zip(
            [*(f"bottoms[{party}]" for party in range(len(self._modules))), "top"],
            (*uploaded.bottoms, uploaded.top),
            (*model.bottoms, model.top),
            strict=True,
        ):
            expected = {name: tuple(one.shape) for name, one in network.named_parameters()}
            here = {name: tuple(one.shape) for name, one in found.items()}
            if here != expected:
                odd = next(name for name in {**expected, **here} if here.get(name) != expected.get(name))
                raise UserError(
                    f"vfl.record: {called} has for {odd} a gradient of shape {here.get(odd)}, its network "
                    f"{expected.get(odd)}"
                )

    def _written_truth(self) -> dict[str, Any]:
        """Keep the truth for the referee, apart from what an attack reads; return the config's data section."""
        known = self._known
        if known.truth is None:
            return {"name": "elsewhere"}
        x, y = (np.asarray(torch.as_tensor(one).detach().cpu()) for one in known.truth)
        if len(x) != known.samples or tuple(x.shape[1:]) != tuple(known.sample_shape) or y.shape != (len(x),):
            shape = (known.samples, *known.sample_shape)
            raise UserError(f"vfl.record: truth has samples of shape {x.shape} and labels {y.shape}, expected {shape}")
        labels = np.float32 if known.training.get("loss") == "squared" else np.int64
        arrays: dict[str, np.ndarray] = {"x": x.astype(np.float32), "y": y.astype(labels)}
        if known.columns is not None:
            arrays["columns"] = np.asarray(known.columns, dtype=str)
        if known.units is not None:
            arrays["mean"], arrays["deviation"] = (np.asarray(one, dtype=np.float64) for one in known.units)
        path = self.folder.absolute() / "truth.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_arrays(path, arrays)
        return {"name": "elsewhere", "path": str(path), "classes": known.classes}


MOVED = 1.0
"""Stands in a transcript's config for a learning rate that is not known, and is not 0."""


def _gradients(network: nn.Module) -> dict[str, Tensor]:
    """Return the gradients as `backward` has left them; a parameter that took no part has zeros."""
    return {
        name: torch.zeros_like(one) if one.grad is None else one.grad
        for name, one in network.named_parameters()
        if one.requires_grad
    }


def _plain(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return tensors as a file has them: float32 in this machine's memory."""
    return {name: one.detach().to("cpu", torch.float32).contiguous() for name, one in tensors.items()}
