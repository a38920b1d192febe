"""A data set: whole samples with labels, in a fixed order."""

import torch
from sklearn.datasets import make_moons

from vfl.datasets import Data, DataSet


class Moons(DataSet):
    """Scikit-learn's two moons: points in the plane, one class inside the bend of the other (no paper)."""

    def load(self) -> Data:
        """Return 1,000 points, or the first so many."""
        x, y = make_moons(1000, noise=0.1, random_state=0)
        return self._data("table", (torch.tensor(x, dtype=torch.float32), torch.tensor(y)))
