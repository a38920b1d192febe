"""`sdar`: the label holder learns to simulate the workers' models, and the way back from them, without any pair."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

from attacker.interface import Attack, AttackPlugin, Progress, Recovery, Setting, attacks
from attacker.outputs.networks import Critic, Decoder, beside, check_auxiliary, classes_of, priors
from vfl.device import one_thread
from vfl.errors import UserError
from vfl.models import build_bottom, build_top, output_width
from vfl.observation import LabelHolderObservation, Tensors
from vfl.optimisers.training import LossName
from vfl.seats import SeatKind
from vfl.seeds import seeded

NAME = "sdar"
RATE = 0.001


@attacks.register(NAME)
class SDAR(AttackPlugin):
    """SDAR (Zhu et al. 2025, NDSS): simulators of the workers' models, adversarially regularised, and decoders.

    The label holder has samples of the same kind (`auxiliary`) and no parameter of another party. Simulators learn to
    serve its top model as the workers' models do, and to fool a critic that sees their outputs beside the workers';
    decoders learn to undo them, and to fool one that sees what they make of the workers' outputs beside slices.
    """

    seats: ClassVar[tuple[frozenset[SeatKind], ...]] = (frozenset({"label_holder"}),)
    losses: ClassVar[frozenset[LossName]] = frozenset({"cross_entropy", "binary", "squared"})
    weighs: ClassVar[bool] = True
    hidden: int = Field(256, ge=1, description="units of each hidden layer of decoders and critics")
    steps: int = Field(3, ge=1, description="of learning for each round")
    batch: int = Field(64, ge=2, description="auxiliary samples in a step")
    simulating: float = Field(0.1, ge=0, description="weight of fooling the critic of outputs")
    decoding: float = Field(0.001, ge=0, description="weight of fooling the critic of slices")

    def start(self, setting: Setting) -> Attack:
        """Begin, if samples of the same kind are known."""
        check_auxiliary(NAME, setting)
        return _Simulating(self, setting)


@dataclass(frozen=True)
class _Batch:
    """What is learned from in one step."""

    x: Tensor
    """Auxiliary samples, whole."""
    y: Tensor
    known: Tensor
    beside: Tensor
    sent: tuple[Tensor, ...]
    """What the workers sent of other samples in a round."""
    sent_known: Tensor
    sent_beside: Tensor


class _Simulating:
    def __init__(self, options: SDAR, setting: Setting) -> None:
        self._options, self._setting = options, setting
        self._rounds: list[LabelHolderObservation] = []

    def observe(self, observation: LabelHolderObservation) -> None:
        self._rounds.append(observation)

    def recover(self, progress: Progress) -> Recovery:
        setting, whole = self._setting, self._setting.held.auxiliary
        if not self._rounds:
            raise UserError("the label holder has seen no output yet: it takes one round at the least")
        if whole is None:
            raise UserError(f"attack.name: {NAME} needs the auxiliary samples themselves, and has got none")
        if not any(int((one.indices >= len(whole)).sum()) > 1 for one in self._rounds):
            raise UserError(
                f"attack.name: {NAME} has seen no two outputs of samples that it does not know: more rounds"
            )
        with seeded(setting.seed, NAME), one_thread():
            network = _Network(self._options, setting, self._rounds[0])
            for number, one in enumerate(self._rounds):
                progress("learning from the rounds", number, len(self._rounds))
                for batch in self._batches(one, whole.float()):
                    network.learn(batch, one)
            found, notes = self._rebuilt(network, whole.float())
        used = ("indices", "parameters", "outputs", "labels", f"{len(whole)} samples of the same kind")
        told = tuple(range(len(whole)))
        return Recovery(slices=found, told=told, used=(*used, *priors(setting)), notes=notes)

    def _batches(self, one: LabelHolderObservation, whole: Tensor) -> Iterator[_Batch]:
        """Yield what a round is learned from: no output of an auxiliary sample is among it."""
        setting = self._setting
        classes, told = classes_of(setting), beside(setting)
        labels = torch.tensor(setting.labels)
        others = one.indices >= len(whole)
        if int(others.sum()) < 2:
            return
        rows = one.indices[others]
        sent = tuple(output[others] for output in one.outputs)
        for _ in range(self._options.steps):
            some = torch.randint(len(whole), (self._options.batch,))
            yield _Batch(whole[some], labels[some], classes[some], told[some], sent, classes[rows], told[rows])

    def _rebuilt(self, network: "_Network", whole: Tensor) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
        setting, last = self._setting, self._last_outputs()
        classes = classes_of(setting)
        slices, notes = [], []
        for worker, box in enumerate(setting.boxes):
            if worker in setting.held.slices:
                slices.append(setting.held.slices[worker].float())
                continue
            found = network.sides[worker].decoder.rebuild(last[worker], classes)
            truth = box.cut(whole)
            notes.append(f"Worker {worker}: {_sentence(found[: len(whole)], truth, classes[: len(whole)])}")
            slices.append(torch.cat([truth, found[len(whole) :]]))
        return tuple(slices), tuple(notes)

    def _last_outputs(self) -> list[Tensor]:
        """Return every sample's last output of each worker; NaN where there was none."""
        found = [torch.full((self._setting.samples, one.shape[1]), torch.nan) for one in self._rounds[0].outputs]
        for one in self._rounds:
            for kept, sent in zip(found, one.outputs, strict=True):
                kept[one.indices] = sent
        return found


