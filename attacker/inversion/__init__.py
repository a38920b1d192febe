"""Step III: from the representation that flows into a layer back to the data, for any differentiable bottom model."""

from attacker.inversion.invert import LATE, Inversion, Wanted, invert, invert_together
from attacker.inversion.values import InversionOptions

__all__ = ["LATE", "Inversion", "InversionOptions", "Wanted", "invert", "invert_together"]
