"""The run's description: one YAML file, checked key by key."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from vfl.config.places import NONE, DefenceChain, Defences, DefencesByPlace, Place, chain_of, named_workers
from vfl.errors import UserError
from vfl.files import read_bounded
from vfl.files.yaml_text import YamlError, parse_yaml
from vfl.limits import CONFIG_BYTES, WAITING_BYTES
from vfl.optimisers.training import TrainingConfig
from vfl.registry import PluginSection, Section, explain
from vfl.seats import COORDINATOR, Adversary, Seat, seats_of
from vfl.shipped import find_shipped
from vfl.topology import Kind, Topology

EVALUATION_BATCH = 256
"""Test samples that are counted at a time; agreed, so that a worker knows which ones may be asked for together."""
DATA = (".csv", ".tsv", ".parquet", ".npz")
"""What the name of a file with data ends in."""
SILENCE_SECONDS = 30.0
"""How long a party may give no sign of life before its connection counts as lost, if the config does not say."""


class ChecksConfig(Section):
    """What a worker checks of what it is sent beyond what it must to compute at all; `checks: false` is none.

    Each worker goes by its own file. Without them it follows whatever batches and parameters come.
    """

    sizes: bool = True
    """A batch has as many samples as the config plans."""
    schedule: bool = True
    """A batch has the very samples that the config's seed draws."""
    first_parameters: bool = True
    """The first parameters are those that the config's seed makes."""
    steps: bool = True
    """Later ones are those that the optimiser makes of this worker's own uploads."""
    answers: bool = True
    """The label holder's answers span no more dimensions than the top model's can."""

    @model_validator(mode="before")
    @classmethod
    def _all_or_none(cls, value: Any) -> Any:
        return dict.fromkeys(cls.model_fields, value) if isinstance(value, bool) else value


