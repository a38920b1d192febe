"""A circuit breaker: the worker watches its own leakage, and uploads nothing any more once it crosses a limit."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from vfl.maths.cone import given_away
from vfl.maths.least_squares import Gram, beyond, first_factor
from vfl.models.layers import FullyConnected, fully_connected, representation
from vfl.observation import BOTTOM, Tensors
from vfl.seeds import generator
from worker.defences import Defence, Plan, Played, WithheldError, defences


@defences.register("breaker")
class Breaker(Defence):
    """Runs steps I and II (Jin et al. 2021) on the worker's own uploads, and stops uploading when they succeed.

    Put it last in a chain, so that it sees what would really be uploaded. It looks ahead: a round that would bring the
    leak over the limit is not uploaded any more. What the coordinator does then is its `federation.when_withheld`. One
    gradient can be enough for an attack, so the first round may be the one that is withheld.
    """

    limit: float = Field(0.0, ge=0, lt=1, description="the share of the worker's samples that may leak")
    error: float = Field(0.1, gt=0, lt=1, description="a sample counts as leaked when its h is known this well")
    cell: int = Field(8, ge=1, description="samples that only come together count as parted if there are so few")

    keeps_count = True

    def start(self, plan: Plan) -> "_Breaker":
        """Begin to watch."""
        return _Breaker(self, plan)


class _Breaker:
    def __init__(self, options: Breaker, plan: Plan) -> None:
        self._options, self._plan = options, plan
        self._watch: Watch | None = None
        self._layers: list[FullyConnected] = []
        self._leaked = self._alone = 0.0
        self._last = 0
        self._newest: Tensors | None = None

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return the gradients, unless what they would add to earlier uploads leaks too much."""
        if played.number <= self._last:
            return gradients  # a round that is done again: the same numbers, so no second look
        if not self._layers:
            self._layers = fully_connected(played.model, played.x.shape[1:])
            if not self._layers or not self._layers[0].bias:
                raise WithheldError("its breaker finds no fully connected layer with a bias to watch")
        watch = self._watching(self._layers[0].inputs, self._layers[0].outputs)
        newest = self._add(watch, gradients, played)
        leaked, alone = watch.leaked(), len(newest["alone"])
        if leaked > self._options.limit:
            limit = f"its limit is {self._options.limit:.1%}"
            single = f" ({alone} of {len(played.rows)} from this gradient alone)" if alone else ""
            raise WithheldError(f"its breaker expects {leaked:.1%} of its samples to leak with it{single}, and {limit}")
        self._leaked, self._alone, self._last = leaked, watch.leaked_alone(), played.number
        self._newest = newest
        return gradients

    def counted(self) -> Tensors | None:
        """Return what the newest upload added, once."""
        newest, self._newest = self._newest, None
        return newest

    def count_again(self, number: int, counted: Tensors) -> None:
        """Take in an upload of an earlier process."""
        inputs, outputs = counted["sizes"].tolist()
        watch = self._watching(inputs, outputs)
        watch.again(counted)
        self._leaked, self._alone, self._last = watch.leaked(), watch.leaked_alone(), number

    def _watching(self, inputs: int, outputs: int) -> "Watch":
        if self._watch is None:
            error, cell = self._options.error, self._options.cell
            self._watch = Watch(self._plan, inputs, outputs, error=error, cell=cell)
        return self._watch

    def _add(self, watch: "Watch", gradients: Tensors, played: Played) -> Tensors:
        """Watch one upload; return what it added, `alone` being the rows that it would give away by itself."""
        first = self._layers[0]
        added: dict[str, Tensor] = {"sizes": torch.tensor([first.inputs, first.outputs])}
        alone = torch.zeros(len(played.rows), dtype=torch.bool)
        for layer in self._layers:
            if len(alone) and bool(alone.all()):
                break
            with torch.no_grad():
                truth = representation(played.model, layer.name, played.x)
            weight = gradients[f"{BOTTOM}{layer.name}.weight"]
            if layer is first:
                added |= watch.add(played.rows, truth, weight, gradients[f"{BOTTOM}{layer.name}.bias"])
            if len(alone):
                alone |= given_away(weight, truth.flatten(1), self._options.error)
        added["alone"] = played.rows.cpu()[alone]
        watch.add_alone(added["alone"])
        return added

    def report(self) -> dict[str, Any]:
        """Return the shares of samples that leaked by the worker's own estimate, in all and by one gradient each."""
        return {"leaked": self._leaked, "leaked_by_one_gradient": self._alone, "limit": self._options.limit}


SKETCH = 16
"""Random combinations of a weight gradient's rows that are kept for least squares."""
ROOM = 4
"""Watched coordinates per sample of a batch: two batches must fit with room to spare."""
NOISE = 1e-6
"""Singular values below this share of the largest are the rounding of float32."""
SAME = 1e-7
"""How far a direction that all batches have may be from the square root of their number, as a singular value."""
BASES = 4
"""Batches of each sample whose subspaces are kept, the first ones."""


