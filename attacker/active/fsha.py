"""`fsha`: a malicious label holder's answers drive the workers' outputs to where its decoder rebuilds slices."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import mse_loss

from attacker.interface import Attack, AttackPlugin, Lack, Progress, Proposal, Recovery, RefusalError, Setting, attacks
from attacker.outputs.networks import Critic, Decoder, beside, check_auxiliary, classes_of, priors
from vfl.device import one_thread
from vfl.errors import UserError
from vfl.models import build_bottom, output_width
from vfl.observation import LabelHolderObservation
from vfl.optimisers.training import LossName
from vfl.seats import SeatKind
from vfl.seeds import seeded

NAME = "fsha"
BATCH = 64
RATE = 0.001


@attacks.register(NAME)
class FSHA(AttackPlugin):
    """Feature-space hijacking (Pasquini et al. 2021): a malicious label holder trains the workers' bottom models.

    Of samples of the same kind (`auxiliary`) it learns a pilot and the way back from its outputs, and a critic that
    tells the pilot's outputs from a worker's. What it answers is the gradient by which the worker's come to pass for
    the pilot's. No pair of a worker's output and a known slice is used.
    """

    active: ClassVar[bool] = True
    seats: ClassVar[tuple[frozenset[SeatKind], ...]] = (frozenset({"label_holder"}),)
    losses: ClassVar[frozenset[LossName]] = frozenset({"cross_entropy", "binary", "squared"})
    weighs: ClassVar[bool] = True
    hidden: int = Field(256, ge=1, description="units of each hidden layer of decoder and critic")
    warm_up: int = Field(500, ge=0, description="steps of pilot and decoder before the first round")
    steps: int = Field(3, ge=1, description="of pilot, decoder and critic in each round")

    rank: int | None = Field(
        None, ge=1, description="so many dimensions its answers to a batch may span: told of a worker's check of that"
    )

    def start(self, setting: Setting) -> Attack:
        """Begin, if the workers' models move and samples of their kind are known."""
        check_auxiliary(NAME, setting)
        if setting.frozen:
            raise RefusalError(NAME, Lack("parameters that move as its answers say", "they never do (training.lr)"))
        return _Hijacking(self, setting)


class _Hijacking:
    def __init__(self, options: FSHA, setting: Setting) -> None:
        self._setting = setting
        self._sides: dict[int, _Side] | None = None
        self._options = options
        self._classes, self._beside = classes_of(setting), beside(setting)
        self._outputs: dict[int, Tensor] = {}
        """By worker the last outputs of all samples."""
        self._last: LabelHolderObservation | None = None
        self._rounds = 0

    def observe(self, observation: LabelHolderObservation) -> None:
        rows = observation.indices
        with seeded(self._setting.seed, NAME, observation.round), one_thread():
            for worker, side in self._others().items():
                sent = observation.outputs[worker]
                kept = self._outputs.setdefault(worker, torch.full((self._setting.samples, sent.shape[1]), torch.nan))
                kept[rows] = sent
                for _ in range(self._options.steps):
                    side.learn()
                    side.tell_apart(sent, self._beside[rows])
        self._last, self._rounds = observation, self._rounds + 1

    def propose(self, number: int) -> Proposal | None:
        last = self._last
        if last is None or last.round != number:
            return None
        answers = list(last.answers)
        with one_thread():
            for worker, side in self._others().items():
                answer = side.answer(last.outputs[worker], self._beside[last.indices])
                answers[worker] = answer if self._options.rank is None else flattened(answer, self._options.rank)
        return Proposal(answers=tuple(answers))

    def recover(self, progress: Progress) -> Recovery:
        if self._last is None:
            raise UserError("the label holder has seen no output yet: it takes one round at the least")
        setting, whole = self._setting, self._setting.held.auxiliary
        assert whole is not None
        slices, notes = [], []
        for worker, box in enumerate(setting.boxes):
            progress("outputs", worker, len(setting.boxes))
            if worker in setting.held.slices:
                slices.append(setting.held.slices[worker].float())
                continue
            side = self._others()[worker]
            found = side.decoder.rebuild(self._outputs[worker], self._classes)
            error, mean = _errors(found[: len(whole)], box.cut(whole).float())
            notes.append(
                f"Worker {worker}: the slices of known samples, rebuilt from what the worker sent of them, have a mean "
                f"squared error of {error:.3g} (of what the attack's own pilot sends {side.error:.3g}); guessing their "
                f"mean {mean:.3g}."
            )
            found[: len(whole)] = box.cut(whole)
            slices.append(found)
        note = f"The malicious label holder answered what its attack chose in {self._rounds} rounds."
        used = ("indices", "outputs", "labels", f"{len(whole)} samples known whole", "answers of its own choosing")
        told = tuple(range(len(whole)))
        return Recovery(slices=tuple(slices), told=told, used=(*used, *priors(setting)), notes=(note, *notes))

    def _others(self) -> "dict[int, _Side]":
        """Return what is learned of each other worker, begun when the first outputs are seen."""
        if self._sides is None:
            setting, whole = self._setting, self._setting.held.auxiliary
            if whole is None:
                raise UserError(f"attack.name: {NAME} needs the auxiliary samples themselves, and has got none")
            self._sides = {}
            for worker, box in enumerate(setting.boxes):
                if worker not in setting.held.slices:
                    with seeded(setting.seed, f"{NAME} at worker", worker), one_thread():
                        known = (self._classes[: len(whole)], self._beside[: len(whole)])
                        self._sides[worker] = _Side(self._options, setting, worker, x=box.cut(whole), known=known)
        return self._sides


