"""Every sample of a batch from one gradient: the extreme rays of its cone."""

from attacker.exact.rays.batch import enough_zeros
from attacker.exact.rays.solve import Found, Known, samples_of

__all__ = ["Found", "Known", "enough_zeros", "samples_of"]
