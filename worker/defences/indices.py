"""The batch indices as a defence: an attack that joins rounds needs to know which samples they share."""

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from vfl.errors import UserError
from vfl.observation import Tensors
from worker.defences import Defence, Plan, Played, defences
from worker.keys import Secret, read_key


@defences.register("indices")
class Indices(Defence):
    """Workers play other rows than the coordinator names, so that it cannot link rounds (a remark in Jin et al. 2021).

    Agreed among themselves: this project's reading of the remark that CAFE rests on aligned batches. All must have
    the same policy and key; that they computed on the same rows is checked between them in every round.
    """

    policy: Literal["permuted", "one_shot", "poisson"] = Field(
        "permuted",
        description="permuted: ids mean other rows in each epoch; one_shot: in each round; poisson: the workers draw",
    )
    key_file: Path | None = Field(
        None, description="a file with the workers' common secret; `cafe run` draws one for them if there is none"
    )

    needs_common = True

    def schedule(self, planned: str) -> str:
        """Return how the workers' own rows are drawn."""
        return {"permuted": planned, "one_shot": "uniform", "poisson": "poisson"}[self.policy]

    def start(self, plan: Plan) -> "_Mapped":
        """Begin with the workers' secret."""
        key = plan.common if self.key_file is None else Secret(read_key(self.key_file, "defence.key_file"))
        if key is None:
            raise UserError(
                "defence indices: these workers have no secret in common to draw the rows from; give all of them the "
                "same random file as defence.key_file (head -c 32 /dev/urandom > rows.key)"
            )
        return _Mapped(self.policy, plan, key)


class _Mapped:
    """Which rows the coordinator's indices stand for."""

    def __init__(self, policy: str, plan: Plan, key: Secret) -> None:
        self._policy, self._plan, self._key = policy, plan, key
        self._per_epoch = -(-plan.samples // plan.batch_size)
        self._permutation: tuple[int, Tensor] | None = None
        # A Poisson batch's length is random; divided by its mean the sum is an unbiased estimate, and so is training.
        self.mean_over = plan.batch_size if policy == "poisson" else None

    def rows(self, number: int, named: Tensor) -> Tensor:
        """Return the rows of a round; each epoch of a permuted schedule still holds every sample once."""
        if self._policy == "poisson":
            rate = min(1.0, self._plan.batch_size / self._plan.samples)
            drawn = self._key.draws("poisson", number).uniform((self._plan.samples,))
            return torch.nonzero(drawn < rate).flatten()
        turn = number if self._policy == "one_shot" else (number - 1) // self._per_epoch
        if self._permutation is None or self._permutation[0] != turn:
            self._permutation = (turn, self._key.draws(self._policy, turn).permutation(self._plan.samples))
        return self._permutation[1][named]

    def apply(self, gradients: Tensors, played: Played) -> Tensors:  # noqa: ARG002
        return gradients

    def report(self) -> dict[str, Any]:
        return {"policy": self._policy}
