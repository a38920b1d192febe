"""`theory`: samples that alone activate some neurons of their batch are read off the gradient, without optimisation."""

import torch
from pydantic import Field
from torch import Tensor, nn

from attacker.certificate import Evidence
from attacker.disaggregate import Collector, Problem
from attacker.exact.workers.labels import Network
from attacker.interface import Attack, AttackPlugin, Progress, Recovery, attacks
from attacker.inversion import InversionOptions, Wanted, invert
from attacker.inversion.values import prior
from attacker.least_squares import first_layers
from attacker.theory.join import UNSURE, Batch, candidates, join
from vfl.device import one_thread
from vfl.models.whole import first_model
from vfl.observation import Observation, Setting


@attacks.register("theory")
class Theory(AttackPlugin):
    """Pan et al. 2020 (Theory-oriented deep leakage via linear equations): exclusively activated neurons.

    A neuron of a worker's first fully connected layer that passes gradient for one sample of the batch alone has that
    sample's v h^T as its weight gradient and its v as its bias gradient: the quotient is h, exactly. Two neurons that
    agree on h vouch for it, which is the paper's condition on a sample. The paper looks for such neurons in the last
    hidden layer and solves its way forward; in the first layer the equations need no further ones.

    Needs: a fully connected layer with a bias at each worker, ReLU behind it, and each sample's own two neurons, so
    small batches in wide layers. The batch's indices tell which samples it holds, not which is which: within a batch
    the order is arbitrary. Works with moving parameters, batch by batch; of a `uniform` schedule it uses
    batches that share no sample. Samples with identical slices in a batch hide each other. With `disaggregate` each
    batch is one sample, whose neurons are all exclusive.
    """

    disaggregate: bool = Field(False, description="take batch gradients apart into samples' own first (frozen, rounds)")
    rounds: int | None = Field(None, ge=1, description="batches to attack at most; by default those of one epoch")
    samples: int | None = Field(None, ge=1, description="samples to attack at most, the first, with disaggregate")
    step_three: bool = Field(True, description="go on from the representations to the data")
    inversion: InversionOptions = Field(InversionOptions(), description="the tunables of step III")

    def start(self, setting: Setting) -> Attack:
        """Begin, unless a worker's model has no fully connected layer with a bias."""
        if self.step_three:
            self.inversion.check_engine()
        return TheoryAttack(setting, self)


