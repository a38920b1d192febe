"""Data sets in NumPy archives: any file of the user's, and those that papers use and no program downloads."""

from pathlib import Path

from pydantic import Field, model_validator

from vfl.datasets import Data, Facts, datasets
from vfl.datasets.npz import Npz
from vfl.datasets.tables import TableSet
from vfl.datasets.tables.file import TableFile
from vfl.datasets.tables.formats import NpzFile
from vfl.datasets.tables.words import Name


@datasets.register("npz")
class Archive(TableSet):
    """Images or table rows in x_train, y_train (or x, y); with `label` a table whose columns are arrays by name."""

    label: Name = Field("", description="the column to predict; without it y_train or y holds the labels")

    @model_validator(mode="after")
    def _label_for_tables(self) -> "Archive":
        named = [key for key in ("files", "id", "missing", "missing_values") if key in self.model_fields_set]
        if named and not self.label:
            raise ValueError(f"{named[0]} is for tables whose columns are arrays: give label, the one to predict, too")
        return self

    def load(self) -> Data:
        """Read a table as CSV and Parquet are read, or arrays of fixed names."""
        return super().load() if self.label else self._arrays().load()

    def facts(self) -> Facts:
        """Read no more of images than their shapes."""
        return super().facts() if self.label else self._arrays().facts()

    def _arrays(self) -> Npz:
        return Npz.model_validate({key: getattr(self, key) for key in Npz.model_fields})

    def _open(self, path: Path, key: str) -> TableFile:
        return NpzFile(path, self.missing_values, key)


@datasets.register("linnaeus5")
class Linnaeus5(Npz):
    """Colour images of five classes (Chaladze and Kalatozishvili 2017), from linnaeus5.npz."""

    path: Path = Path("linnaeus5.npz")


@datasets.register("yale")
class Yale(Npz):
    """32x32 faces of 15 people (Georghiades et al. 1997), from yale32.npz."""

    path: Path = Path("yale32.npz")


@datasets.register("credit")
class Credit(Npz):
    """Table of credit card clients and who defaulted (Yeh and Lien 2009), from credit_default.npz."""

    path: Path = Path("credit_default.npz")