class Watch:
    """What steps I and II would have found in a worker's uploads so far, compared with the truth.

    The worker knows the input h of its first fully connected layer. Of that it watches some coordinates only, which is
    enough: subspaces that meet in R^d1 meet in a few hundred of its coordinates too, and errors are relative. Memory
    grows with the samples, not with the rounds.
    """

    def __init__(self, plan: Plan, inputs: int, outputs: int, *, error: float, cell: int) -> None:
        self._plan, self._error, self._cell = plan, error, cell
        random = generator(0, "watched coordinates", plan.worker)
        count = min(inputs, max(ROOM * plan.batch_size, 32))
        self._coordinates = torch.randperm(inputs, generator=random)[:count]
        self._sketch = torch.randn(min(SKETCH, outputs), outputs, generator=random, dtype=torch.float64)
        samples = plan.samples
        self._truth = torch.zeros(samples, count, dtype=torch.float64)
        self._bases: list[Tensor] = []
        self._rounds: list[list[int]] = [[] for _ in range(samples)]
        # Normal equations of least squares: S^T S, and S^T times what each round showed of the first layer.
        self._gram = Gram(samples)
        self._right = torch.zeros(samples, outputs + len(self._sketch) * count, dtype=torch.float64)
        self._outputs = outputs
        self._leaked = torch.zeros(samples, dtype=torch.bool)
        self._alone = torch.zeros(samples, dtype=torch.bool)

    def add(self, rows: Tensor, truth: Tensor, weight: Tensor, bias: Tensor) -> Tensors:
        """Take in what would be uploaded for these rows, whose true h is known; return it as `again` takes it."""
        if not len(rows):
            return {}
        rows, shown = rows.cpu(), weight[:, self._coordinates.to(weight.device)].double().cpu()
        observed = torch.cat([bias.double().cpu(), (self._sketch @ shown).flatten()])
        added = {"rows": rows, "truth": truth[:, self._coordinates.to(truth.device)].cpu(), "observed": observed}
        if any(len(self._rounds[row]) < BASES for row in rows.tolist()):
            added["basis"] = _basis(shown, len(rows))
        before = self._leaked.clone()
        self.again(added)
        if "basis" in added:
            self._meet(rows)
        # A solution costs N^3: now and then is enough, as more rounds only sharpen it.
        if self._gram.rounds >= self._plan.samples and self._gram.rounds % max(1, self._plan.samples // 4) == 0:
            self._solve()
        return {**added, "leaked": torch.nonzero(self._leaked & ~before).flatten()}

    def again(self, added: Tensors) -> None:
        """Take in what `add` returned in an earlier process, with what it found then."""
        if "rows" in added:
            rows = added["rows"]
            self._truth[rows] = added["truth"].double()
            if "basis" in added:
                self._bases.append(added["basis"])
                for row in rows.tolist():
                    if len(self._rounds[row]) < BASES:
                        self._rounds[row].append(len(self._bases) - 1)
            self._gram.add(rows)
            self._right[rows] += 1 / len(rows) * added["observed"]
        for found, name in ((self._leaked, "leaked"), (self._alone, "alone")):
            if name in added:
                found[added[name]] = True

    def add_alone(self, rows: Tensor) -> None:
        """Take in which rows a single upload gives away."""
        self._alone[rows] = True

    def leaked(self) -> float:
        """Return the share of the samples whose h could be known by now."""
        return float((self._leaked | self._alone).double().mean())

    def leaked_alone(self) -> float:
        """Return the share of the samples that one gradient gave away."""
        return float(self._alone.double().mean())

    def _meet(self, rows: Tensor) -> None:
        """Intersect the subspaces of each sample's batches, as `exact` does; a first batch that is small is enough."""
        cells: dict[tuple[int, ...], list[int]] = {}
        for row in rows.tolist():
            cells.setdefault(tuple(self._rounds[row]), []).append(row)
        for rounds, members in cells.items():
            if len(members) > self._cell:
                continue
            stacked = torch.cat([self._bases[at] for at in rounds], dim=1)
            vectors, values, _ = torch.linalg.svd(stacked, full_matrices=False)
            # All that the batches have in common: where they have no room it is more than the samples they share, and
            # those few together count as known if they are among as few directions.
            common = max(len(members), int((values > len(rounds) ** 0.5 - SAME).sum()))
            if common > max(self._cell, len(members)):
                continue
            directions = vectors[:, :common]
            truth = self._truth[members]
            error = beyond(directions, truth).norm(dim=1) / truth.norm(dim=1).clamp_min(1e-300)
            self._leaked[members] |= error < self._error

    def _solve(self) -> None:
        """Least squares over all rounds: it averages over what a defence adds."""
        normal = self._gram.matrix
        ridge = 1e-9 * float(normal.diagonal().mean())
        solved = torch.linalg.solve(normal + ridge * torch.eye(len(normal), dtype=torch.float64), self._right)
        v, own = solved[:, : self._outputs], solved[:, self._outputs :]
        h = first_factor(own.reshape(len(own), len(self._sketch), -1), v @ self._sketch.T, floor=1e-300)
        error = (h - self._truth).norm(dim=1) / self._truth.norm(dim=1).clamp_min(1e-300)
        self._leaked |= error < self._error


def _basis(shown: Tensor, samples: int) -> Tensor:
    """Return an orthonormal basis of the subspace that a weight gradient's rows are in, of so many samples' h."""
    _, values, basis = torch.linalg.svd(shown, full_matrices=False)
    rank = int((values[:samples] > NOISE * values[0]).sum())  # beyond it vectors point where rounding says
    kept: Tensor = basis[:rank].T.contiguous()
    return kept
