"""Every sample of a batch from one gradient: the extreme rays of its cone."""

from attacker.exact.rays.solve import Found, Known, samples_of

__all__ = ["Found", "Known", "samples_of"]
