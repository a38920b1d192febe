"""Whatever comes over the wire: each decoder takes what is right and refuses the rest with a sentence, cheaply."""

import asyncio
import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from protos.codec import Assembler, CodecError, announce, chunks, describe
from protos.coordinator_pb2 import JoinRequest, Order, Slice, UploadHeader, UploadPart
from protos.tensors_pb2 import Bundle, TensorSpec
from protos.wire import ORDER, UPLOAD, ChunkView
from protos.worker_pb2 import SwapPart
from server.inbox import Inbox, Upload
from server.membership import Membership
from server.refusal import RefusedError
from tests.fuzz.support import fuzz, little_memory, mutated, outcome, seeds
from tests.support import small_config
from vfl.datasets.slices import load_data, slice_for
from vfl.errors import RunFailedError
from vfl.limits import CLASSES, FEATURES, SAMPLES, SENTENCE_CHARACTERS, plain
from vfl.net.network import PROTOCOL_VERSION
from vfl.topology import Topology
from worker.checks import OrderChecks
from worker.exchange import ExchangeService
from worker.main import defence_plan
from worker.rendezvous import Rendezvous

TENSORS = {"bottom.1.weight": torch.ones(3, 4), "bottom.1.bias": torch.zeros(3)}
ROOM = 1 << 20

numbers = st.one_of(st.integers(0, 9), st.sampled_from([1 << 31, 1 << 40, 1 << 63, (1 << 64) - 1]))
names = st.one_of(st.sampled_from([*TENSORS, "output"]), st.text(max_size=20), st.just("x" * 5000))
specs = st.builds(TensorSpec, name=names, dtype=st.integers(0, 9), shape=st.lists(numbers, max_size=12))
lies = st.builds(Bundle, tensors=st.lists(specs, max_size=6))


@pytest.fixture(scope="module")
def held():
    """What the label holder of a small federation has."""
    config = small_config()
    return config, slice_for(load_data(config), config, 0)


def assemble(bundle, parts):
    assembler = Assembler(bundle, ROOM)
    for offset, data in parts:
        assembler.add(offset, data)
    return assembler.finish()


def read(message, data):
    try:
        return message.FromString(data)
    except DecodeError:
        return None


@fuzz
@given(mutated("upload"))
def test_an_upload_message_is_read_as_protobuf_reads_it_or_refused(data):
    try:
        part = UPLOAD.read(data)
    except DecodeError:
        assert read(UploadPart, data) is None
        return
    if isinstance(part, ChunkView):
        same = UploadPart.FromString(data)
        assert (part.offset, bytes(part.data)) == (same.chunk.offset, same.chunk.data)
    else:
        assert part == UploadPart.FromString(data)


@fuzz
@given(lies, st.lists(st.tuples(numbers, st.binary(max_size=300)), max_size=6))
@example(Bundle(tensors=[TensorSpec(name="x", dtype=1, shape=[(1 << 64) - 1] * 400_000)]), [])
@example(Bundle(tensors=[TensorSpec(name="x", dtype=1, shape=[0, (1 << 64) - 1])]), [])
@example(Bundle(tensors=[TensorSpec(name="x", dtype=1, shape=[2_500_000_000])]), [(0, b"1234")])
def test_bundles_that_lie_and_chunks_that_belong_nowhere(bundle, parts):
    tensors, refusal = outcome(lambda: assemble(bundle, parts), CodecError)
    if refusal is None:
        assert {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()} == describe(bundle)


@st.composite
def shuffled(draw):
    """The chunks of a good bundle, in pieces, some of them lost, repeated or out of order."""
    (chunk,) = chunks(TENSORS.values())
    edges = sorted({0, len(chunk.data), *draw(st.lists(st.integers(0, len(chunk.data)), max_size=5))})
    pieces = [(a, chunk.data[a:b]) for a, b in pairwise(edges)]
    order = draw(st.one_of(st.just(pieces), st.permutations(pieces), st.lists(st.sampled_from(pieces), max_size=8)))
    return pieces, list(order)


@fuzz
@given(shuffled())
def test_chunks_in_order_and_complete_are_taken_and_no_others(made):
    pieces, order = made
    back, refusal = outcome(lambda: assemble(announce(TENSORS), order), CodecError)
    assert (refusal is None) == (order == pieces)
    assert back is None or all(torch.equal(back[name], tensor) for name, tensor in TENSORS.items())


joins = st.builds(
    JoinRequest,
    protocol_version=st.just(PROTOCOL_VERSION),
    worker=st.sampled_from([0, 1, 2, (1 << 32) - 1]),
    slice=st.builds(
        Slice,
        sample_shape=st.lists(numbers, max_size=3),
        start=st.lists(numbers, max_size=3),
        stop=st.lists(numbers, max_size=3),
    ),
    samples=numbers,
    test_samples=numbers,
    ids_digest=st.binary(max_size=300),
    classes=st.sampled_from([0, 2, 3, CLASSES + 1, (1 << 32) - 1]),
    peer_address=st.text(max_size=300),
    previous_session=st.text(max_size=300),
)


