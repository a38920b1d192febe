import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from vfl.datasets import datasets
from vfl.datasets.slices import digest
from vfl.errors import UserError
from vfl.registry import PluginSection


def load(**section):
    return datasets.build(PluginSection(name="images", **section)).load()


@pytest.fixture
def folder(tmp_path):
    for kind, colour in (("apples", (255, 0, 0)), ("blåbär", (0, 0, 255))):
        (tmp_path / kind).mkdir()
        for number, size in enumerate([(40, 20), (16, 16), (9, 31)]):
            Image.new("RGB", size, colour).save(tmp_path / kind / f"{number}.{'png' if number else 'jpg'}")
    (tmp_path / "apples" / "notes.txt").write_text("no picture")
    return tmp_path


def test_pictures_of_any_size_are_made_alike_and_classes_take_turns(folder):
    data = load(path=str(folder), size=12)
    assert data.x.shape == (6, 3, 12, 12)
    assert data.class_names == ("apples", "blåbär")
    assert data.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert data.ids[1] == "blåbär/0.jpg"
    assert torch.allclose(data.x[2, :, 5, 5], torch.tensor([1.0, 0.0, 0.0]))
    assert load(path=str(folder), size=12, samples=2).y.tolist() == [0, 1]


def test_a_file_name_that_is_not_utf_8_names_its_picture(folder):
    apples = folder / "apples"
    (apples / "1.png").rename(apples / os.fsdecode(b"gr\xfcn.png"))
    ids = load(path=str(folder), size=12).ids
    assert os.fsencode(ids[-2]) == b"apples/gr\xfcn.png"
    assert digest(ids) != digest([one.replace("\udcfc", "\udcfd") for one in ids])


def test_greyscale_and_rectangles(folder):
    data = load(path=str(folder), size=[8, 14], colour=False)
    assert data.x.shape == (6, 1, 8, 14)
    assert data.x[2].mean() == pytest.approx(76 / 255, abs=0.01)  # red's luminance


def test_resize_keeps_the_whole_picture_and_crop_its_middle(folder):
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(folder / "apples" / "0.jpg", quality=100)
    resized, cropped = (load(path=str(folder), size=10, fit=fit, samples=1).x[0] for fit in ("resize", "crop"))
    assert resized[:, :, 0].mean() < 0.1
    assert cropped[:, 2:8, 2:8].mean() > 0.95
    assert resized.mean() == pytest.approx(1 / 3, abs=0.05)


def test_train_and_test_folders(folder):
    for part in ("train", "test"):
        for kind in ("apples", "blåbär"):
            (folder / "both" / part / kind).mkdir(parents=True)
            Image.new("L", (5, 5), 128).save(folder / "both" / part / kind / "one.png")
    data = load(path=str(folder / "both"), size=4)
    assert data.x.shape == data.x_test.shape == (2, 3, 4, 4)


def test_files_and_folders_that_begin_with_a_point_are_no_pictures(folder):
    whole = load(path=str(folder), size=4).ids
    (folder / "apples" / "._1.png").write_bytes(b"\x00\x05\x16\x07")
    (folder / "apples" / ".thumbs").mkdir()
    (folder / "apples" / ".thumbs" / "1.png").write_text("no picture")
    (folder / ".git").mkdir()
    assert load(path=str(folder), size=4).ids == whole


@pytest.mark.parametrize("parts", [("test", "val"), ("Train", "Test"), ("val",)])
def test_parts_of_a_set_are_no_classes(folder, parts):
    for part in parts:
        shutil.copytree(folder / "apples", folder / "cut" / part / "apples")
    told = f"has {' and '.join(sorted(parts))}, which are no classes, and no train; call the folder"
    with pytest.raises(UserError, match=told):
        load(path=str(folder / "cut"), size=4)
    shutil.copytree(folder / "apples", folder / "cut" / "control")
    assert load(path=str(folder / "cut"), size=4).class_names == tuple(sorted([*parts, "control"]))  # a class is


RAMP = np.linspace(0, 1, 64).reshape(8, 8)


@pytest.mark.parametrize(
    ("name", "pixels"),
    [
        ("deep.png", np.rint(RAMP * 65535).astype(np.uint16)),
        ("deep.tif", np.rint(RAMP * 65535).astype(np.uint16)),
        ("big_endian.tif", np.rint(RAMP * 65535).astype(">u2")),
        ("deep.pgm", np.rint(RAMP * 65535).astype(np.uint16)),
        ("floating.tif", RAMP.astype(np.float32)),
    ],
)
def test_deep_pictures_keep_their_greys(folder, name, pixels):
    (folder / "apples" / "0.jpg").unlink()
    Image.fromarray(pixels).save(folder / "apples" / f"0_{name}")
    for colour in (True, False):
        found = load(path=str(folder), size=8, samples=1, colour=colour)
        assert found.ids == (f"apples/0_{name}",)
        assert torch.allclose(found.x[0, -1], torch.tensor(RAMP, dtype=torch.float32), atol=0.5 / 255 + 1e-6)


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (np.arange(64, dtype=np.int32).reshape(8, 8) * 1000, "whole numbers of 32 bits as pixels"),
        (RAMP.astype(np.float32) * 300, "has pixels from 0 to 300; floating-point pixels are read from 0, black"),
        (np.full((8, 8), np.nan, dtype=np.float32), "has pixels from nan to nan"),
    ],
)
def test_pictures_whose_white_is_unknown_get_a_sentence(folder, pixels, words):
    Image.fromarray(pixels).save(folder / "apples" / "00.tif")
    with pytest.raises(UserError, match=rf"apples/00\.tif.* {words}"):
        load(path=str(folder), size=8)


@pytest.mark.parametrize("size", [0, -3, 5000, [8, 0], [100_000, 8]])
def test_a_size_that_no_sample_has_gets_a_sentence(folder, size):
    with pytest.raises(UserError, match=r"^data\.size: a side has 1 to 4096 pixels \(got "):
        load(path=str(folder), size=size)


def test_sentences_show_no_control_characters_of_a_files_name(folder):
    (folder / "apples" / "\x1b[31m.png").write_text("hello")
    with pytest.raises(UserError, match=r"apples/ \[31m\.png cannot be read") as caught:
        load(path=str(folder))
    assert "\x1b" not in str(caught.value)


def test_broken_pictures_and_folders_get_a_sentence(folder, tmp_path):
    whole = (folder / "apples" / "1.png").read_bytes()
    (folder / "apples" / "1.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"apples/1\.png cannot be read as a picture"):
        load(path=str(folder))
    (folder / "apples" / "1.png").write_text("hello")
    with pytest.raises(UserError, match=r"apples/1\.png cannot be read as a picture"):
        load(path=str(folder))
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="empty has no pictures"):
        load(path=str(folder))
    with pytest.raises(UserError, match="has 0 folders; two or more are needed"):
        load(path=str(folder / "apples"))
    with pytest.raises(UserError, match="there is no folder"):
        load(path=str(tmp_path / "nowhere"))