class _Side:
    """What the attack has of one worker: a pilot of its bottom model, a decoder behind it, and a critic."""

    def __init__(
        self, options: FSHA, setting: Setting, worker: int, *, x: Tensor, known: tuple[Tensor, Tensor]
    ) -> None:
        self._x, (self._known, self._beside) = x.float(), known
        shape = setting.boxes[worker].shape
        self._pilot = build_bottom(setting.model, shape, setting.seed, worker)
        width = output_width(self._pilot, shape)
        self.decoder = Decoder(
            width + known[0].shape[1], shape, hidden=options.hidden, images=len(setting.boxes[0].sample_shape) > 1
        )
        self._critic = Critic(width + known[1].shape[1], options.hidden)
        self._ways = torch.optim.Adam([*self._pilot.parameters(), *self.decoder.parameters()], lr=RATE)
        self._judging = torch.optim.Adam(self._critic.parameters(), lr=RATE)
        for _ in range(options.warm_up):
            self.learn()

    def learn(self) -> None:
        """Let pilot and decoder learn to rebuild known slices."""
        some = torch.randint(len(self._x), (BATCH,))
        loss = mse_loss(self.decoder(self._pilot(self._x[some]), self._known[some]), self._x[some])
        self._ways.zero_grad()
        loss.backward()
        self._ways.step()

    def tell_apart(self, sent: Tensor, known: Tensor) -> None:
        """Let the critic learn to tell the pilot's outputs from what the worker sent."""
        some = torch.randint(len(self._x), (BATCH,))
        with torch.no_grad():
            own = self._pilot(self._x[some])
        loss = self._critic.loss((own, self._beside[some]), (sent, known))
        self._judging.zero_grad()
        loss.backward()
        self._judging.step()

    def answer(self, sent: Tensor, known: Tensor) -> Tensor:
        """Return the gradient by which what the worker sent would pass for the pilot's."""
        z = sent.clone().requires_grad_()
        (found,) = torch.autograd.grad(self._critic.fooled(z, known), z)
        return found

    @property
    def error(self) -> float:
        """Return the mean squared error of known slices that are rebuilt from the pilot's outputs."""
        with torch.no_grad():
            return float(mse_loss(self.decoder.rebuild(self._pilot(self._x), self._known), self._x))


def flattened(answer: Tensor, rank: int) -> Tensor:
    """Return the nearest answers that span no more dimensions than given."""
    left, values, right = torch.linalg.svd(answer.double(), full_matrices=False)
    flat: Tensor = (left[:, :rank] * values[:rank]) @ right[:rank]
    return flat.float()


def _errors(found: Tensor, truth: Tensor) -> tuple[float, float]:
    """Return the mean squared errors of slices and of their mean."""
    there = found.flatten(1).isfinite().all(1)
    return float(mse_loss(found[there], truth[there])), float(truth.var(0, unbiased=False).mean())
