"""All workers' data, labels and certificates from rounds with different parameters."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacker.certificate import Evidence
from attacker.exact.choice import LEAST, Choice
from attacker.exact.moving.correct import Where, lengths_and_v
from attacker.exact.moving.pursuit import Followed, Pursuit
from attacker.exact.moving.trail import Trails
from attacker.exact.notes import NOT_RECOVERED, notes_on_certificates
from attacker.exact.step_three import unfinished
from attacker.exact.steps12.cells import Cell, cells_of
from attacker.exact.steps12.solve import Solved
from attacker.exact.workers.labels import NOTE, Network, join_workers
from attacker.interface import Progress, Recovery, share
from attacker.inversion import InversionOptions
from attacker.inversion.values import prior
from vfl.device import one_thread
from vfl.errors import UserError
from vfl.maths.factors import Factors
from vfl.models.whole import known_model
from vfl.observation import Setting


def recover_moving(
    setting: Setting,
    choice: Choice,
    trails: Trails,
    *,
    evidence: Evidence,
    options: InversionOptions,
    progress: Progress,
) -> Recovery:
    """Follow every worker's samples, then read the labels off the rounds that they were recovered from."""
    _check(trails, setting)
    where = Where.of(trails.batches, setting.samples, trails.middle)
    together = tuple(c.samples for c in cells_of(trails.batches, setting.samples) if len(c.samples) > 1)
    followed: list[Followed] = []
    for worker, (trail, layer, box) in enumerate(zip(trails.workers, choice.layers, setting.boxes, strict=True)):

        def step(done: int, total: int, worker: int = worker) -> None:
            progress("following", worker * total + done, setting.workers * total)

        pursuit = Pursuit(
            trail, where, box.shape, sees_data=layer.sees_data, options=options, seed=setting.seed,
            device=setting.device,
        )  # fmt: skip
        followed.append(pursuit.follow(step))
        share(progress, lambda: unfinished(setting, [own.x for own in followed], together))
    known = setting.labels
    labels = _labels(setting, choice, trails, where=where, followed=followed) if known is None else torch.tensor(known)
    slices = tuple(own.x for own in followed)
    certificates = evidence.certify(slices, labels)
    assumed = prior(setting, choice.layers, options)
    return Recovery(
        slices=slices,
        labels=labels,
        cells=together,
        certificates=certificates,
        rounds=tuple(trails.numbers),
        used=("indices", "parameters", "gradients", *(() if known is None else ("labels",)), *assumed),
        notes=(
            *_notes(trails, slices, sum(map(len, together))),
            *((f"{choice.remark}.",) if choice.remark else ()),
            *notes_on_certificates(certificates, evidence),
            *(() if known is None else (NOTE,)),
        ),
    )


def _check(trails: Trails, setting: Setting) -> None:
    few = (trails.drawn < LEAST).nonzero()[:, 0].tolist()
    if few:
        raise UserError(
            f"attack exact while parameters move: {len(few)} of {setting.samples} samples (sample {few[0]} for one) "
            f"were in fewer than {LEAST} of the {len(trails.batches)} rounds; more epochs are needed"
        )


def _labels(setting: Setting, choice: Choice, trails: Trails, *, where: Where, followed: Sequence[Followed]) -> Tensor:
    """Return every sample's label, unknown where they are: the network of its own base round tells it."""
    labels, data = setting.loss.unknown(setting.samples), [own.x for own in followed]
    for t in sorted(set(where.base)):
        if t not in trails.whole:
            continue
        known = known_model(setting, trails.whole[t])
        batch = trails.batches[t]
        with one_thread():
            solved = [
                _solved(trail.stops[t].factors, trail.representations(t, own.x[batch]))
                for trail, own in zip(trails.workers, followed, strict=True)
            ]
            cells = [Cell((place,), ()) for place in range(len(batch))]
            network = Network.of(setting, choice.layers, known)
            given = [x[batch] if around else None for x, around in zip(data, network.bypassed(), strict=True)]
            joined = join_workers(cells, solved, network, given=given)
        based = torch.tensor([where.base[n] == t for n in batch.tolist()])
        labels[batch[based]] = joined.labels[based]
    return labels


def _solved(factors: Factors, h: Tensor) -> Solved:
    """Return a batch's h and v: the v that its gradients have with these h."""
    _, v = lengths_and_v(factors, (h / h.norm(dim=1, keepdim=True)).nan_to_num(0.0))
    return Solved(h, v)


def _notes(trails: Trails, slices: Sequence[Tensor], together: int) -> list[str]:
    notes = [
        f"The parameters moved ({len(trails.versions)} versions in {len(trails.numbers)} rounds): each sample was "
        "followed through its rounds, every round with its own parameters."
    ]
    if together:
        notes.append(f"{together} samples share all their batches with another: more epochs would tell them apart.")
    lost = sum(int((~part.flatten(1).isfinite().all(dim=1)).sum()) for part in slices)
    if lost:
        notes.append(f"{lost} of {len(slices[0]) * len(slices)} slices were not recovered: {NOT_RECOVERED}.")
    return notes
