"""What the image is made of: a base by its digest, packages by version and hash, the same versions as everywhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def pins(path: Path) -> dict[str, str]:
    return {re.sub(r"[._]", "-", name).lower(): version for name, version in PIN.findall(path.read_text())}


def test_the_base_image_is_named_by_its_digest():
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    assert re.search(r"^ARG CAFE_BASE=python:3\.11-slim@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    stages = {*re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE), "scratch", "${CAFE_BASE}"}
    assert set(bases) <= stages


def test_what_the_image_installs_has_the_pinned_version_and_a_hash():
    everywhere, image = pins(ROOT / "constraints.txt"), pins(ROOT / "deploy" / "hashes.txt")
    assert {"torch", "numpy", "grpcio", "cryptography", "opacus"} <= image.keys()
    unpinned = {"setuptools"}  # which the machine's own Python brings elsewhere
    assert {name: everywhere.get(name) for name in image if name not in unpinned} == {
        name: version for name, version in image.items() if name not in unpinned
    }
    for name in ("hashes.txt", "hashes-cuda.txt"):
        text = (ROOT / "deploy" / name).read_text()
        entries = re.split(r"^(?=[^\s#])", text, flags=re.MULTILINE)[1:]
        assert len(entries) == len(pins(ROOT / "deploy" / name))
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
