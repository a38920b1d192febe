"""Secrets stay where they are: no key in what a federation over TLS says and writes, and files for their owner only."""

import base64
import os
import re
import secrets
import stat

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from tests.integration.command_support import start
from tests.support import run_in_one_process, setting_of, small_config
from vfl.cli.app import app
from vfl.folder.transcript import TranscriptWriter
from vfl.net.certs import make_certificates
from vfl.net.tls import COORDINATOR, load_identity

CONFIG = """
data: {{name: csv, path: none.csv, label: y, id: person}}
federation: {{workers: 2, batch_size: 8, rounds: 3, join_timeout: 120, round_timeout: 120}}
model: {{name: mlp, hidden: [12]}}
defence: {{name: indices, policy: one_shot, key_file: {key}}}
transcript: true
"""

KEYS = ("shared", "align", "own-0", "own-1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Certificates, keys that the workers share, one that each has for itself, their tables; and a config."""
    folder = tmp_path_factory.mktemp("secrets")
    make_certificates(folder / "certs", 2)
    for name in KEYS:
        (folder / name).write_bytes(secrets.token_bytes(32))
    for m, header in enumerate(("person,a,y", "person,b")):
        rows = [f"p{n},{n * 7 % 5}" + f",{n % 2}" * (m == 0) for n in range(24)]
        (folder / f"{m}.csv").write_text("\n".join([header, *rows]) + "\n")
    (folder / "run.yaml").write_text(CONFIG.format(key=folder / "shared"))
    return folder


def spellings(key: bytes) -> set[bytes]:
    """A secret as it might be found: as it is, in hexadecimal digits, in base 64."""
    return {key, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key).rstrip(b"=")}


@pytest.fixture(scope="module")
def needles(folder):
    found: set[bytes] = set()
    for path in (folder / "certs").glob("*.key"):
        pem = path.read_bytes()
        key = load_pem_private_key(pem, None)
        number = key.private_numbers().private_value
        public = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        lines = {line for line in pem.splitlines() if line and not line.startswith(b"---")}
        found |= {line for line in lines if base64.b64decode(line) not in public}  # the last one is in the certificate
        found |= spellings(number.to_bytes(32, "big")) | {str(number).encode()}
        found |= spellings(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))
    for name in KEYS:
        found |= spellings((folder / name).read_bytes())
    return found


@pytest.fixture(scope="module")
def outputs(folder):
    """Everything that a federation over TLS says and writes, by where it was found."""
    file, certs = folder / "run.yaml", folder / "certs"
    page = ("--ui", "--ui-listen", "0.0.0.0:0")  # nobody calls there, but it has a token
    at = ("--listen", "127.0.0.1:0", "--tls", certs, "--out", folder / "out")
    serve = start("serve", file, *at, *page, tag="secrets")
    first = serve.stderr.readline()
    while not (found := re.search(r"listening on (\S+),", first)):
        first += serve.stderr.readline()
    address = found.group(1)
    processes = [serve] + [
        start(
            "work", file, "--id", m, "--coordinator", address, "--tls", certs, "--key-file", folder / f"own-{m}",
            "--data", folder / f"{m}.csv", "--align-key", folder / "align", "--threads", 1, tag="secrets",
        )
        for m in (0, 1)
    ]  # fmt: skip
    said = {"the coordinator's first words": first.encode()}
    for process in processes:
        for stream, words in zip(("out", "err"), process.communicate(timeout=500), strict=True):
            said[f"{process.args[3:6]} {stream}"] = words.encode()
        assert process.returncode == 0, said
    return said | {str(path): path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()}


def found_in(texts, needles):
    return {where for where, text in texts.items() if any(needle in text for needle in needles)}


def test_no_key_is_in_what_a_federation_says_and_writes(folder, needles, outputs):
    kept = {str(path): path.read_bytes() for path in (*(folder / "certs").glob("*.key"), folder / "shared")}
    assert found_in(kept, needles) == set(kept)  # they would be found
    names = {where.rpartition("/")[2] for where in outputs}
    assert {"summary.json", "meta.json", "round-0000003.safetensors"} <= names
    assert found_in(outputs, needles) == set()


def test_the_pages_token_is_said_once_and_written_nowhere(outputs):
    said = {where: text for where, text in outputs.items() if not where.startswith("/")}
    tokens = {token for text in said.values() for token in re.findall(rb"[?]token=([\w-]+)", text)}
    assert len(tokens) == 1
    assert found_in(outputs, tokens) <= {*said}


def test_an_identity_does_not_show_its_key(folder, needles):
    identity = load_identity(folder / "certs", COORDINATOR)
    shown = {"repr": repr(identity).encode(), "str": str(identity).encode()}
    assert found_in(shown, needles) == set()


@pytest.fixture(params=[0o000, 0o077], ids=oct)
def mask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("mask")
def test_keys_are_for_their_owner_alone_whatever_the_umask(tmp_path):
    make_certificates(tmp_path / "certs", 1)
    assert mode(tmp_path / "certs") == 0o700
    assert {mode(path) for path in (tmp_path / "certs").glob("*.key")} == {0o600}
    assert len(list((tmp_path / "certs").glob("*.key"))) == 3


@pytest.mark.usefixtures("mask")
def test_slices_and_transcripts_are_for_their_owner_alone_whatever_the_umask(tmp_path):
    (tmp_path / "run.yaml").write_text("data: {name: digits}\nfederation: {workers: 2, batch_size: 4, rounds: 1}\n")
    app(["slice", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "slices")], standalone_mode=False)
    config = small_config()
    observation = run_in_one_process(config)[0]
    TranscriptWriter(tmp_path / "transcript", config, setting_of(config)).observe(observation)
    for folder, count in ((tmp_path / "slices", 2), (tmp_path / "transcript", 3)):
        assert mode(folder) == 0o700
        assert [mode(path) for path in folder.iterdir()] == [0o600] * count
