import pickle
import re
import socket
import struct

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_sample_images

from vfl.cli.catalogue import catalogue
from vfl.datasets import Facts, datasets
from vfl.datasets.bundled import photographs
from vfl.errors import UserError
from vfl.referee.pictures import put_together
from vfl.registry import PluginSection


def load(**section):
    return datasets.build(PluginSection(**section)).load()


def test_photos_can_be_put_together_again():
    data = load(name="photos", samples=120)
    assert data.x.shape == (120, 3, 32, 32)
    assert data.classes == 2
    assert data.y.bincount().tolist() == [60, 60]
    china, flower = (put_together(mosaic, data.x) for mosaic in data.mosaics)
    assert china.shape == flower.shape == (3, 6 * 32, 10 * 32)
    # Neighbouring tiles meet without a step: the jump across a tile's border is like any other.
    jumps = (china[:, :, 1:] - china[:, :, :-1]).abs().mean((0, 1))
    at_borders = jumps[31::32].mean()
    assert at_borders < 2 * jumps.mean()
    assert (china - flower).abs().mean() > 0.1


def test_digits_and_photographs_are_those_that_scikit_learn_loads():
    source = load_digits()
    digits = load(name="digits")
    assert torch.equal(torch.cat([digits.x, digits.x_test]), torch.tensor(source.images).float().unsqueeze(1) / 16)
    assert torch.equal(torch.cat([digits.y, digits.y_test]), torch.tensor(source.target))
    for ours, theirs in zip(photographs(), load_sample_images().images, strict=True):
        assert (ours == theirs).all()


def test_digits_and_breast_cancer_have_test_samples():
    digits = load(name="digits", samples=50, test_samples=20)
    assert digits.x.shape == (50, 1, 8, 8)
    assert len(digits.x_test) == 20
    table = load(name="breast_cancer")
    assert table.x.shape == (469, 30)
    assert len(table.columns) == 30
    assert torch.allclose(table.x.mean(0), torch.zeros(30), atol=1e-4)
    assert torch.allclose(table.x.std(0, correction=0), torch.ones(30), atol=1e-4)


@pytest.mark.parametrize("shape", [(5, 6, 7), (5, 6, 7, 3), (5, 3, 6, 7)])
def test_npz_takes_images_in_the_usual_layouts(tmp_path, shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x_train=pixels, y_train=np.arange(5) % 2)
    data = load(name="npz", path=str(tmp_path / "a.npz"))
    channels = 1 if len(shape) == 3 else 3
    assert data.x.shape == (5, channels, 6, 7)
    expected = pixels[2, 3, 4] if len(shape) == 3 else pixels[2, 3, 4, 0] if shape[3] == 3 else pixels[2, 0, 3, 4]
    assert data.x[2, 0, 3, 4] == pytest.approx(expected / 255)
    assert data.x_test is None


def test_npz_table_with_x_and_y_and_ids(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(5, 3, (20, 4))
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(20) % 3, ids=np.array([f"p{i}" for i in range(20)]))
    monkeypatch.setenv("CAFE_DATA", str(tmp_path))
    data = load(name="npz", path="t.npz", samples=10)
    assert data.kind == "table"
    assert data.classes == 3
    assert data.ids[:2] == ("p0", "p1")
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(20) % 3, feature_names=np.array([b"a", b"b", b"c", b"d"]))
    assert [column.name for column in load(name="npz", path="t.npz").columns] == ["a", "b", "c", "d"]


class Boom:
    def __reduce__(self):
        return (print, ("code from a pickle ran",))


