"""A worker's own table: before the worker joins, its rows are put in the order that all workers agree on."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from protos.alignment_pb2 import AlignHeader, AlignPart, PlaceRequest
from protos.wire import ALIGNMENT_SERVICE, Stub
from vfl.config import RunConfig
from vfl.datasets import check_classes, datasets
from vfl.datasets.slices import NONE, WorkerData, check_alone, load_data, slice_for
from vfl.datasets.tables import TableSet
from vfl.datasets.tables.doubts import doubts_of
from vfl.datasets.tables.holdings import Holding
from vfl.errors import RunFailedError, UserError, missing_extra
from vfl.limits import PRIVATE_BYTES, PRIVATE_IDS, plain
from vfl.net.alignment import HASH_BYTES, from_bytes, keyed_hashes, pass_parts, pieces, rows_of
from vfl.net.network import PROTOCOL_VERSION, hang_up, sentence
from vfl.partition import Box
from worker.keys import read_key
from worker.link import reach_coordinator
from worker.session import WorkerOptions

SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
"""Endings of tables that a worker brings itself; a file with any other is a slice that `cafe slice` cut."""


def hold(
    config: RunConfig, path: Path | None, options: WorkerOptions, *, key_file: Path | None, psi: bool = False
) -> WorkerData:
    """Return what a worker holds: its own table, aligned; the slice in its file; or its slice of the whole data set."""
    if path is not None and path.suffix.lower() in SUFFIXES:
        return aligned(config, path, options, key_file=key_file, psi=psi)
    if psi:
        raise UserError("--psi: aligns a worker's own table; give --data TABLE.csv, .parquet or .npz")
    if key_file is not None:
        raise UserError(f"--align-key {key_file}: aligns a worker's own table; give --data TABLE.csv, .parquet or .npz")
    return WorkerData.load(path) if path else slice_for(load_data(config), config, options.worker)


def aligned(
    config: RunConfig, path: Path, options: WorkerOptions, *, key_file: Path | None, psi: bool = False
) -> WorkerData:
    """Read a worker's table, and keep the rows that all workers have."""
    if config.topology.labels_at_coordinator:
        raise UserError(
            f"--data {path}: tables are aligned under a key that the coordinator must not have, and with label_holder: "
            f"coordinator its labels would have to be aligned too; give the labels to a worker, or cut slices from "
            f"one table with `cafe slice`"
        )
    if psi:
        if key_file is not None:
            raise UserError("--psi: needs no key; leave --align-key out")
        if config.federation.workers != 2:
            raise UserError(f"--psi: two workers intersect, here are {config.federation.workers}; use --align-key")
        load_library()
    elif key_file is None:
        raise UserError(
            f"--data {path}: a table is aligned with the other workers' by keyed hashes of its ids; give --align-key "
            f"FILE, a secret that all workers have and the coordinator has not"
        )
    key = None if key_file is None else read_key(key_file, "--align-key")
    tables, holding = _read(config, path, options.worker)
    assert holding.ids is not None
    with _CoordinatorCalls(config, options) as calls:
        if key is None:
            common, hashes = intersect(holding.ids, calls.swap)
        else:
            hashes = keyed_hashes(holding.ids, key)
            common = calls.compare(hashes)
        data = tables.encode([holding.take(rows_of(common, hashes))])
        if holding.label is not None:
            check_classes(data)
        box = calls.place(data.sample_shape[0])
    joined = f"joined by id: {len(common)} rows are at all workers; {holding.brought.in_words}"
    for said in (joined, *(f"warning: {doubt}" for doubt in data.doubts)):
        print(f"worker {options.worker}: {said}", file=sys.stderr, flush=True)
    held = WorkerData(box, data.x, hashlib.sha256(common.tobytes()).digest(), x_test=data.x_test)
    return replace(held, y=data.y, y_test=data.y_test, classes=data.classes) if holding.label is not None else held


def table_facts(config: RunConfig, path: Path, worker: int) -> tuple[int, int, list[str]]:
    """Return how many rows and columns a worker's table has, if it can be read as the config says, and its doubts."""
    tables, holding = _read(config, path, worker)
    return len(holding), len(holding.values), doubts_of(tables.label, [holding], config.training.loss == "squared")


def _read(config: RunConfig, path: Path, worker: int) -> tuple[TableSet, Holding]:
    """Read a worker's columns and, if it is the label holder, the labels."""
    if config.topology.is_horizontal:
        raise UserError(
            f"--data {path}: tables are joined by id in a vertical federation; in a horizontal one nothing is joined: "
            f"name one file for all in the config (data.path), and give each worker its rows with `cafe slice`"
        )
    tables = datasets.build(config.data)
    tables = tables.predicting_numbers() if config.training.loss == "squared" else tables
    if not isinstance(tables, TableSet) or tables.id is None:
        how = "data.name csv, parquet or npz, and data.id"
        raise UserError(f"--data {path}: the config must say how to read it: {how}")
    holding = tables.holding(path, worker, config.topology.serves_peers(worker), "--data")
    if not config.topology.holds_features(worker):
        check_alone(config, len(holding.values), f"--data {path}")
    elif not holding.values:
        raise UserError(f"--data {path}: it has no columns besides {tables.label!r} and {tables.id!r}; {NONE}")
    return tables, holding


