"""Step III: from the representation that flows into a layer back to the data, for any differentiable bottom model."""

from attacker.inversion.invert import Inversion, invert
from attacker.inversion.values import InversionOptions

__all__ = ["Inversion", "InversionOptions", "invert"]
