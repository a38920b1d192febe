"""Subspaces, and least squares over the same rounds where these leave something open: what explains more is kept."""

from dataclasses import replace

from attacker.exact.attack import ExactAttack, certified
from attacker.interface import Progress, Recovery
from vfl.errors import UserError
from vfl.observation import Observation


class Either:
    """Two attacks that see the same rounds."""

    def __init__(self, subspaces: ExactAttack, squares: ExactAttack) -> None:
        self._subspaces, self._squares = subspaces, squares

    def observe(self, observation: Observation) -> None:
        """Show both a round."""
        self._subspaces.observe(observation)
        self._squares.observe(observation)

    def recover(self, progress: Progress) -> Recovery:
        """Recover by subspaces; by least squares where that certifies more slices."""
        first = self._subspaces.recover(progress)
        assert first.certificates is not None
        before, slices = certified(first), first.certificates.numel()
        if before == slices:
            return first
        try:
            after = certified(self._squares.without_step_three().recover(progress))
        except UserError as error:  # a run that ended early
            return replace(first, notes=(*first.notes, f"By least squares nothing more: {error}."))
        if after <= before:
            note = f"Least squares was tried too: it certifies {after} of {slices} slices, subspaces {before}."
            return replace(first, notes=(*first.notes, note))
        second = self._squares.recover(progress)
        note = f"Subspaces were tried first: they certify {before} of {slices} slices, least squares {after}."
        return replace(second, notes=(second.notes[0], note, *second.notes[1:]))
