"""Whatever is on disk: each reader takes what is right and refuses the rest with a sentence; nothing is ever run."""

import io
import json
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from server.checkpoint import read_checkpoint
from tests.fuzz.support import CORPUS, fuzz, little_memory, mutated, outcome, seeds
from tests.support import small_config
from vfl import limits
from vfl.certs import make_certificates
from vfl.cli import app
from vfl.config import RunConfig, load_config, parse_config
from vfl.datasets import archive
from vfl.datasets.npz import Npz
from vfl.errors import UserError
from vfl.files import read_bounded
from vfl.slices import WorkerData
from vfl.tensor_file import write_tensors
from vfl.tls import COORDINATOR, load_identity, read_certificate, role_of
from vfl.transcript import Transcript, _checksum
from vfl.yaml_text import YamlError, parse_yaml
from worker.keys import read_key


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to read from and, as it is the current one, to leave traces in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path, data: bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", sorted(path.name for path in (CORPUS / "config").iterdir()))
def test_configs_of_the_corpus(here, name):
    with little_memory():
        _, refusal = outcome(lambda: load_config(CORPUS / "config" / name), UserError)
    assert (refusal is None) == (name == "good")
    assert list(here.iterdir()) == []


@fuzz
@given(mutated("config"))
def test_any_config(tmp_path, data):
    config, refusal = outcome(lambda: load_config(written(tmp_path, data)), UserError)
    if refusal is None:
        assert RunConfig.model_validate_json(config.model_dump_json()) == config


@fuzz
@given(st.text(max_size=60))
@example("{" * 200)
@example("*a")
@example("!!binary |\n x")
def test_any_value_of_set(text):
    outcome(lambda: parse_yaml(text), YamlError)


def test_files_without_an_end_are_not_read_to_it(here):
    endless = Path("/dev/zero")
    for read in (lambda: load_config(endless), lambda: read_certificate(endless), lambda: read_key(endless, "--key")):
        with little_memory():
            _, refusal = outcome(read, UserError)
        assert "File too large" in refusal
    with pytest.raises(OSError, match="the limit is 3 bytes"):
        read_bounded(written(here, b"1234"), 3)


@pytest.mark.parametrize("name", sorted(path.name for path in (CORPUS / "npz").iterdir()))
def test_archives_of_the_corpus(here, name):
    with little_memory():
        _, refusal = outcome(lambda: Npz(path=CORPUS / "npz" / name).load(), UserError)
    assert (refusal is None) == (name in ("table", "images", "big_endian"))
    assert list(here.iterdir()) == [], "a pickle was run"


@fuzz
@given(mutated("npz"))
def test_any_archive(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, data)
    with little_memory():
        loaded, refusal = outcome(lambda: Npz(path=path).load(), UserError)
    assert refusal or bool(torch.isfinite(loaded.x).all())
    assert list(tmp_path.iterdir()) == [path]


def test_an_archive_that_unpacks_to_more_than_the_limit_is_not_unpacked(here, monkeypatch):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("x.npy", bytes(100 << 20))
    monkeypatch.setattr(archive, "ARCHIVE_BYTES", 50 << 20)
    path = written(here, file.getvalue())
    with little_memory():
        _, refusal = outcome(lambda: Npz(path=path).load(), UserError)
    assert "its arrays unpack to 104857600 bytes, the limit is 52428800" in refusal
    assert limits.ARCHIVE_BYTES < 10 << 30


@fuzz
@given(mutated("slice"))
def test_any_slice_file(tmp_path, data):
    with little_memory():
        held, refusal = outcome(lambda: WorkerData.load(written(tmp_path, data)), UserError)
    assert refusal or held.box.problem() is None


