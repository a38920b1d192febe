"""What several rounds together show: slices that have more pixels than any of their h has values."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from attacker.exact.one_gradient.search import ROOM, Search
from attacker.exact.one_gradient.sightings import SeveralRounds, Sighting, invert_several
from attacker.interface import Progress
from attacker.inversion.values import on_levels
from vfl.maths.loss import is_known
from vfl.seeds import derive


def join_rounds(search: Search, progress: Progress) -> bool:
    """Look for slices that no round alone determines in several of theirs at once; tell if any was found."""
    options, people = search.inversion, search.people
    if options is None or search.choice.jointly or len(search.kept.versions) == 1:
        return False
    before = search.count()
    for worker, layer in enumerate(search.choice.layers):
        people = search.people
        open_ = ~people.sure[:, worker] & people.x[worker].flatten(1).isfinite().all(dim=1)
        groups = list(
            search.sightings.groups(worker, open_, partial(_predicted, search, worker), partial(_may_be_one, search))
        )
        if not groups:
            continue
        seen = [[search.sightings.all[n] for n in group] for group in groups]
        models = {at: search.model(at).bottoms[worker] for at in {one.at for own in seen for one in own}}
        goal = SeveralRounds(models, layer.name, [[(one.at, one.h) for one in own] for own in seen])
        x, residual = invert_several(
            goal, people.x[worker][torch.tensor([own[0].person for own in seen])],
            seed=derive(search.setting.seed, "several rounds", worker), options=options,
            progress=partial(progress, "several rounds"),
        )  # fmt: skip
        values = torch.tensor([sum(int((one.h > 0).sum()) for one in own) for own in seen])
        determined = (values >= ROOM * x[0].numel()) | on_levels(x, options)
        _believe(search, worker, seen, x=x, residual=torch.where(determined, residual, torch.inf))
    return search.count() > before


def _believe(search: Search, worker: int, seen: Sequence[Sequence[Sighting]], *, x: Tensor, residual: Tensor) -> None:
    """Take slices that explain all of their sightings for one person's each."""
    people, groups = search.people, []
    for own, slice_, left in zip(seen, x, residual, strict=True):
        if float(left) <= people.acceptable:
            person = own[0].person
            people.x[worker][person], people.residual[person, worker] = slice_, left
            people.h[worker][person] = own[0].h
            groups.append([one.person for one in own])
    search.merge(groups)


def _predicted(search: Search, worker: int, at: int, people: Tensor) -> Tensor:
    """Return what some people's slices would be in a round."""
    return search.people.representations(search.model(at), search.choice, worker, people)


def _may_be_one(search: Search, one: int, other: int) -> bool:
    """Tell whether neither rounds nor labels nor slices speak against two people being the same."""
    labels = search.people.labels[[one, other]]
    if bool(is_known(labels).all()) and float(labels[0]) != float(labels[1]):
        return False
    against = search.presence.of[:, one].int() * search.presence.of[:, other].int() < 0
    return not bool(against.any()) and search.people.may_be_one([one, other])
