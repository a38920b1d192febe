"""Where defences act, as a config says it: on uploads, outputs, answers; one, a chain, or different ones by worker."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from vfl.registry import PluginSection, Section

Place = Literal["uploads", "outputs", "answers"]
"""What a worker uploads; what it sends to the label holder; what the label holder sends back."""
PLACES: tuple[Place, ...] = ("uploads", "outputs", "answers")

DefenceChain = tuple[PluginSection, ...]
NONE = PluginSection(name="none")


def _chain_form(value: Any) -> str:
    return "(chain)" if isinstance(value, list | tuple) else "(one)"


def _worker_form(value: Any) -> str:
    by_worker = isinstance(value, DefencesByWorker) or (isinstance(value, dict) and "workers" in value)
    return "(by worker)" if by_worker else _chain_form(value)


def _place_form(value: Any) -> str:
    by_place = isinstance(value, DefencesByPlace) or (isinstance(value, dict) and any(one in value for one in PLACES))
    return "(by place)" if by_place else _worker_form(value)


OneOrChain = Annotated[
    Annotated[PluginSection, Tag("(one)")] | Annotated[DefenceChain, Tag("(chain)")], Discriminator(_chain_form)
]


class DefencesByWorker(Section):
    """Different defences at different workers: `{workers: {2: {name: prune}}, others: {name: none}}`."""

    workers: dict[int, OneOrChain]
    others: OneOrChain = NONE

    def at(self, worker: int) -> DefenceChain:
        """Return a worker's defences, in their order."""
        return chain_of(self.workers.get(worker, self.others), worker)


AtWorkers = Annotated[
    Annotated[PluginSection, Tag("(one)")]
    | Annotated[DefenceChain, Tag("(chain)")]
    | Annotated[DefencesByWorker, Tag("(by worker)")],
    Discriminator(_worker_form),
]


class DefencesByPlace(Section):
    """Different defences at different places: `{outputs: {name: noise}, answers: {name: marvell}}`."""

    uploads: AtWorkers = NONE
    outputs: AtWorkers = NONE
    answers: OneOrChain = NONE
    """The label holder's."""


Defences = Annotated[
    Annotated[PluginSection, Tag("(one)")]
    | Annotated[DefenceChain, Tag("(chain)")]
    | Annotated[DefencesByWorker, Tag("(by worker)")]
    | Annotated[DefencesByPlace, Tag("(by place)")],
    Discriminator(_place_form),
]


def chain_of(chosen: Any, worker: int, place: Place = "uploads") -> DefenceChain:
    """Return a worker's defences at one place, in their order; without places they are all on uploads."""
    if isinstance(chosen, DefencesByPlace):
        chosen = getattr(chosen, place)
    elif place != "uploads":
        chosen = NONE
    if isinstance(chosen, DefencesByWorker):
        return chosen.at(worker)
    return (chosen,) if isinstance(chosen, PluginSection) else tuple(chosen)


def named_workers(chosen: Any) -> dict[str, list[int]]:
    """Return which workers the parts of a config's defences name, by the key that does."""
    if isinstance(chosen, DefencesByPlace):
        parts = {f"defence.{place}.workers": getattr(chosen, place) for place in PLACES}
    else:
        parts = {"defence.workers": chosen}
    return {key: list(part.workers) for key, part in parts.items() if isinstance(part, DefencesByWorker)}