class TheoryAttack:
    """Collects batches, finds their exclusive neurons, inverts."""

    def __init__(self, setting: Setting, options: Theory) -> None:
        self._setting, self._options = setting, options
        model = first_model(setting)
        self._bottoms, self._top = list(model.bottoms), model.top
        self._layers = first_layers(setting, "theory")
        self._collector = Collector(
            setting, options.disaggregate, options.rounds, attack="theory", samples=options.samples
        )
        self._evidence = Evidence(setting, self._layers)
        self._seen = torch.zeros(setting.samples, dtype=torch.bool)

    def observe(self, observation: Observation) -> None:
        """Keep the round; of batches that share samples the first, as nothing says which of them are shared."""
        if not self._options.disaggregate:
            if bool(self._seen[observation.indices].any()):
                return
            self._seen[observation.indices] = True
        self._collector.observe(observation)
        self._evidence.add(observation)

    def recover(self, progress: Progress) -> Recovery:
        """Take the batches apart and go on to the data."""
        setting, problems = self._setting, self._collector.problems(progress)
        h = [torch.full((setting.samples, layer.inputs), torch.nan) for layer in self._layers]
        slices = [torch.full((setting.samples, *box.shape), torch.nan) for box in setting.boxes]
        labels = torch.full((setting.samples,), -1)
        residuals = torch.full((setting.samples, setting.workers), torch.nan, dtype=torch.float64)
        cells, matched = [], True
        for number, problem in enumerate(problems):
            with one_thread():
                batch = self._take_apart(problem)
            for worker, own in enumerate(batch.h):
                h[worker][problem.indices] = own.float()
            labels[problem.indices], residuals[problem.indices] = batch.labels, batch.residuals
            matched &= batch.matched
            if len(problem.indices) > 1:
                cells.append(tuple(sorted(problem.indices.tolist())))
            if not setting.frozen:  # the models are those of this batch
                self._step_three(h, problem.indices, slices, progress)
            progress("exclusive neurons", number + 1, len(problems))
        if setting.frozen:
            self._step_three(h, torch.arange(setting.samples), slices, progress)
        complete = self._options.step_three or all(layer.sees_data for layer in self._layers)
        assumed = prior(setting, self._layers, self._options.inversion if self._options.step_three else None)
        return Recovery(
            used=(*Recovery.used, *assumed),
            slices=tuple(slices) if complete else None,
            representations=tuple(h),
            layers=tuple(layer.name for layer in self._layers),
            labels=labels,
            rounds=tuple(self._collector.rounds),
            cells=tuple(cells),
            certificates=self._evidence.certify(slices, labels) if complete else None,
            notes=(*self._notes(residuals, matched), *self._evidence.notes),
        )

    def _take_apart(self, problem: Problem) -> Batch:
        modules = zip([*self._bottoms, self._top], [*problem.parameters.bottoms, problem.parameters.top], strict=True)
        for module, tensors in modules:
            module.double().load_state_dict(dict(tensors), strict=False)
        size, names = len(problem.indices), [layer.name for layer in self._layers]
        found = [
            candidates(own[f"{name}.weight"], own[f"{name}.bias"], size)
            for own, name in zip(problem.gradients.bottoms, names, strict=True)
        ]
        shapes = [box.shape for box in self._setting.boxes]
        return join(found, size, Network(self._bottoms, names, shapes, self._top))

    def _step_three(self, h: list[Tensor], samples: Tensor, slices: list[Tensor], progress: Progress) -> None:
        """Fill in the slices of these samples: h itself where the layer sees the data, else by inversion."""
        for worker, (layer, box) in enumerate(zip(self._layers, self._setting.boxes, strict=True)):
            known = samples[h[worker][samples].isfinite().all(dim=1)]
            if layer.sees_data:
                slices[worker][known] = h[worker][known].reshape(-1, *box.shape)
            elif self._options.step_three and len(known):
                slices[worker][known] = self._invert(worker, self._bottoms[worker], h[worker][known], progress)

    def _invert(self, worker: int, model: nn.Module, h: Tensor, progress: Progress) -> Tensor:
        wanted = Wanted(model, self._layers[worker].name, h, self._setting.boxes[worker].shape)
        done = invert(
            wanted, seed=self._setting.seed, device=self._setting.device, options=self._options.inversion,
            progress=lambda at, of: progress(f"step III, worker {worker}", at, of),
        )  # fmt: skip
        return done.x.float().cpu()

    def _notes(self, residuals: Tensor, matched: bool) -> list[str]:
        samples, workers = residuals.shape
        held = residuals < UNSURE
        slices = (
            f"{int(held.sum())} of {samples * workers} slices do, {int(held.all(dim=1).sum())} of {samples} samples"
        )
        notes = [f"The attack finds slices that alone in their batch turn on two units: {slices} at every worker."]
        some = held.any(dim=1) & residuals.isnan().any(dim=1)
        if bool(some.any()) and workers > 1 and self._setting.batch_size > 1 and not self._options.disaggregate:
            known = f"{int(some.sum())} samples were found at some workers and not at others"
            notes.append(f"{known}: nothing says which of their slices belong together.")
        wrong = int((residuals >= UNSURE).sum())
        if wrong:
            why = "the top model's gradients contradict them: mixtures of samples, or another sample's slices"
            notes.append(f"Do not trust {wrong} slices: {why}.")
        if not matched:
            notes.append(
                "The top model is not affine, so candidates of different workers were not matched: slices of different "
                "samples may be side by side."
            )
        return notes