def test_npz_never_runs_pickles(tmp_path, capsys):
    np.savez(tmp_path / "evil.npz", x=np.array([Boom()], dtype=object), y=np.arange(1))
    with pytest.raises(UserError, match="without pickles"):
        load(name="npz", path=str(tmp_path / "evil.npz"))
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((3, 4))}, "has no array y"),
        ({"x": np.zeros((3, 4)), "y": np.zeros(2, int)}, "3 samples and 2 labels"),
        ({"x": np.zeros((3, 4)), "y": np.zeros(3)}, "one whole number a sample"),
        ({"x": np.full((3, 4, 4), 7.0), "y": np.zeros(3, int)}, "floats from 0 to 1"),
        ({"x": np.zeros((3, 4)), "y": np.array([0, -1, 1])}, "numbers from 0 up"),
        ({"x": np.array([["a"], ["b"]]), "y": np.arange(2)}, "must hold numbers"),
        ({"x": np.zeros((0, 4)), "y": np.zeros(0, int)}, "must hold numbers"),
        ({"x": np.float64(3), "y": np.zeros(0, int)}, "must hold numbers"),
        ({"x": np.array([[np.nan], [1.0]]), "y": np.arange(2)}, "missing or infinite values"),
        ({"x": np.eye(3), "y": np.arange(3), "x_test": np.eye(4), "y_test": np.arange(4)}, "of another shape"),
        ({"x": np.eye(3), "y": np.arange(3), "x_test": np.eye(3), "y_test": np.arange(4)}, "3 samples and 4 labels"),
        ({"x": np.eye(3), "y": np.arange(3), "feature_names": np.array(["a", "b"])}, "3 columns and 2 feature_names"),
        ({"x": np.eye(3), "y": np.arange(3), "feature_names": np.array(list("abcd"))}, "3 columns and 4 feature_names"),
        ({"x": np.eye(3), "y": np.arange(3), "feature_names": np.array([list("abc")])}, "must be a row of words"),
        ({"x": np.eye(3), "y": np.arange(3), "feature_names": np.array("abc")}, "must be a row of words"),
        ({"x": np.eye(3), "y": np.arange(3), "feature_names": np.array(list("aba"))}, r"more than once \('a' for one"),
        ({"x": np.eye(3), "y": np.arange(3), "ids": np.arange(2)}, "3 samples and 2 ids; it must have one for each"),
        ({"x": np.eye(3), "y": np.arange(3), "ids": np.arange(4)}, "3 samples and 4 ids"),
        ({"x": np.eye(3), "y": np.arange(3), "ids": np.array("p")}, r"ids in .* must be a row of words .* shape \(\)"),
        ({"x": np.eye(3), "y": np.arange(3), "ids": np.ones((3, 1), int)}, "ids in .* must be a row of words"),
        ({"x": np.eye(3), "y": np.arange(3), "ids": np.array([7, 8, 7])}, r"1 names more than once \('7' for one\)"),
        ({"x": np.zeros((3, 4, 4)), "y": np.arange(3), "ids": np.arange(2)}, "3 samples and 2 ids"),
    ],
)
def test_bad_npz_files_get_a_sentence(tmp_path, arrays, words):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(UserError, match=words):
        load(name="npz", path=str(tmp_path / "bad.npz"))


def test_files_that_are_no_archives(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    for name, words in (("text.npz", "cannot be read"), ("nowhere.npz", "there is no file")):
        with pytest.raises(UserError, match=words):
            load(name="npz", path=str(tmp_path / name))


def test_asking_for_too_much():
    with pytest.raises(UserError, match=r"data\.samples: 2000 asked for, the data set has 1500"):
        load(name="digits", samples=2000)
    with pytest.raises(UserError, match="no test samples"):
        load(name="photos", test_samples=5)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_mnist_reads_the_files_as_torchvision_lays_them_out(tmp_path, monkeypatch):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    random = np.random.default_rng(0)
    for part, count in (("train", 12), ("t10k", 7)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8) % 10))
    monkeypatch.setenv("CAFE_DATA", str(tmp_path))
    data = load(name="mnist", samples=10)
    assert data.x.shape == (10, 1, 28, 28)
    assert data.x_test.shape == (7, 1, 28, 28)
    assert data.y.tolist() == list(range(10))


def test_cifar10_reads_the_files_as_torchvision_lays_them_out(tmp_path, monkeypatch):
    import vfl.torchvision_ops  # noqa: F401
    from torchvision.datasets import CIFAR10  # isort: skip

    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3 * 32 * 32), dtype=np.uint8)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": [3, 1]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}))
    # torchvision compares the files with the checksums of the real ones, which these small ones cannot have
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: True)
    data = load(name="cifar10", path=str(tmp_path))
    assert data.x.shape == (10, 3, 32, 32)
    assert data.x_test.shape == (2, 3, 32, 32)
    assert data.x[0, 2, 1, 5] == pytest.approx(pixels[0].reshape(3, 32, 32)[2, 1, 5] / 255)


def facts_of(**section):
    return datasets.build(PluginSection(**section)).facts()


