"""The config of a recorded run, from another user perhaps: what it names is only imported, fetched or called if the
user of this machine names it too.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_serializer, model_validator

from vfl.errors import UserError
from vfl.folder.schema import Measure, Part, Some, Word
from vfl.limits import plain


class Named(Part):
    """A plug-in's section of a config."""

    name: Word = None


class Federation(Part):
    """Who takes part."""

    workers: Annotated[int, Field(strict=True, ge=1, le=1024)]
    label_holder: Word = None
    label_holder_features: bool = True
    slices: Some[str] | None = None

    @property
    def holders(self) -> int:
        """Return how many workers hold features: a label holder without any is the last."""
        return self.workers - (not self.label_holder_features)

    @model_validator(mode="after")
    def _has_holders(self) -> Self:
        if not self.holders:
            raise ValueError("no worker holds features")
        if self.slices is not None and len(self.slices) != self.holders:
            raise ValueError(f"it has {len(self.slices)} slices for {self.holders} workers")
        return self


class EarlyStop(Part):
    """When training ends before the planned rounds."""

    patience: Word = None


class Training(Part):
    """How the parameters moved."""

    optimizer: str = "sgd"
    lr: Measure = None
    early_stop: EarlyStop | None = None


class RecordedConfig(Part):
    """A run's config, of the release that ran it: here is what is shown of it, and `whole` is all that it said."""

    data: Named | None = None
    model: Named | None = None
    attack: Named | None = None
    training: Training | None = None
    federation: Federation
    defence: Any = None
    _whole: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def whole(self) -> dict[str, Any]:
        """Return the config as it was written."""
        return self._whole

    @model_validator(mode="wrap")
    @classmethod
    def _keep_whole(cls, found: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(found)
        if isinstance(found, dict):
            made._whole = found
        return made

    @model_serializer
    def _as_written(self) -> dict[str, Any]:
        return self._whole


def refuse_imports(sections: Mapping[str, Any], said: Collection[str], source: Path) -> None:
    """End with a sentence where a recorded config names `package.module:attribute`, and the user has not."""
    for key, name in names_of(sections):
        if ":" in name and name not in said:
            trust = f"if you trust that code, say so: --set {key}={name}"
            raise UserError(f"{source}: the recorded run names code of its own to be imported, {key} {name}; {trust}")


def names_of(sections: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the plug-ins that a config's sections name, with the whole key of each."""
    yield from _values(sections, "name")


def refuse_addresses(sections: Mapping[str, Any], said: Collection[str], source: Path) -> None:
    """End with a sentence where a recorded config names a cluster to be called, and the user has not."""
    for key, address in _values(sections, "address"):
        if address not in said:
            raise UserError(
                f"{source}: the recorded run names a cluster to work on, {key} {plain(address)}; "
                f"if you trust it, say so (--set {key}={plain(address)}), or name the attack anew (--attack)"
            )


def without_download(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded data section that fetches nothing, whatever it says."""
    return {**data, "download": False} if data.get("download") else dict(data)


def _values(tree: Any, wanted: str, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield what a config's sections have under a key, however deep, with the whole key."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key == wanted and isinstance(value, str):
                yield f"{where}{key}", value
            else:
                yield from _values(value, wanted, f"{where}{key}.")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _values(value, wanted, f"{where}{index}.")