class _Side:
    """What the attack has of one worker: a simulator, a decoder, and a critic of each."""

    def __init__(self, options: SDAR, setting: Setting, worker: int, widths: tuple[int, int]) -> None:
        shape, (known, told) = setting.boxes[worker].shape, widths
        self.simulator = build_bottom(setting.model, shape, setting.seed, worker)
        width = output_width(self.simulator, shape)
        self.decoder = Decoder(
            width + known, shape, hidden=options.hidden, images=len(setting.boxes[0].sample_shape) > 1
        )
        features = int(torch.tensor(shape).prod())
        self.of_outputs, self.of_slices = (Critic(size + told, options.hidden) for size in (width, features))


class _Network:
    """All that is learned, and how."""

    def __init__(self, options: SDAR, setting: Setting, first: LabelHolderObservation) -> None:
        self._options, self._setting = options, setting
        widths = (classes_of(setting).shape[1], beside(setting).shape[1])
        self.sides = {
            worker: _Side(options, setting, worker, widths)
            for worker in range(len(setting.boxes))
            if worker not in setting.held.slices
        }
        self._own = {
            worker: build_bottom(setting.model, setting.boxes[worker].shape, setting.seed, worker)
            for worker in setting.held.slices
        }
        self._top = build_top(setting.model, [one.shape[1] for one in first.outputs], setting.outputs, setting.seed)
        sides = self.sides.values()
        self._simulating = _adam([one.simulator for one in sides])
        self._decoding = _adam([one.decoder for one in sides])
        self._judging = _adam([critic for one in sides for critic in (one.of_outputs, one.of_slices)])

    def learn(self, batch: _Batch, one: LabelHolderObservation) -> None:
        """Take a step with everything."""
        parts = [box.cut(batch.x) for box in self._setting.boxes]
        made = [self._output(worker, part, one.parameters) for worker, part in enumerate(parts)]
        said = functional_call(self._top, dict(one.top), (torch.cat(made, dim=1),))
        loss = self._setting.loss
        serving = loss.total(said, batch.y) / loss.divisor(batch.y)
        if self._setting.frozen:  # a top model that learns nothing is served by nobody
            serving = torch.zeros(())
        fooling = [side.of_outputs.fooled(made[worker], batch.beside) for worker, side in self.sides.items()]
        _step(self._simulating, serving + self._options.simulating * torch.stack(fooling).sum())
        undoing, rebuilt = [], {}
        for worker, side in self.sides.items():
            back = side.decoder(made[worker].detach(), batch.known)
            rebuilt[worker] = side.decoder(batch.sent[worker], batch.sent_known)
            fooled = side.of_slices.fooled(rebuilt[worker], batch.sent_beside)
            undoing.append(mse_loss(back, parts[worker]) + self._options.decoding * fooled)
        _step(self._decoding, torch.stack(undoing).sum())
        judged = []
        for worker, side in self.sides.items():
            theirs = (batch.sent[worker], batch.sent_beside)
            judged.append(side.of_outputs.loss(theirs, (made[worker].detach(), batch.beside)))
            slices = (parts[worker], batch.beside)
            judged.append(side.of_slices.loss(slices, (rebuilt[worker].detach(), batch.sent_beside)))
        _step(self._judging, torch.stack(judged).sum())

    def _output(self, worker: int, part: Tensor, own: Tensors) -> Tensor:
        """Return what the simulator makes of slices; of the label holder's own, what its own model does."""
        if worker in self.sides:
            made: Tensor = self.sides[worker].simulator(part)
            return made
        with torch.no_grad():
            known: Tensor = functional_call(self._own[worker], dict(own), (part,))
        return known


def _adam(modules: list[nn.Module]) -> torch.optim.Optimizer:
    return torch.optim.Adam([parameter for one in modules for parameter in one.parameters()], lr=RATE)


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def _sentence(found: Tensor, truth: Tensor, classes: Tensor) -> str:
    """Say how well the auxiliary samples come back, whose outputs nothing was learned from."""
    there = found.flatten(1).isfinite().all(1)
    error, mean = float(mse_loss(found[there], truth[there])), float(truth.var(0, unbiased=False).mean())
    means = (classes.t() @ truth.flatten(1)) / classes.sum(0).clamp(min=1).unsqueeze(1)
    by_class = float(mse_loss(classes @ means, truth.flatten(1)))
    of_class = f", the mean of a sample's class {by_class:.3g}" if classes.shape[1] else ""
    return (
        f"auxiliary samples, from whose outputs nothing was learned, come back with a mean squared error of "
        f"{error:.3g}; their mean has {mean:.3g}{of_class}."
    )
