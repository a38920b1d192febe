"""What the fuzz targets share: seeds from the corpus, what is done to them, and what they may cost."""

import contextlib
import ctypes
import functools
import hashlib
from pathlib import Path

import psutil
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from vfl.files.tensor_file import _SUM_AT
from vfl.limits import SENTENCE_CHARACTERS

CORPUS = Path(__file__).parent / "corpus"

GROWTH_BYTES = 64 << 20
"""What a decoder may take beyond what it had, whatever it is given."""

EXAMPLES = 100
"""So many inputs for each target; HYPOTHESIS's own database keeps those that ever failed."""


def fuzz(test):
    """Give a target its inputs, and fail if any of them makes this process larger than it may become."""
    inner = test.hypothesis.inner_test
    give_back = functools.cache(ctypes.CDLL(None).malloc_trim)

    @functools.wraps(inner)
    def bounded(*args, **kwargs):
        give_back(0)  # once: what tests before this one freed and the process kept would hide how it grows
        with little_memory():
            return inner(*args, **kwargs)

    test.hypothesis.inner_test = bounded
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    return settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=checks)(test)


def seeds(kind: str) -> list[bytes]:
    """Return the corpus of one kind."""
    found = [path.read_bytes() for path in sorted((CORPUS / kind).iterdir())]
    assert found, f"there is no corpus for {kind}"
    return found


@st.composite
def mutated(draw: st.DrawFn, kind: str) -> bytes:
    """A seed with some of its bytes changed, cut out, repeated, or put elsewhere."""
    data = bytearray(draw(st.sampled_from(seeds(kind))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.sampled_from([1, 1, 2, 4, 8, 64])))
        change = draw(st.sampled_from(["bytes", "flip", "remove", "repeat", "cut", "ones"]))
        if change == "bytes":
            data[at:end] = draw(st.binary(max_size=12))
        elif change == "flip" and at < end:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif change == "remove":
            del data[at:end]
        elif change == "repeat":
            data[at:at] = data[at:end] * draw(st.integers(1, 50))
        elif change == "cut":
            del data[at:]
        elif change == "ones":
            data[at:end] = b"\xff" * (end - at)
    return bytes(data)


def outcome(do, *refusals):
    """Return what a decoder makes of something, or the sentence with which it refuses it; nothing else may happen."""
    try:
        return do(), None
    except refusals as error:
        sentence = str(error)
    assert sentence
    assert len(sentence) < 2 * SENTENCE_CHARACTERS
    return None, sentence


@contextlib.contextmanager
def little_memory(growth: int = GROWTH_BYTES):
    """Fail if this process was larger at any moment than before, by more than that."""
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget how large it ever was
    yield
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    grown = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 - before
    assert grown < growth, f"{grown >> 20} MiB more than before"


def written(folder: Path, data: bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def resigned(data: bytes) -> bytes:
    """A file of tensors with a checksum that fits: it keeps out accidents, and nobody who wants to deceive."""
    zeros = b"0" * 64
    if len(data) < _SUM_AT + len(zeros):
        return data
    rest = data[_SUM_AT + len(zeros) :]
    return data[:_SUM_AT] + hashlib.sha256(data[:_SUM_AT] + zeros + rest).hexdigest().encode() + rest


abouts = st.recursive(
    st.one_of(st.none(), st.integers(-1, 1 << 70), st.text(max_size=5), st.floats()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
"""Whatever JSON can hold."""