@fuzz
@given(st.lists(st.one_of(joins, mutated("join").map(lambda data: read(JoinRequest, data))), max_size=8))
@example([JoinRequest.FromString(data) for data in seeds("join")])
def test_joins_of_any_kind_are_refused_with_a_sentence_or_fit(requests):
    membership = Membership(Topology(2), lambda _: None)
    for request in filter(None, requests):
        member, refusal = outcome(partial(membership.admit, request), RefusedError)
        if refusal is None:
            assert member.box.problem() is None
            assert 0 < member.samples <= SAMPLES
            assert math.prod(member.box.sample_shape) <= FEATURES
    assert len(list(membership)) <= 2


def test_thousands_of_joins_leave_nothing_behind():
    """Refused ones, and a worker that joins and leaves again and again."""
    left = []
    membership = Membership(Topology(2), left.append)
    half = Slice(sample_shape=[8], start=[4], stop=[8])
    good = JoinRequest(protocol_version=PROTOCOL_VERSION, worker=1, slice=half, samples=12)
    with little_memory():
        for number in range(5000):
            member = membership.admit(good)
            with pytest.raises(RefusedError):
                membership.admit(JoinRequest(protocol_version=PROTOCOL_VERSION, worker=number % 9, samples=12))
            membership.remove(member)
            left.clear()
    assert list(membership) == []
    with pytest.raises(RefusedError):
        membership.of_session(member.session)


headers = st.builds(
    UploadHeader,
    worker=st.just(1),
    round=numbers,
    gradients=st.one_of(lies, st.just(announce(TENSORS))),
    loss=st.one_of(st.none(), st.floats()),
    withheld=st.one_of(st.none(), st.text()),
)
part_headers = mutated("upload").map(lambda data: getattr(read(UploadPart, data), "header", None))


@fuzz
@given(st.one_of(headers, part_headers))
def test_headers_of_uploads_are_those_of_the_model_or_refused(header):
    if header is None or header.worker not in (0, 1):
        return
    inbox = Inbox(1, {0: TENSORS, 1: TENSORS}, Topology(2))
    room, refusal = outcome(lambda: inbox.check_header(header), RefusedError)
    assert refusal or room < 200
    if refusal is None and not header.HasField("withheld"):
        assert describe(header.gradients) == describe(announce(TENSORS))


@fuzz
@given(st.lists(st.floats(width=32), min_size=3, max_size=3))
def test_gradients_are_finite_or_refused(values):
    inbox = Inbox(1, {1: {"b": torch.zeros(3)}}, Topology(2))
    _, refusal = outcome(lambda: inbox.put(Upload(1, {"b": torch.tensor(values)}, None)), RefusedError)
    assert (refusal is None) == all(map(math.isfinite, values))


@fuzz
@given(mutated("swap"), st.lists(mutated("swap"), max_size=3))
def test_outputs_that_peers_bring_fit_this_run_or_are_refused(first, rest):
    meeting = Rendezvous(24)
    meeting.open("run", {1: 3, 2: 2})
    parts = [part for data in (first, *rest) if (part := read(SwapPart, data)) is not None]

    async def bring():
        async def given():
            for part in parts:
                yield part

        # An unknown run would be waited for.
        if parts and parts[0].header.run_id in ("run", ""):
            parts[0].header.run_id = "run"
            return await ExchangeService(meeting, 0, holds_labels=True, timeout=1.0)._receive(given(), None, set())
        return None

    brought, _ = outcome(lambda: asyncio.run(bring()), CodecError)
    if brought is not None:
        header, output = brought
        assert output.shape[1] == meeting.widths[header.worker]
        assert len(output) <= 24


@fuzz
@given(mutated("order"))
def test_orders_are_followed_only_where_they_fit_what_the_worker_has(held, data):
    config, mine = held
    checks = OrderChecks(config, mine, defence_plan(config, 0, len(mine.x), most=mine.most))
    try:
        order = ORDER.read(data)
    except DecodeError:
        return
    if not isinstance(order, Order):
        return

    def follow():
        match order.WhichOneof("order"):
            case "start":
                checks.start(order.start)
                assert len(order.start.output_widths) == config.federation.workers
            case "parameters":
                checks.announced(order.parameters, TENSORS)
                assert describe(order.parameters.bundle) == describe(announce(TENSORS))
            case "round":
                checks.round(order.round)
                mine.x[torch.tensor(list(order.round.indices))]

    outcome(follow, RunFailedError)


@given(st.text())
def test_what_others_say_is_one_line_without_control_characters(text):
    shown = plain(text)
    assert shown.isprintable() or not shown
    assert len(shown) <= SENTENCE_CHARACTERS
