"""What a worker's defences have counted: in memory, and in a file with which a restarted worker goes on.

A round is in the file before its upload leaves the worker, so a process that is killed has given away nothing that the
next one does not know of. Where the file is missing, damaged or ends too early, nothing is uploaded any more.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from vfl.files import PRIVATE, PRIVATE_FOLDER, make_new
from vfl.observation import Tensors


@runtime_checkable
class Counting(Protocol):
    """A shield that can go on with what it counted in an earlier process."""

    def counted(self) -> Tensors | None:
        """Return what the newest round added to the count, if that was not returned before."""

    def count_again(self, number: int, counted: Tensors) -> None:
        """Count a round in as an earlier process did, from what `counted` returned there."""


class LostCountError(Exception):
    """Raised where a count cannot be gone on with; the sentence says why."""


@dataclass(frozen=True)
class Withheld:
    """From which round on nothing is uploaded, and why."""

    number: int
    reason: str


class Count:
    """What the defences of one worker have counted, round by round."""

    def __init__(self, kept: Path | None, plan: str, shields: Mapping[int, Counting]) -> None:
        """Begin with nothing; `shields` are those that count, by their place in the chain, `plan` what they rest on."""
        self._shields = shields
        self._file = None if kept is None else _Ledger(kept)
        self._plan = hashlib.sha256(plan.encode()).hexdigest()
        self._seen: dict[int, str] = {}
        """Of each round a digest of its samples and true gradients."""
        self._goes_on = False
        """Whether an earlier process began it."""

    def begin(self) -> None:
        """Begin a run: what a file of that name holds is of an earlier one."""
        if self._file is not None:
            self._file.begin(self._plan)

    def go_on(self) -> Withheld | None:
        """Take in what an earlier process counted; return what it withheld."""
        if self._file is None:
            raise LostCountError("it was kept nowhere")
        withheld = None
        for number, seen, reason, tensors in self._file.go_on(self._plan):
            self._seen[number] = seen
            withheld = Withheld(number, reason) if reason is not None else withheld
            for place, shield in self._shields.items():
                if f"{place}" in tensors:
                    shield.count_again(number, tensors[f"{place}"])
        self._goes_on = True
        return withheld

    def problem(self, number: int, rows: Tensor, gradients: Tensors) -> str | None:
        """Return why a round is not to be uploaded: it would be a second look, or one that the count did not see."""
        digest = hashlib.blake2b(rows.cpu().numpy().tobytes(), digest_size=16)
        for tensor in gradients.values():
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        last = max(self._seen, default=0)
        if self._goes_on and number > last + 1:
            return f"it was restarted, its count ends with round {last}, and round {number} is ordered"
        if self._seen.setdefault(number, digest.hexdigest()) != digest.hexdigest():
            return f"round {number} was ordered again with other samples or parameters"
        return None

    def keep(self, number: int, withheld: str | None = None) -> None:
        """Write down what is new since the last time, before anything of it is uploaded."""
        new = {f"{place}": counted for place, one in self._shields.items() if (counted := one.counted()) is not None}
        if self._file is not None and (new or withheld is not None):
            self._file.add(number, self._seen.get(number, ""), withheld, new)


class _Ledger:
    """A file of records, each a line of JSON and tensors; a checksum over all before it makes the order sure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sum, self._size = "", 0
        self._open: BinaryIO | None = None

    def begin(self, plan: str) -> None:
        try:
            self._path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            make_new(self._path, PRIVATE)
            self._open = self._path.open("ab", buffering=0)
        except OSError as error:
            return self._give_up(error)
        self.add(0, plan, None, {})

    def add(self, number: int, seen: str, withheld: str | None, tensors: Mapping[str, Tensors]) -> None:
        if self._open is None:
            return
        # clones: safetensors refuses tensors that share memory, as the rows of two defences may
        flat = {
            f"{place}/{name}": one.contiguous().clone() for place, of in tensors.items() for name, one in of.items()
        }
        body = safetensors.torch.save(flat)
        places = sorted(tensors)
        head = {"round": number, "seen": seen, "withheld": withheld, "places": places, "bytes": len(body)}
        text, total = _line(head, self._sum, body)
        try:
            if os.fstat(self._open.fileno()).st_size != self._size:
                raise OSError(0, "another process has written there too")
            record = text + body
            while record:
                record = record[self._open.write(record) :]
        except OSError as error:
            return self._give_up(error)
        self._sum, self._size = total, self._size + len(text) + len(body)

    def go_on(self, plan: str) -> Iterator[tuple[int, str, str | None, dict[str, Tensors]]]:
        """Yield the records; what a killed process wrote half of is cut off, as nothing was uploaded after it."""
        try:
            with self._path.open("rb") as file:
                while (read := _record(file, self._sum)) is not None:
                    head, tensors, self._sum = read
                    if not self._size and head["seen"] != plan:
                        raise LostCountError(f"{self._path} is of another run")
                    if self._size:
                        yield head["round"], head["seen"], head["withheld"], tensors
                    self._size = file.tell()
            if not self._size:
                raise LostCountError(f"{self._path} is empty")
            os.truncate(self._path, self._size)
            self._open = self._path.open("ab", buffering=0)
        except OSError as error:
            raise LostCountError(f"{self._path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError, SafetensorError):
            raise LostCountError(f"{self._path} is damaged") from None

    def _give_up(self, error: OSError) -> None:
        """Go on without a file; it goes, so that no restarted worker trusts a count that ended too early."""
        print(
            f"what this worker's defences count cannot be kept in {self._path} ({error.strerror}): the run goes on, "
            f"but if this worker is restarted it uploads nothing more (cafe work --state DIR names another folder)",
            file=sys.stderr,
            flush=True,
        )
        if self._open is not None:
            self._open.close()
            self._open = None
            self._path.unlink(missing_ok=True)


def _line(head: dict[str, Any], before: str, body: bytes) -> tuple[bytes, str]:
    """Return the line that a record begins with, and the checksum in it, which rests on the record before."""
    plain = json.dumps(head, sort_keys=True)
    total = hashlib.sha256(before.encode() + plain.encode() + body).hexdigest()
    return json.dumps({**head, "sum": total}, sort_keys=True).encode() + b"\n", total


def _record(file: BinaryIO, before: str) -> tuple[dict[str, Any], dict[str, Tensors], str] | None:
    """Return the next record; None at the end, and where the file ends in the middle of one."""
    text = file.readline()
    if not text.endswith(b"\n"):
        return None
    head = json.loads(text)
    wanted, size = head.pop("sum"), head["bytes"]
    body = file.read(size)
    if len(body) < size:
        return None
    if _line(head, before, body)[1] != wanted:
        raise ValueError("the checksum does not fit")
    tensors: dict[str, dict[str, Tensor]] = {place: {} for place in head["places"]}
    for name, tensor in safetensors.torch.load(body).items():
        place, _, own = name.partition("/")
        tensors[place][own] = tensor
    return head, dict(tensors), wanted
