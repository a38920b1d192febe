"""Whatever is on disk: each reader takes what is right and refuses the rest with a sentence; nothing is ever run."""

import io
import json
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.support import CORPUS, abouts, fuzz, little_memory, mutated, outcome, seeds, written
from tests.support import small_config
from vfl import limits
from vfl.config import RunConfig, load_config, parse_config
from vfl.datasets.npz import Npz
from vfl.datasets.slices import WorkerData
from vfl.errors import UserError
from vfl.files import archive, read_bounded
from vfl.files.yaml_text import YamlError, parse_yaml
from vfl.folder.summary import load_summary
from vfl.net.certs import make_certificates
from vfl.net.tls import COORDINATOR, load_identity, read_certificate, role_of
from vfl.ui.watch import load_gallery
from worker.keys import read_key


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
    loaded, refusal = outcome(lambda: Npz(path=path).load(), UserError)
    assert refusal or bool(torch.isfinite(loaded.x).all())
    assert list(tmp_path.iterdir()) == [path]


@fuzz
@given(mutated("npz"))
@example((CORPUS / "npz" / "estimate").read_bytes())
def test_any_estimate_that_a_page_shows(tmp_path, data):
    written(tmp_path, data, "recovered.npz")
    gallery = load_gallery(tmp_path, "recovered.npz")
    assert gallery is None or gallery.recovered[0].startswith(b"\x89PNG")


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
    held, refusal = outcome(lambda: WorkerData.load(written(tmp_path, data)), UserError)
    assert refusal or held.box.problem() is None


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


@pytest.mark.parametrize("way", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_an_archive_in_another_compression_is_refused_before_it_is_unpacked(here, way):
    path = here / "bomb.npz"
    with zipfile.ZipFile(path, "w", compression=way) as made, made.open("x.npy", "w") as file:
        for _ in range(256):
            file.write(bytes(1 << 20))
    path.write_bytes(path.read_bytes().replace((256 << 20).to_bytes(4, "little"), (1000).to_bytes(4, "little")))
    with little_memory():
        _, refusal = outcome(lambda: archive.read_shapes(path, ["x"]), archive.ArchiveError)
    assert "only deflate is read" in refusal


def test_a_summary_that_nests_for_ever_or_has_no_end_is_refused(here):
    for make in (lambda path: path.write_text("[" * 100_000), lambda path: path.symlink_to("/dev/zero")):
        path = here / "summary.json"
        path.unlink(missing_ok=True)
        make(path)
        with little_memory():
            _, refusal = outcome(lambda: load_summary(here), UserError)
        assert "summary.json cannot be read" in refusal
