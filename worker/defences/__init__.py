"""Defences: each turns a worker's gradients into what is uploaded."""

from vfl.observation import Tensors
from vfl.registry import Plugin, Registry


class Defence(Plugin):
    """A defence plug-in: its fields are its options."""

    def apply(self, gradients: Tensors) -> Tensors:
        """Return what is uploaded in place of the true gradients."""
        raise NotImplementedError


defences: Registry[Defence] = Registry("defence", Defence, "cafe.defences", ["worker.defences.none"])
