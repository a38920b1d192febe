"""`audit.json`: everything that an audit found. `cafe audit --schema` prints this as a JSON schema."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from vfl.errors import UserError
from vfl.files import read_plain, write_text
from vfl.folder.schema import Count, Measure, Part, checked
from vfl.limits import JSON_BYTES
from vfl.seats import Adversary

FILE = "audit.json"
FORMAT = 1
NONE = "none"
"""The defence of the federation as its config has it, if that has none."""

What = Literal["labels", "columns", "rows", "images", "representations"]
State = Literal["leaked", "partly", "guess", "open"]
Outcome = Literal["done", "refused", "out of time", "failed", "not run"]


class Finding(Part):
    """What one attack learned of one party's data, beside what a guess without it gets."""

    adversary: Adversary
    """Who is curious, in the form of the config's key."""
    target: str
    """Whose data it is."""
    what: What
    leaked: float
    """The share that is right: of labels, of a table's values, of whole rows, of images at 30 dB or better."""
    guess: float
    """The share that the best guess has right: the same answer for every sample."""
    beyond: float
    """Of what a guess leaves open, the share that is known: 0 is a guess, 1 is all."""
    state: Literal["leaked", "partly", "guess"]
    attack: str
    defence: str
    learned: str
    """What is known, within a sentence."""
    sentence: str
    evidence: str
    """The folder of the run that shows it, in the audit's folder."""


class Attempt(Part):
    """One attack from one seat against one defence: how it ended, what it found and what that rests on."""

    adversary: Adversary
    attack: str
    options: dict[str, Any] = Field(default_factory=dict)
    told: bool = False
    """Whether the attack was told of the defence."""
    defence: str = NONE
    outcome: Outcome = "not run"
    state: State = "open"
    sentence: str = ""
    """What it found, or why it shows nothing."""
    seconds: Measure = None
    folder: str = ""
    ledger: str = ""
    """What the attack used, in words."""
    used: list[str] = Field(default_factory=list)
    rounds: Count | None = None
    """The first so many rounds are enough for nine tenths of what it found; none where that was not looked for."""
    certified: Count | None = None
    findings: list[Finding] = Field(default_factory=list)


class Training(Part):
    """What training came to, and what it took."""

    rounds: Count = 0
    planned: Count = 0
    loss: Measure = None
    """The mean of the last twentieth of the rounds."""
    accuracy: Measure = None
    """On test samples, after the last round."""
    seconds: Measure = None
    """From the first round to the last."""
    bytes: Count = 0
    """On the wire, all parties together."""


class Trial(Part):
    """A defence, what it costs those who train, and what it leaves to the attackers it was tried against."""

    defence: str
    section: Any = None
    """What a config says under `defence`."""
    outcome: Outcome = "not run"
    sentence: str = ""
    """Why it shows nothing, if it does not."""
    training: Training = Field(default_factory=Training)
    worst: Measure = None
    """The most that any of these attackers knows of what a guess leaves open; none if no attacker came to a result."""
    held_against: list[str] = Field(default_factory=list)
    """The attackers that were kept below the limit, by seat and name."""
    broken_by: list[str] = Field(default_factory=list)
    unclear: list[str] = Field(default_factory=list)
    """Attackers that were measured above the limit, where chance may explain it."""
    undecided: list[str] = Field(default_factory=list)
    """Attackers that came to no result: they say nothing."""
    unmet: list[str] = Field(default_factory=list)
    """The attackers that learned more than the limit without a defence and came to no result on this one, and why."""
    told: str = ""
    """Whether an attacker that was told of it was among them, and if not why."""
    folder: str = ""
    """Where its run and the attempts on it are, in the audit's folder."""


class Untested(Part):
    """What the audit says nothing about, and why."""

    what: str
    why: str


class Example(Part):
    """A person's row or an image, as it is and as the adversary has it."""

    name: str
    real: list[str]
    found: list[str]
    """Of an image its PSNR."""
    pictures: list[str] = Field(default_factory=list)
    """An image, real and rebuilt: PNG as data URIs."""


class Examples(Part):
    """Some rows side by side, in their own units."""

    adversary: str
    attack: str
    columns: list[str]
    rows: list[Example]
    note: str = ""
    """What of it is not the attack's own."""


class ColumnFacts(Part):
    """What is known of one column, in its own unit."""

    name: str
    holder: str
    right: float
    guess: float
    error: Measure = None
    """Of numbers: half of the values are off by no more than this, in the column's own unit."""


class Recommendation(Part):
    """The cheapest defence that keeps every seat below the limit, or that none of those tried does."""

    defence: str | None = None
    section: Any = None
    sentence: str = ""
    held_against: list[str] = Field(default_factory=list)
    """The attackers that the defence met and kept below the limit."""
    unclear: list[str] = Field(default_factory=list)
    """Those that were measured above the limit on it, where chance may explain it."""
    unmet: list[str] = Field(default_factory=list)
    """Those that learned more than the limit without it and came to no result on it: it says nothing of them."""


class Audit(Part):
    """An audit's results."""

    format: int = FORMAT
    name: str
    complete: bool = False
    """Whether all that was planned came to an end; what did not is in `untested`."""
    ended: bool = False
    """Whether the audit came to its own end, and was not stopped."""
    base: str = NONE
    """What the federation's own defence is called among the attempts."""
    verdict: State = "open"
    headline: str = ""
    sentences: list[str] = Field(default_factory=list)
    """For each seat who learns what of whom."""
    findings: list[Finding] = Field(default_factory=list)
    """All attempts' findings, the worst first."""
    attempts: list[Attempt] = Field(default_factory=list)
    trials: list[Trial] = Field(default_factory=list)
    recommendation: Recommendation = Field(default_factory=Recommendation)
    untested: list[Untested] = Field(default_factory=list)
    examples: list[Examples] = Field(default_factory=list)
    columns: list[ColumnFacts] = Field(default_factory=list)
    training: Training = Field(default_factory=Training)
    limit: float = 0.1
    """The user's: how much of what a guess leaves open an attacker may know."""
    budget: float
    """Seconds; of a resumed audit what it had taken before, and the new budget."""
    seconds: float = 0.0
    """What it took, all its processes together."""
    samples: Count | None = None
    seed: int | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    digest: str = ""
    """SHA-256 of the config in canonical JSON."""
    versions: dict[str, Any] = Field(default_factory=dict)
    command: str = ""
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


def save_audit(folder: Path, audit: Audit) -> None:
    """Write audit.json, whole or not at all."""
    text = json.dumps(audit.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(folder / FILE, text + "\n")


def load_audit(folder: Path) -> Audit:
    """Read the audit.json of a folder."""
    try:
        found = json.loads(read_plain(folder / FILE, JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder} is not an audit's folder: {FILE} cannot be read ({error})") from None
    return checked(Audit, found, folder / FILE)


def digest_of(tree: dict[str, Any]) -> str:
    """Return the SHA-256 of a config in canonical JSON."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
