"""Data sets that the paper and its successors use and that nothing downloads: NumPy archives below CAFE_DATA."""

from pathlib import Path

from vfl.datasets import datasets
from vfl.datasets.npz import Npz


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
