"""Steps I and II at all workers, by the method that was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.exact.choice import Choice
from attacker.exact.collect import Rounds
from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.completion import ALL_OUTPUTS, MOST_TURNS, complete
from attacker.exact.steps12.residual import residuals
from attacker.exact.steps12.solve import CutOff, Solved, solve
from attacker.exact.workers.tails import bypassed, cut_off
from attacker.interface import Progress
from attacker.least_squares import leaks, representations
from vfl.device import one_thread
from vfl.errors import UserError
from vfl.maths.least_squares import pseudo_inverse
from vfl.observation import Setting


@dataclass(frozen=True)
class FirstSteps:
    """What steps I and II work on."""

    setting: Setting
    choice: Choice
    rounds: Rounds

    def solve(
        self, cells: Sequence[Cell], bottoms: Sequence[nn.Module], progress: Progress
    ) -> tuple[list[Solved], list[Tensor]]:
        """Return every worker's pairs of h and v, and how badly each explains the gradients (samples,)."""
        if self.choice.method == "least_squares":
            return self._least_squares(progress)
        if self.choice.method == "rank_one":
            return self._completed(progress)
        with one_thread():
            return self._subspaces(cells, bottoms, progress)

    def _subspaces(
        self, cells: Sequence[Cell], bottoms: Sequence[nn.Module], progress: Progress
    ) -> tuple[list[Solved], list[Tensor]]:
        solved, unexplained = [], []
        for worker, factors in enumerate(self.rounds.factors):
            batches = self.rounds.batches
            blocked = self._blocked(worker, bottoms[worker])
            own = solve(cells, batches, factors, self.setting.samples, cut_off=blocked)
            solved.append(own)
            unexplained.append(residuals(batches, factors, own.h, own.v))
            progress("steps I and II", worker + 1, self.setting.workers)
        return solved, unexplained

    def _completed(self, progress: Progress) -> tuple[list[Solved], list[Tensor]]:
        found = []
        workers = self.setting.workers
        for worker, (sketch, rounds) in enumerate(zip(self.rounds.sketches, self.rounds.sketched, strict=True)):
            layer = self.choice.layers[worker]
            gradients = torch.stack([torch.cat([weight, (sketch @ bias)[:, None]], 1) for bias, weight in rounds])

            def report(turn: int, worker: int = worker) -> None:
                progress("steps I and II", worker * MOST_TURNS + turn, workers * MOST_TURNS)

            whole = layer.outputs <= ALL_OUTPUTS
            found.append(complete(self.rounds.batches, self.setting.samples, gradients, whole=whole, progress=report))
        return [solved for solved, _ in found], [residual for _, residual in found]

    def _least_squares(self, progress: Progress) -> tuple[list[Solved], list[Tensor]]:
        inverse, rank = pseudo_inverse(self.rounds.batches, self.setting.samples)
        if rank < self.setting.samples:
            raise UserError(
                f"attack exact by least squares: the {len(self.rounds.batches)} rounds determine {rank} of "
                f"{self.setting.samples} samples; more rounds are needed"
            )
        solved, unexplained = [], []
        for worker, (sketch, kept) in enumerate(zip(self.rounds.sketches, self.rounds.sketched, strict=True)):
            bias = torch.stack([part for part, _ in kept])
            weight = torch.stack([product for _, product in kept])
            v = inverse @ bias
            h = representations(inverse, v, sketch, weight)
            h[~leaks(inverse, bias, v)] = torch.nan
            unexplained.append(_rank_one_residual(inverse, Solved(h, v), sketch, weight))
            solved.append(Solved(h, torch.where(h[:, :1].isfinite(), v, torch.nan)))
            progress("steps I and II", worker + 1, self.setting.workers)
        return solved, unexplained

    def _blocked(self, worker: int, model: nn.Module) -> CutOff | None:
        """Return what tells where a worker's v must be zero; None where that depends on data not known yet."""
        layer, shape = self.choice.layers[worker], self.setting.boxes[worker].shape
        model = model.double()
        if not bypassed(model, layer.name, shape):
            return lambda h: cut_off(model, layer.name, shape, h)
        if layer.sees_data and layer.bias:
            return lambda h: cut_off(model, layer.name, shape, h, x=h.reshape(-1, *shape))
        return None


def _rank_one_residual(inverse: Tensor, own: Solved, sketch: Tensor, weight: Tensor) -> Tensor:
    """Return how far each sample's gradient, taken out of the rounds' (rounds, few, inputs), is from its h v^T."""
    residual = torch.full((len(own.v),), torch.nan, dtype=torch.float64)
    for part in own.h.isfinite().all(dim=1).nonzero()[:, 0].split(64):  # all together are as large as the rounds
        taken = torch.einsum("nt,tqd->nqd", inverse[part], weight)
        rest = taken - torch.einsum("nq,nd->nqd", own.v[part] @ sketch.T, own.h[part])
        residual[part] = rest.flatten(1).norm(dim=1) / taken.flatten(1).norm(dim=1)
    return residual