class FederationConfig(Section):
    """Who takes part, which batches are drawn, how long each of them waits."""

    kind: Kind = "vertical"
    workers: int = Field(4, ge=1, le=1024)
    batch_size: int = Field(ge=1)
    epochs: int | None = Field(None, ge=1)
    rounds: int | None = Field(None, ge=1)
    schedule: Literal["epochs", "uniform", "orthogonal"] = "epochs"
    label_holder: Annotated[int, Field(ge=0)] | Literal["coordinator"] = 0
    label_holder_features: bool = True
    slices: tuple[str, ...] | None = None
    join_timeout: float = Field(120.0, gt=0)
    round_timeout: float = Field(300.0, gt=0)
    rejoin_timeout: float | None = Field(None, ge=0)
    silence_timeout: float = Field(SILENCE_SECONDS, ge=1)
    checkpoint_every: int | None = Field(None, ge=1)
    when_withheld: Literal["end", "continue"] = "end"
    fixed_secrets: bool = False
    """Whether defences draw from the run's seed: repeatable numbers, from a defence that protects nothing."""
    checks: ChecksConfig = ChecksConfig()

    @model_validator(mode="after")
    def _consistent(self) -> "FederationConfig":
        if (self.epochs is None) == (self.rounds is None):
            raise ValueError("give either epochs or rounds, and not both")
        if self.kind == "horizontal":
            self._whole_samples()
        if self.label_holder == "coordinator":
            if not self.label_holder_features:
                raise ValueError(
                    "label_holder_features: the coordinator has no features in any case; leave it out, or name a "
                    "worker as label_holder"
                )
        elif self.label_holder >= self.workers:
            raise ValueError(
                f"label_holder is {self.label_holder}, but the workers are 0 to {self.workers - 1} (or say coordinator)"
            )
        elif not self.label_holder_features and not self.label_holder == self.workers - 1 > 0:
            raise ValueError(
                f"label_holder_features: a label holder without features must be the last of two workers or more; "
                f"set label_holder to {max(1, self.workers - 1)}"
            )
        holders = self.topology.feature_holders
        if self.slices is not None and len(self.slices) != holders:
            raise ValueError(f"slices lists {len(self.slices)} slices for {holders} workers with features")
        return self

    def _whole_samples(self) -> None:
        if self.slices is not None:
            raise ValueError("slices: the workers of a horizontal federation hold whole samples; leave it out")
        for key in ("label_holder", "label_holder_features"):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(
                    f"{key}: each worker of a horizontal federation has the labels of its own samples; leave it out"
                )

    @field_validator("label_holder", mode="before")
    @classmethod
    def _names_a_party(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "coordinator":
            raise ValueError(f"label_holder is {value!r}, expected a worker's number, or coordinator")
        return value

    @property
    def topology(self) -> Topology:
        """Return who holds what; how many samples each worker has is known when they join."""
        holder = self.workers if self.label_holder == "coordinator" else self.label_holder
        return Topology(self.workers, holder, self.label_holder_features, self.kind)

    def patience(self, default: float) -> float:
        """Return for how many seconds a lost worker is waited for."""
        return default if self.rejoin_timeout is None else self.rejoin_timeout

    def planned_rounds(self, samples: int) -> int:
        """Return how many rounds this makes with so many samples."""
        if self.rounds is not None:
            return self.rounds
        assert self.epochs is not None
        return self.epochs * -(-samples // self.batch_size)


class ModelSection(PluginSection):
    """`{name: …, option: …}` as for any plug-in; `top`, `bottoms` and `shared` are the section's own keys."""

    top: PluginSection | None = Field(None, description="another top model than the one that belongs to the name")
    bottoms: dict[int, PluginSection] = Field({}, description="other bottom models, by worker")
    shared: bool = Field(False, description="all workers' bottom models have the same parameters")

    @model_validator(mode="after")
    def _consistent(self) -> "ModelSection":
        if self.shared and self.bottoms:
            raise ValueError("shared: workers with bottom models of their own (bottoms) cannot share parameters")
        return self


class DeviceConfig(Section):
    """What each role computes on, as torch names it; `auto` is cuda where there is one.

    The attack alone takes the card by default: every process on a card holds a context of some hundred megabytes, and
    a laptop has one card for the attack and all workers.
    """

    attack: str = "auto"
    workers: str = "cpu"

    @model_validator(mode="before")
    @classmethod
    def _by_one_name(cls, value: Any) -> Any:
        """Take `device: cuda` for all roles; `device: auto` for the default."""
        if isinstance(value, str):
            return {} if value == "auto" else {"attack": value, "workers": value}
        return value


class RunConfig(Section):
    """A whole run."""

    seed: int = Field(0, ge=0)
    data: PluginSection
    federation: FederationConfig
    model: ModelSection = ModelSection(name="cafe_cnn")
    training: TrainingConfig = TrainingConfig()
    defence: Defences = NONE
    adversary: Adversary = "coordinator"
    auxiliary: int = Field(0, ge=0)
    """So many of the samples, the first, the adversary knows whole from elsewhere; they are not scored."""
    attack: PluginSection = PluginSection(name="none")
    device: DeviceConfig = DeviceConfig()
    transcript: bool = False
    snapshots: int | None = Field(None, ge=1)
    waiting_gb: float = Field(WAITING_BYTES / 1e9, gt=0)
    """How many gigabytes of rounds may wait for the attack on disk before the rounds wait for it."""

    @model_validator(mode="after")
    def _workers_exist(self) -> "RunConfig":
        if self.topology.is_horizontal and self.model.bottoms:
            raise ValueError("model.bottoms: all workers of a horizontal federation train one model; leave it out")
        by_worker = {"model.bottoms": list(self.model.bottoms), **named_workers(self.defence)}
        for key, workers in by_worker.items():
            for worker in workers:
                if not 0 <= worker < self.federation.workers:
                    last = self.federation.workers - 1
                    raise ValueError(f"{key} names worker {worker}, but the workers are 0 to {last}")
        chains = [self.defence_of(worker) for worker in range(self.federation.workers)]
        if self.topology.labels_at_coordinator and any(one.name == "indices" for chain in chains for one in chain):
            raise ValueError(
                "defence indices keeps the coordinator from knowing the rows of a batch, and with label_holder: "
                "coordinator it must know them to find their labels; give the labels to a worker"
            )
        if isinstance(self.defence, DefencesByPlace) and self.topology.is_horizontal:
            for place in ("outputs", "answers"):
                if place in self.defence.model_fields_set:
                    raise ValueError(f"defence.{place}: the workers of a horizontal federation exchange none")
        if self.topology.labels_at_coordinator and chain_of(self.defence, 0, "answers") != (NONE,):
            raise ValueError("defence.answers: it is the label holder's, and here the coordinator holds the labels")
        if self.training.local_steps > 1 and self.topology.is_horizontal:
            raise ValueError(
                "training.local_steps: only workers of a vertical federation take local steps; leave it out"
            )
        every, accumulate = self.federation.checkpoint_every, self.training.accumulate
        if every is not None and every % accumulate:
            raise ValueError(
                f"federation.checkpoint_every is {every}, and a step takes {accumulate} rounds (training.accumulate): "
                f"make it a multiple of that"
            )
        seats = self.seats
        if self.auxiliary and seats == (COORDINATOR,):
            raise ValueError("auxiliary: samples that a curious worker or label holder knows; the adversary is neither")
        if self.federation.checkpoint_every is not None and (seats != (COORDINATOR,) or self.is_malicious):
            raise ValueError(
                "federation.checkpoint_every: a run whose adversary is not the coordinator alone, or is malicious, "
                "cannot be resumed; leave it out"
            )
        return self

    @property
    def topology(self) -> Topology:
        """Return who holds features and labels."""
        return self.federation.topology

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Return who is curious."""
        return seats_of(self.adversary, self.topology)

    @property
    def is_malicious(self) -> bool:
        """Whether a party does what its attack proposes."""
        return any(seat.malicious for seat in self.seats)

    def curious_seat(self, party: int | None) -> Seat | None:
        """Return the seat of a party that is curious, None of one that is not; the coordinator's number is None."""
        return next((seat for seat in self.seats if seat.worker == party), None)

    def attacks_at(self, party: int | None) -> bool:
        """Tell whether the attack follows the rounds at this party: it does so at a party that is curious alone."""
        return self.attack.name != "none" and self.seats == (self.curious_seat(party),)

    @property
    def records(self) -> bool:
        """Whether curious parties keep their rounds on disk: if asked for, and for an attack that reads them later."""
        later = self.federation.checkpoint_every is not None or len(self.seats) > 1
        return self.transcript or (later and self.attack.name != "none")

    @property
    def aligns(self) -> bool:
        """Whether workers may bring tables of their own: rows are joined by an id, and a worker has the labels."""
        by_id = self.data.options.get("id") is not None
        return by_id and not self.topology.is_horizontal and not self.topology.labels_at_coordinator

    def defence_of(self, worker: int, place: Place = "uploads") -> DefenceChain:
        """Return a worker's defences at one place, in their order; the coordinator's own label holder has none."""
        topology = self.topology
        answers = place == "answers" and worker != topology.label_holder
        if worker == self.federation.workers or answers or (place != "uploads" and topology.is_horizontal):
            return (NONE,)
        return chain_of(self.defence, worker, place)


def load_config(path: Path, changes: list[str] | None = None) -> RunConfig:
    """Read a config file and apply `a.b=c` changes to it."""
    tree = read_tree(path, "config", "configs/")
    for change in changes or []:
        apply_change(tree, change)
    return parse_config(tree, str(path))


def read_tree(path: Path, kind: str, examples: str) -> dict[str, Any]:
    """Read a YAML file that holds keys; the error names its kind and where examples are."""
    if path.suffix.lower() in DATA:
        raise UserError(f"{path} is data and no {kind} file: `cafe init {path}` writes a config that reads it")
    try:
        tree = parse_yaml(read_bounded(find_shipped(path), CONFIG_BYTES).decode("utf-8"))
    except OSError as error:
        others = f"; `cafe list {examples.rstrip('/')}` lists those that came with cafe" if not path.exists() else ""
        raise UserError(f"the {kind} file {path} cannot be read: {error.strerror}{others}") from None
    except UnicodeDecodeError:
        raise UserError(f"the {kind} file {path} is not UTF-8 text") from None
    except YamlError as error:
        raise UserError(f"the {kind} file {path} is not YAML as it is read here: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"the {kind} file {path} holds no keys; see {examples} for examples")
    return tree


def parse_config(tree: dict[str, Any], source: str) -> RunConfig:
    """Check a config tree; `source` is named in the error."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"{source}: {explain(error)}") from None


def apply_change(tree: dict[str, Any], change: str) -> None:
    """Set one key of a config tree from `a.b=c`; the value is read as YAML."""
    key, equals, value = change.partition("=")
    if not equals or not key:
        raise UserError(f"--set {change}: expected key=value, for example federation.workers=16")
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise UserError(f"--set {change}: {parent} holds a value, not further keys")
        node = child
    try:
        node[last] = parse_yaml(value)
    except YamlError as error:
        raise UserError(f"--set {change}: the value is not YAML as it is read here: {error}") from None
