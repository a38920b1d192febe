"""Files that something happened to."""

from collections.abc import Iterator


def damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The file cut short at some places, and with a bit of some bytes turned."""
    places = sorted({*range(0, 200, 7), *range(0, len(data), 251), len(data) - 1})
    for place in places:
        yield f"cut at {place}", data[:place]
        yield f"byte {place} changed", data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
    yield "one byte more", data + b"\0"