abouts = st.recursive(
    st.one_of(st.none(), st.integers(-1, 1 << 70), st.text(max_size=5), st.floats()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@fuzz
@given(st.fixed_dictionaries(dict.fromkeys(("sample_shape", "start", "stop", "ids_digest", "classes"), abouts)))
def test_any_description_in_a_slice_file(tmp_path, about):
    whole = seeds("slice")[0]
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header["__metadata__"]["slice"] = json.dumps(about)
    text = json.dumps(header).encode()
    path = written(tmp_path, len(text).to_bytes(8, "little") + text + whole[8 + length :])
    _, refusal = outcome(lambda: WorkerData.load(path), UserError)
    assert "is not a worker's slice file" in refusal


def transcript(folder: Path, meta: bytes, files: dict[str, bytes] | None = None) -> Path:
    """A transcript's folder: the corpus's, with another meta.json, and other files where there are some."""
    whole = {path.name: path.read_bytes() for path in (CORPUS / "transcript").iterdir()}
    for name, data in {**whole, **(files or {}), "meta.json": meta}.items():
        written(folder, data, name)
    return folder


def signed(tree) -> bytes:
    """A meta.json with a checksum that fits: it keeps out accidents, and nobody who wants to deceive."""
    tree = {key: value for key, value in tree.items() if key != "sha256"}
    return json.dumps({**tree, "sha256": _checksum(tree)}).encode()


@fuzz
@given(
    mutated("meta"), st.sampled_from([path.name for path in (CORPUS / "transcript").iterdir()]), mutated("transcript")
)
@example(b"[" * 100_000, "round-0000001.safetensors", b"")
def test_any_transcript(tmp_path, meta, name, file):
    try:
        tree = json.loads(meta)
    except (ValueError, RecursionError):
        tree = None
    meta = signed(tree) if isinstance(tree, dict) else meta
    with little_memory():
        outcome(lambda: list(Transcript(transcript(tmp_path, meta, {name: file}))), UserError)


@fuzz
@given(st.sampled_from(["boxes", "classes", "samples", "batch_size", "schedule"]), abouts)
def test_any_setting_of_a_transcript(tmp_path, key, value):
    tree = json.loads(seeds("meta")[0])
    tree["setting"][key] = value
    outcome(lambda: list(Transcript(transcript(tmp_path, signed(tree)))), UserError)


@fuzz
@given(mutated("state"))
@example(b"[" * 100_000)
def test_any_checkpoint(tmp_path, state):
    path = tmp_path / "checkpoint"
    write_tensors(path, {"w": torch.ones(2)}, {"state": state.decode(errors="replace")}, checked=True)
    read, refusal = outcome(lambda: read_checkpoint(path), UserError)
    assert refusal or read[0].format == 1


@fuzz
@given(st.integers(0), st.integers(0, 7), st.booleans())
def test_a_checkpoint_cut_short_or_with_one_bit_changed_is_named(tmp_path, at, bit, cut):
    path = tmp_path / "checkpoint"
    write_tensors(path, {"w": torch.arange(4)}, {"state": seeds("state")[0].decode()}, checked=True)
    data = bytearray(path.read_bytes())
    at %= len(data)
    data[at] ^= 1 << bit
    path.write_bytes(data[:at] if cut else data)
    _, refusal = outcome(lambda: read_checkpoint(path), UserError)
    assert str(path) in refusal


@pytest.mark.parametrize(
    ("section", "value", "words"),
    [
        ("model", {"name": "evil:Model"}, "names code of its own to be imported, model.name evil:Model"),
        ("data", {"name": "evil:Data"}, "names code of its own to be imported, data.name evil:Data"),
        ("attack", {"name": "evil:Attack"}, "names code of its own to be imported, attack.name evil:Attack"),
        ("attack", {"name": "../../outside"}, "a plug-in's name is made of letters"),
    ],
)
def test_a_recorded_run_can_neither_import_nor_write_elsewhere(here, section, value, words):
    (here / "evil.py").write_text("import pathlib; pathlib.Path('was-imported').touch()")
    folder = here / "run" / "transcript"
    folder.mkdir(parents=True)
    tree = json.loads(seeds("meta")[0])
    tree["config"][section] = value
    transcript(folder, signed(tree))
    with pytest.raises(UserError, match=words):
        app(["attack", str(folder)], standalone_mode=False)
    assert {path.name for path in here.rglob("*")} == {"evil.py", "run", "transcript"} | {
        path.name for path in folder.iterdir()
    }


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "certs"
    make_certificates(folder, 1)
    return folder


@fuzz
@given(mutated("pem"))
def test_any_certificate(tmp_path, data):
    certificate, refusal = outcome(lambda: read_certificate(written(tmp_path, data)), UserError)
    if refusal is None:
        role_of(certificate)


@fuzz
@given(st.sampled_from(["ca.pem", "coordinator.pem", "coordinator.key"]), st.data())
def test_any_file_of_an_identity(certs, tmp_path, name, data):
    for one in ("ca.pem", "coordinator.pem", "coordinator.key"):
        written(tmp_path, (certs / one).read_bytes(), one)
    other = data.draw(st.one_of(mutated("pem"), st.just((certs / "ca.key").read_bytes()), st.binary(max_size=40)))
    written(tmp_path, other, name)
    _, refusal = outcome(lambda: load_identity(tmp_path, COORDINATOR), UserError)
    assert refusal is None or "BEGIN PRIVATE KEY" not in refusal


def test_a_config_as_long_as_the_limit_and_one_byte_longer(here):
    text = "# " + "x" * (limits.CONFIG_BYTES - 3) + "\n"
    assert "holds no keys" in outcome(lambda: load_config(written(here, text.encode())), UserError)[1]
    assert "File too large" in outcome(lambda: load_config(written(here, b"#" + text.encode())), UserError)[1]


def test_what_small_configs_say_is_read_back_the_same():
    config = small_config()
    assert parse_config(parse_yaml(config.model_dump_json()), "itself") == config
