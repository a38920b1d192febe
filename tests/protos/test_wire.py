import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.codec import chunks
from protos.coordinator_pb2 import End, Order, UploadHeader, UploadPart
from protos.wire import ORDER, UPLOAD, ChunkView
from vfl.limits import CHUNK_BYTES


@pytest.mark.parametrize(("carrier", "message"), [(ORDER, Order), (UPLOAD, UploadPart)])
def test_chunks_are_written_as_protobuf_writes_them_and_read_from_either(carrier, message):
    tensors = [torch.randn(3, 7), torch.randn(CHUNK_BYTES // 2 + 5), torch.arange(9)]
    written = list(carrier.chunks(tensors))
    expected = [message(chunk=chunk) for chunk in chunks(tensors)]
    assert len(written) == 3
    assert written == [one.SerializeToString() for one in expected]
    for data, one in zip(written, expected, strict=True):
        assert carrier.write(data) is data
        assert carrier.read(data) == ChunkView(one.chunk.offset, memoryview(one.chunk.data), len(data))


def test_other_messages_go_through_protobuf():
    for carrier, message in [(ORDER, Order(end=End(rounds=7))), (UPLOAD, UploadPart(header=UploadHeader(round=3)))]:
        assert carrier.read(carrier.write(message)) == message


def test_chunks_in_unusual_but_valid_encodings_are_read_as_protobuf_reads_them():
    data_first = b"\x12\x07\x12\x03abc\x08\x05"  # the fields of the chunk in the other order
    twice = b"\x12\x05\x12\x03abc\x12\x02\x08\x05"  # the chunk in two parts, which protobuf merges
    assert UPLOAD.read(data_first) == ChunkView(5, memoryview(b"abc"), 9)
    assert UPLOAD.read(twice) == ChunkView(5, memoryview(b"abc"), 11)
    assert UPLOAD.read(b"\x12\x00") == ChunkView(0, memoryview(b""), 2)


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda tail: b"\x12" + tail))
def test_any_bytes_are_read_as_protobuf_reads_them(data):
    try:
        message = UploadPart.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            UPLOAD.read(data)
        return
    if message.HasField("chunk"):
        assert UPLOAD.read(data) == ChunkView(message.chunk.offset, memoryview(message.chunk.data), len(data))
    else:
        assert UPLOAD.read(data) == message
