"""`rgap`: one sample's gradients inverted layer by layer from the output to the input, each by linear equations."""

import math
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from attacker.disaggregate import Collector, Problem
from attacker.interface import Attack, AttackPlugin, Progress, Recovery, attacks
from attacker.refusal import Lack, RefusalError
from attacker.rgap.chain import Step, chain
from attacker.rgap.recursion import LacksRankError, NothingLeakedError, Point, go_back
from vfl.device import one_thread
from vfl.errors import UserError
from vfl.models.whole import first_model
from vfl.observation import Observation, Setting


@attacks.register("rgap")
class RGap(AttackPlugin):
    """Zhu and Blaschko 2021 (R-GAP: Recursive Gradient Attack on Privacy), a closed form.

    The top model's bias gradient is p - y. From there every layer's input follows from its output (weight constraints,
    W x + b = z, where the activation can be inverted) and from its gradient (gradient constraints, both linear in x).
    A fully connected layer's gradient alone determines its input; a convolution needs both kinds together.

    Needs: models that are chains of nn.Linear, nn.Conv2d, ReLU, LeakyReLU, Sigmoid, Tanh and Flatten (no pooling,
    no branches), a bias in the last layer of the top model, and at each convolution equations of full rank. Uses the
    parameters of the round, which may move. It is made for batches of one sample; from a larger batch it returns one
    combination of the samples for all of them: exact (and their weights sum to one) where a fully connected layer sees
    the data, a rough estimate behind convolutions. With `disaggregate` every sample comes alone.
    """

    disaggregate: bool = Field(False, description="take batch gradients apart into samples' own first (frozen, rounds)")
    rounds: int | None = Field(None, ge=1, description="batches to attack at most; by default those of one epoch")
    samples: int | None = Field(None, ge=1, description="samples to attack at most, the first, with disaggregate")

    def start(self, setting: Setting) -> Attack:
        """Begin, unless a layer cannot be inverted."""
        return RGapAttack(setting, self)


MOST = 6144
"""Inputs of a convolution at most: its equations are a dense system."""
SOLVABLE = (
    f"convolutions with at least as many equations (outputs and gradients) as inputs, and at most {MOST} of those"
)
NOISE = 0.5
"""With more of a single sample's gradients unexplained its slice is lost: the gradients were rounding noise."""