class _CoordinatorCalls:
    """Two calls to the coordinator, each answered when all workers have made theirs."""

    def __init__(self, config: RunConfig, options: WorkerOptions) -> None:
        self._worker, self._patience = options.worker, config.federation.join_timeout
        self._channel = reach_coordinator(options.coordinator, options.tls, self._patience)
        self._stub = Stub(self._channel, ALIGNMENT_SERVICE)

    def __enter__(self) -> "_CoordinatorCalls":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        hang_up(self._channel)
        failed = f"worker {self._worker} could not be aligned"
        if isinstance(error, grpc.RpcError):
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                brought = "tables that workers bring (data.id); use the same file everywhere"
                raise RunFailedError(f"{failed}: the coordinator's config says nothing of {brought}")
            raise RunFailedError(f"{failed}: {sentence(error)}") from None

    def compare(self, hashes: np.ndarray) -> np.ndarray:
        """Send our hashes; return those that all workers have."""
        answers = self._stub.Align(self._parts(hashes), timeout=self._patience)
        count = _header(answers).header.ids
        received = _joined((part.hashes for part in answers), len(hashes) * HASH_BYTES)
        if not count or len(received) != count * HASH_BYTES:
            raise RunFailedError(f"the coordinator says that {count} of {len(hashes)} ids are known to all workers")
        return from_bytes(received)

    def swap(self, step: int, data: bytes) -> bytes:
        """Post a step of a private intersection; return what the other worker posts."""
        answers = self._stub.Pass(pass_parts(self._worker, step, data), timeout=self._patience)
        expected = _header(answers).header.bytes
        received = _joined((part.data for part in answers), min(expected, PRIVATE_BYTES))
        if len(received) != expected:
            raise RunFailedError(f"the other worker's message has {len(received)} bytes, {expected} were announced")
        return received

    def place(self, features: int) -> Box:
        """Say how many features we have; return which of the whole sample's they are."""
        answer = self._stub.Place(PlaceRequest(worker=self._worker, features=features), timeout=self._patience)
        box = Box(tuple(answer.sample_shape), tuple(answer.start), tuple(answer.stop))
        if box.problem() or box.shape != (features,):
            raise RunFailedError(plain(f"the coordinator gave {features} features the place {box.start} to {box.stop}"))
        return box

    def _parts(self, hashes: np.ndarray) -> Iterator[AlignPart]:
        header = AlignHeader(protocol_version=PROTOCOL_VERSION, worker=self._worker, ids=len(hashes))
        yield AlignPart(header=header)
        for piece in pieces(hashes):
            yield AlignPart(hashes=piece)


def _joined(pieces: Iterator[bytes], most: int) -> bytes:
    """Return the pieces of an answer as one; reading ends once they are more than `most` bytes."""
    received = bytearray()
    for piece in pieces:
        received += piece
        if len(received) > most:
            break
    return bytes(received)


def _header(answers: Iterator[Any]) -> Any:
    """Return an answer's first message."""
    first = next(answers, None)
    if first is None:
        raise RunFailedError("the coordinator ended its answer before it began")
    return first


KEY_BYTES = 32
Swap = Callable[[int, bytes], bytes]
"""Takes a step's number and our message, returns the other worker's."""


def intersect(ids: Sequence[str], swap: Swap) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of the ids that both workers have, ascending, and those of all our own.

    OpenMined's library does it (ECDH: every id becomes a point of a curve, blinded by both sides' secrets), each worker
    being client once and server once. The hashes are under a secret that the two agree on over the same messages
    (X25519): so the coordinator, which passes the messages on, learns nothing of the ids from the rows' order.
    """
    library = load_library()
    if len(ids) > PRIVATE_IDS:
        raise UserError(f"--psi: {len(ids)} ids are more than the {PRIVATE_IDS} that are intersected in private")
    client, server = library.client.CreateWithNewKey(True), library.server.CreateWithNewKey(True)
    secret = X25519PrivateKey.generate()
    ours = secret.public_key().public_bytes_raw() + client.CreateRequest(list(ids)).SerializeToString()
    try:
        theirs = swap(0, ours)
        key = secret.exchange(X25519PublicKey.from_public_bytes(theirs[:KEY_BYTES]))
        asked = _parsed(library.Request(), theirs[KEY_BYTES:])
        answer = _parsed(library.Response(), swap(1, server.ProcessRequest(asked).SerializeToString()))
        # RAW: blinded ids one by one. The library's smaller filters would take some ids of one side for common ones.
        setup = server.CreateSetupMessage(0.0, len(ids), list(ids), library.DataStructure.RAW)
        common = client.GetIntersection(_parsed(library.ServerSetup(), swap(2, setup.SerializeToString())), answer)
    except (ValueError, RuntimeError) as error:
        raise RunFailedError(f"the other worker's message is not one of a private intersection: {error}") from None
    if not common:
        raise RunFailedError("no id is known to both workers: is data.id the same thing in both files?")
    hashes = keyed_hashes(ids, key)
    return np.sort(hashes[np.array(sorted(common))]), hashes


def load_library() -> Any:
    """Return OpenMined's library, or say how to get it."""
    try:
        return import_module("private_set_intersection.python")
    except ImportError:
        raise missing_extra("--psi", "OpenMined's library", "psi") from None


def _parsed(message: Any, data: bytes) -> Any:
    try:
        message.ParseFromString(data)
    except Exception as error:  # protobuf's own class of error differs from release to release
        raise ValueError(str(error)) from None
    return message
