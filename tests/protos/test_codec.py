import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.codec import Assembler, CodecError, announce, chunks
from protos.tensors_pb2 import Bundle, Chunk, TensorSpec
from vfl.limits import CHUNK_BYTES

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def there_and_back(tensors):
    assembler = Assembler(announce(tensors), limit_bytes=1 << 30)
    for chunk in chunks(tensors.values()):
        received = Chunk.FromString(chunk.SerializeToString())
        assembler.add(received.offset, received.data)
    return assembler.finish()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=4)), max_size=6))
def test_any_tensors_come_back_as_they_went(kinds):
    tensors = {f"t{i}": (torch.rand(shape) * 200).to(dtype) for i, (dtype, shape) in enumerate(kinds)}
    back = there_and_back(tensors)
    assert list(back) == list(tensors)
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(back[name], tensor)


def test_tensors_larger_than_a_chunk_and_across_chunk_borders():
    tensors = {
        "a": torch.randn(3, 7),
        "large": torch.randn(CHUNK_BYTES // 2 + 5),
        "b": torch.arange(9),
        "c": torch.randn(99),
    }
    sizes = [len(chunk.data) for chunk in chunks(tensors.values())]
    assert max(sizes) == CHUNK_BYTES
    assert len(sizes) == 3
    back = there_and_back(tensors)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_strided_tensors_are_sent_by_value():
    tensor = torch.arange(12).reshape(3, 4).T[::2]
    assert torch.equal(there_and_back({"t": tensor})["t"], tensor)


def test_a_bundle_in_one_chunk_is_decoded_without_a_copy():
    tensors = {"a": torch.randn(10), "b": torch.randn(10)}
    (chunk,) = chunks(tensors.values())
    assembler = Assembler(announce(tensors), 1000)
    assembler.add(chunk.offset, chunk.data)
    back = assembler.finish()
    assert back["b"].data_ptr() - back["a"].data_ptr() == 40


def test_what_is_not_a_bundle_is_refused_with_a_reason():
    tensors = {"a": torch.randn(1100, 1000), "b": torch.randn(2)}
    bundle, parts = announce(tensors), list(chunks(tensors.values()))
    with pytest.raises(CodecError, match="the limit here is 100"):
        Assembler(bundle, 100)
    with pytest.raises(CodecError, match="unknown dtype 77"):
        Assembler(Bundle(tensors=[TensorSpec(name="x", dtype=77, shape=[1])]), 100)
    with pytest.raises(CodecError, match="names a tensor twice"):
        Assembler(Bundle(tensors=[TensorSpec(name="x", dtype=1), TensorSpec(name="x", dtype=1)]), 100)
    with pytest.raises(CodecError, match="expected 0"):
        Assembler(bundle, 1 << 30).add(parts[1].offset, parts[1].data)
    with pytest.raises(CodecError, match="holds nothing"):
        Assembler(bundle, 1 << 30).add(0, b"")
    short = Assembler(bundle, 1 << 30)
    short.add(parts[0].offset, parts[0].data)
    with pytest.raises(CodecError, match=f"end after {CHUNK_BYTES} of the 4400008 bytes"):
        short.finish()
    with pytest.raises(CodecError, match="more than the 4400008 bytes"):
        short.add(CHUNK_BYTES, bytes(CHUNK_BYTES))