class RGapAttack:
    """Collects batches and inverts them."""

    def __init__(self, setting: Setting, options: RGap) -> None:
        self._setting = setting
        model = first_model(setting)
        self._bottoms, self._top, self._widths = list(model.bottoms), model.top, model.widths
        self._chains = [
            chain(bottom, box.shape, f"the model of worker {m}")
            for m, (bottom, box) in enumerate(zip(self._bottoms, setting.boxes, strict=True))
        ]
        self._top_chain = chain(self._top, (sum(self._widths),), "the top model")
        self._check()
        apart, rounds, samples = options.disaggregate, options.rounds, options.samples
        self._collector = Collector(setting, apart, rounds, attack="rgap", samples=samples)

    def observe(self, observation: Observation) -> None:
        """Keep the round."""
        self._collector.observe(observation)

    def recover(self, progress: Progress) -> Recovery:
        """Invert batch by batch."""
        setting, problems = self._setting, self._collector.problems(progress)
        slices = [torch.full((setting.samples, *box.shape), torch.nan) for box in setting.boxes]
        labels = torch.full((setting.samples,), -1)
        lacking: list[str] = []
        combined = silent = given_up = 0
        for number, problem in enumerate(problems):
            single, lacked = len(problem.indices) == 1, len(lacking)
            with one_thread():
                found, u = self._invert(problem, lacking)
                for worker, (x, k) in found.items():
                    if not single or self._unexplained(problem, worker, x, k) < NOISE:
                        slices[worker][problem.indices] = x.float()
                    else:
                        given_up += 1
                silent += len(problem.indices) * (setting.workers - len(found) - len(lacking) + lacked)
            if single and bool((u != 0).any()):
                labels[problem.indices] = u.argmin()
            combined += 0 if single else len(problem.indices)
            progress("R-GAP", number + 1, len(problems))
        known = [bool(part.flatten(1).isfinite().all(dim=1).any()) for part in slices]
        if lacking and not any(known):
            raise UserError(f"attack rgap: {lacking[0]}")
        return Recovery(
            slices=tuple(slices),
            labels=labels,
            rounds=tuple(self._collector.rounds),
            used=("indices", "parameters", "gradients"),
            notes=tuple(self._notes(problems, lacking, combined=combined, silent=silent, given_up=given_up)),
        )

    def _invert(self, problem: Problem, lacking: list[str]) -> tuple[dict[int, tuple[Tensor, Tensor]], Tensor]:
        """Return p - y, and slices with the gradient k of what the worker sent; note in `lacking` why some lack."""
        u = problem.gradients.top[self._top_chain[-1].parameter("bias")].double()
        found: dict[int, tuple[Tensor, Tensor]] = {}
        try:
            start = go_back(self._top_chain, problem.parameters.top, problem.gradients.top, Point(None, None, u))
        except NothingLeakedError:
            return found, u
        assert start.value is not None
        parts = zip(start.value.split(self._widths), start.k.split(self._widths), strict=True)
        for worker, (value, k) in enumerate(parts):
            parameters, gradients = problem.parameters.bottoms[worker], problem.gradients.bottoms[worker]
            try:
                x = go_back(self._chains[worker], parameters, gradients, Point(value, None, k)).value
            except LacksRankError as error:
                lacking.append(f"worker {worker}'s {error}")
            except NothingLeakedError:
                continue
            else:
                assert x is not None
                found[worker] = (x, k)
        return found, u

    def _unexplained(self, problem: Problem, worker: int, x: Tensor, k: Tensor) -> float:
        """Return the share of a worker's gradients that its slice, run forward and k back, leaves unexplained."""
        given, seen = problem.parameters.bottoms[worker], problem.gradients.bottoms[worker]
        leaves = {name: tensor.double().requires_grad_() for name, tensor in given.items()}
        z = functional_call(self._bottoms[worker].double(), leaves, (x[None],))
        expected = torch.autograd.grad(z, list(leaves.values()), k[None])
        away = sum(float((seen[name] - own).square().sum()) for name, own in zip(leaves, expected, strict=True))
        total = sum(float(seen[name].double().square().sum()) for name in leaves)
        return math.sqrt(away / total) if total > 0 else math.nan

    def _check(self) -> None:
        """Refuse what no data could make invertible."""
        last = self._top_chain[-1] if self._top_chain else None
        if last is None or not isinstance(last.layer, nn.Linear) or last.layer._parameters.get("bias") is None:
            raise RefusalError(
                "rgap", Lack("a top model that ends with a fully connected layer with a bias", "it does not")
            )
        for worker, steps in enumerate(self._chains):
            for step in steps:
                if isinstance(step.layer, nn.Conv2d) and (problem := _too_few_or_many(step)):
                    raise RefusalError("rgap", Lack(SOLVABLE, f"layer {step.name} of worker {worker} {problem}"))

    def _notes(
        self, problems: Sequence[Problem], lacking: list[str], *, combined: int, silent: int, given_up: int
    ) -> list[str]:
        notes = []
        left_out = self._setting.samples - len({row for problem in problems for row in problem.indices.tolist()})
        if combined:
            notes.append(
                f"{combined} samples came in batches of several: they all get one combination of their batch's samples."
            )
        if lacking:
            notes.append(f"{len(lacking)} slices are not determined; for one, {lacking[0]}.")
        if silent:
            notes.append(f"{silent} slices leaked nothing: their gradients are zero.")
        if given_up:
            notes.append(f"{given_up} slices were given up: what was found does not explain their gradients.")
        if left_out:
            notes.append(f"{left_out} samples were in no batch that was attacked.")
        return notes


def _too_few_or_many(step: Step) -> str | None:
    """Return why a convolution's equations cannot be solved whatever the data, None if they may be."""
    assert isinstance(step.layer, nn.Conv2d)
    unknowns = math.prod(step.inputs)
    if unknowns > MOST:
        return f"has {unknowns} inputs"
    with torch.no_grad():
        outputs = step.layer.float()(torch.zeros(1, *step.inputs)).numel()
    equations = outputs + step.layer.weight.numel()
    if equations < unknowns:
        return f"has {outputs} outputs and {step.layer.weight.numel()} gradients for {unknowns} inputs"
    return None
