"""Two workers with files of their own that intersect their ids in private, in real processes."""

import asyncio
import importlib.util
import random
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from protos.alignment_pb2 import PassHeader, PassPart
from protos.wire import ALIGNMENT_SERVICE
from server.alignment import Swaps
from server.refusal import RefusedError
from tests.integration.command_support import cafe, start
from tests.integration.test_labels_at_coordinator import listening
from tests.plain_rpc import add_plain_service
from vfl.errors import RunFailedError
from vfl.folder.summary import load_summary
from vfl.limits import PRIVATE_BYTES
from vfl.net.network import PROTOCOL_VERSION
from worker.alignment import intersect

needs_library = pytest.mark.skipif(
    importlib.util.find_spec("private_set_intersection") is None, reason="needs pip install 'cafe-vfl[psi]'"
)
CONFIG = """
seed: 1
data: {name: csv, path: none.csv, label: y, id: person}
federation: {workers: 2, batch_size: 4, epochs: 8}
model: {name: mlp, hidden: [16]}
attack: {name: exact}
"""


@pytest.fixture
def files(tmp_path):
    """Two tables of other people in other orders; 20 of them are in both."""
    draw = random.Random(5)
    values = {f"person {n}": (draw.random(), draw.random(), n % 2) for n in range(40)}
    first, second = [f"person {n}" for n in range(30)], [f"person {n}" for n in range(10, 40)]
    draw.shuffle(first)
    draw.shuffle(second)
    (tmp_path / "run.yaml").write_text(CONFIG)
    rows = [f"{name},{values[name][0]},{values[name][2]}" for name in first]
    (tmp_path / "0.csv").write_text("\n".join(["person,a,y", *rows]) + "\n")
    (tmp_path / "1.csv").write_text("\n".join(["person,b", *(f"{name},{values[name][1]}" for name in second)]) + "\n")
    return tmp_path, [values[f"person {n}"] for n in range(10, 30)]


@needs_library
def test_two_workers_train_on_the_rows_that_both_have(files):
    folder, common = files
    serve = ("serve", folder / "run.yaml", "--listen", "127.0.0.1:0", "--out", folder / "out")
    server = start(*serve, tag=str(folder))
    address = f"127.0.0.1:{listening(server)}"
    work = ("work", folder / "run.yaml", "--coordinator", address, "--psi")
    workers = [start(*work, "--id", m, "--data", folder / f"{m}.csv", tag=str(folder)) for m in range(2)]
    said = [process.communicate(timeout=200)[1] for process in (server, *workers)]
    assert [process.returncode for process in (server, *workers)] == [0, 0, 0], said
    assert load_summary(folder / "out").samples == 20
    found = np.load(folder / "out" / "recovered.npz")["x"]
    real = np.array([row[:2] for row in common])
    real = (real - real.mean(0)) / real.std(0)
    order = [int(np.abs(real - row).sum(1).argmin()) for row in found]
    assert sorted(order) == list(range(20)), "each person's two columns came together, from two files"
    assert np.abs(real[order] - found).max() < 1e-3


@needs_library
def test_both_sides_find_the_same_ids_in_the_same_order_and_only_those():
    posted, arrived = {}, threading.Condition()

    def swap_of(side):
        def swap(step, data):
            with arrived:
                posted[side, step] = data
                arrived.notify_all()
                arrived.wait_for(lambda: (1 - side, step) in posted)
                return posted[1 - side, step]

        return swap

    ids = ([f"a{n}" for n in range(50)], [f"a{n}" for n in range(70, 30, -1)])
    found = {}
    threads = [threading.Thread(target=lambda m=m: found.__setitem__(m, intersect(ids[m], swap_of(m)))) for m in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (found[0][0] == found[1][0]).all()
    for m, own in enumerate(ids):
        common, hashes = found[m]
        shared = {name for name, mine in zip(own, hashes, strict=True) if mine in common}
        assert shared == {f"a{n}" for n in range(31, 50)}
    assert all(b"a31" not in data for data in posted.values()), "no id crosses the wire"


@needs_library
def test_a_broken_message_of_the_other_side_is_a_sentence():
    with pytest.raises(RunFailedError, match="not one of a private intersection"):
        intersect(["a", "b"], lambda _step, _data: b"\xff" * 80)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "0.csv", "--align-key", "run.yaml"], "--psi: needs no key; leave --align-key out"),
        pytest.param(
            ["--data", "0.csv", "--set", "federation.workers=3"],
            "--psi: two workers intersect, here are 3",
            marks=pytest.mark.slow,
        ),
        ([], "--psi: aligns a worker's own table"),
    ],
)
def test_what_cannot_be_intersected_is_a_sentence(files, arguments, sentence):
    done = cafe("work", "run.yaml", "--id", 0, "--coordinator", "127.0.0.1:1", "--psi", *arguments, cwd=files[0])
    assert done.returncode == 2
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("workers", "changes", "sentence"),
    [
        (3, {}, "which two workers make, and here are 3"),
        (2, {"step": 3}, "in step 3, expected"),
        (2, {"bytes": 1 << 40}, "expected 1 to 40000000"),
        (2, {"bytes": 0}, "posts 0 bytes"),
        (2, {"protocol_version": 0}, "install the same release on both"),
    ],
)
def test_the_coordinator_passes_on_only_what_may_be_an_intersection(workers, changes, sentence):
    header = PassHeader(**{"protocol_version": PROTOCOL_VERSION, "worker": 0, "step": 0, "bytes": 9} | changes)
    with pytest.raises(RefusedError) as refused:
        asyncio.run(Swaps(workers).take(header, ten_bytes()))
    assert sentence in refused.value.reason


async def ten_bytes():
    yield PassPart(data=b"1234")
    yield PassPart(data=b"123456")


def test_a_message_of_another_length_than_announced_is_refused():
    header = PassHeader(protocol_version=PROTOCOL_VERSION, worker=0, step=0, bytes=9)
    with pytest.raises(RefusedError) as refused:
        asyncio.run(Swaps(2).take(header, ten_bytes()))
    assert "not as long as announced" in refused.value.reason


class Flood:
    """A coordinator that announces a message and sends for ever, or ends its answer before it begins."""

    def __init__(self, announced):
        self.announced, self.sent = announced, 0

    def Pass(self, request_iterator, context):  # noqa: N802  (gRPC's name)
        deque(request_iterator, maxlen=0)
        if self.announced is None:
            return
        yield PassPart(header=PassHeader(protocol_version=PROTOCOL_VERSION, worker=1, step=0, bytes=self.announced))
        while context.is_active() and self.sent < 1 << 30:
            self.sent += 1 << 20
            yield PassPart(data=bytes(1 << 20))


@needs_library
@pytest.mark.parametrize(
    ("announced", "sentence"),
    [(100, "100 were announced"), (1 << 40, f"{1 << 40} were announced"), (None, "ended its answer before it began")],
)
def test_a_worker_takes_no_more_than_a_message_may_have(files, announced, sentence):
    flood = Flood(announced)
    server = grpc.server(ThreadPoolExecutor(2))
    add_plain_service(server, ALIGNMENT_SERVICE, flood)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        arguments = ("--id", 0, "--coordinator", f"127.0.0.1:{port}", "--psi", "--data", "0.csv")
        done = cafe("work", "run.yaml", *arguments, cwd=files[0])
    finally:
        server.stop(None).wait()
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert flood.sent < 4 * PRIVATE_BYTES  # what it took, and what gRPC had sent ahead