@pytest.mark.parametrize(("name", "shape"), [("mnist", (28, 28)), ("cifar10", (32, 32, 3))])
def test_the_same_names_read_an_archive_where_torchvisions_files_are_not(tmp_path, monkeypatch, name, shape):
    pixels = np.random.default_rng(0).integers(0, 256, (12, *shape), dtype=np.uint8)
    np.savez(
        tmp_path / f"{name}.npz", x_train=pixels, y_train=np.arange(12) % 4, x_test=pixels, y_test=np.arange(12) % 3
    )
    monkeypatch.setenv("CAFE_DATA", str(tmp_path))
    data = load(name=name, samples=10, test_samples=3)
    assert data.x[0, 0, 2, 3] == pytest.approx(pixels[0, 2, 3].flat[0] / 255)
    assert data.sample_shape == ((1, 28, 28) if name == "mnist" else (3, 32, 32))
    assert (len(data.x), len(data.x_test)) == (10, 3)
    assert data.classes == 10  # as torchvision's has, whichever of them occur
    assert facts_of(name=name, samples=10, test_samples=3) == Facts.of(data)


@pytest.mark.parametrize(
    ("name", "shape", "labels", "words"),
    [
        ("cifar10", (28, 28), [0, 1], "has samples of 1x28x28, and those of cifar10 are 3x32x32"),
        ("mnist", (3, 28, 28), [0, 1], "has samples of 3x28x28, and those of mnist are 1x28x28"),
        ("mnist", (784,), [0, 1], "has samples of 784, and those of mnist are 1x28x28"),
        ("mnist", (28, 28), [0, 10], "has the label 10, and those of mnist are 0 to 9"),
        ("cifar10", (32, 32, 3), [3, -1], "has the label -1; labels must be numbers from 0 up"),
    ],
)
def test_an_archive_of_something_else_is_refused_by_its_name(tmp_path, name, shape, labels, words):
    x = np.random.default_rng(0).integers(0, 256, (2, *shape), dtype=np.uint8)
    np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=np.array(labels))
    for read in (load, facts_of):
        with pytest.raises(UserError, match=rf"^data\.path: .*/{name}\.npz {words}$"):
            read(name=name, path=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "file"), [("linnaeus5", "linnaeus5"), ("yale", "yale32"), ("credit", "credit_default")]
)
def test_data_sets_that_nothing_downloads_are_archives_of_their_name(tmp_path, monkeypatch, name, file):
    rows = np.random.default_rng(0).integers(0, 256, (6, 4) if name == "credit" else (6, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / f"{file}.npz", x=rows, y=np.arange(6) % 2)
    monkeypatch.setenv("CAFE_DATA", str(tmp_path))
    data = load(name=name, samples=5)
    assert (data.kind, len(data.x)) == ("table" if name == "credit" else "image", 5)
    monkeypatch.setenv("CAFE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match=rf"there is no file .*{file}\.npz; give its path, or set CAFE_DATA"):
        load(name=name)


def test_the_list_says_where_data_sets_are_read_from():
    listed = "\n".join(catalogue(datasets, options=True))
    assert "path='linnaeus5.npz'" in listed
    assert "PosixPath" not in listed
    for name in ("mnist", "cifar10"):
        assert re.search(rf"^{name} .* or {name}\.npz below CAFE_DATA", listed, re.MULTILINE)


def test_a_data_set_that_is_not_on_disk_says_how_to_get_it(tmp_path, monkeypatch):
    for name in ("mnist", "cifar10"):
        with pytest.raises(UserError, match=rf"CAFE_DATA at a folder that has it, or {name}\.npz .*download"):
            load(name=name, path=str(tmp_path))
    monkeypatch.delenv("CAFE_DATA", raising=False)
    with pytest.raises(UserError, match=r"data\.path: is missing"):
        load(name="cifar10")


def test_a_download_that_brings_nothing_is_given_up(tmp_path, monkeypatch):
    from vfl import torchvision_ops  # noqa: F401
    from torchvision import datasets as vision  # isort: skip

    monkeypatch.setattr("vfl.limits.DOWNLOAD_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
        monkeypatch.setattr(vision.MNIST, "mirrors", [f"http://127.0.0.1:{silent.getsockname()[1]}/"])
        with pytest.raises(UserError, match="data: MNIST"):
            datasets.build(PluginSection(name="mnist", path=tmp_path, download=True, samples=10)).load()
    assert socket.getdefaulttimeout() is None
