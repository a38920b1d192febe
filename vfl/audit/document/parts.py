"""What an audit's document is made of: sections of paragraphs, tables and facts."""

from dataclasses import dataclass, field

from vfl.audit.schema import State

LABELS: dict[State, str] = {"leaked": "leaked", "partly": "partly leaked", "guess": "held", "open": "nothing shown"}


@dataclass(frozen=True)
class Entry:
    """A place of a table: its text, the state that colours it, the report that it leads to, or a picture."""

    text: str
    state: str = ""
    link: str = ""
    picture: str = ""
    """PNG as a data URI; `text` says what it shows."""


@dataclass(frozen=True)
class Grid:
    """A table; the first entry of a line names it."""

    head: tuple[str, ...]
    lines: tuple[tuple[Entry, ...], ...]
    title: str = ""
    widths: tuple[float, ...] = ()
    """How wide the columns are on paper, beside each other; all alike by default."""


@dataclass(frozen=True)
class Facts:
    """Things with a name each."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Words:
    """Sentences, a line each."""

    lines: tuple[str, ...]
    marked: bool = False
    """Whether they are a list."""


Block = Grid | Facts | Words


@dataclass(frozen=True)
class Chapter:
    """A section of the document."""

    key: str
    title: str
    lead: str = ""
    blocks: tuple[Block, ...] = field(default=())
