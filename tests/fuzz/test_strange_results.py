"""A stranger's run folder: pictures and arrays are bounded together, no link is followed, no table has a formula."""

import csv
import json
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image

from tests.fuzz.folder_support import soon
from tests.fuzz.support import little_memory
from vfl.errors import UserError
from vfl.files.tensor_file import DamagedError, read_tensors
from vfl.folder.journal import NAME, Tail
from vfl.folder.summary import load_summary
from vfl.limits import PICTURE_PIXELS, PICTURES
from vfl.report.export import export_csv
from vfl.report.folder import read_run
from vfl.report.images import Album
from vfl.report.main import write_report
from vfl.ui.watch import load_gallery

MB = 1 << 20


def test_many_large_pictures_take_little_memory_and_time(run):
    Image.new("L", (7000, 7000)).save(run / "photograph_00.png")
    for number in range(1, 20):
        shutil.copy(run / "photograph_00.png", run / f"photograph_{number:02d}.png")
    write_report(run)  # what is imported and cached on the way is not counted
    with little_memory(64 * MB), soon():
        write_report(run)


def test_pictures_share_their_pixels(run):
    side = int((PICTURE_PIXELS / 3) ** 0.5)
    for number in range(5):
        Image.new("L", (side, side)).save(run / f"photograph_{number}.png")
    assert len(Album(read_run(run)).photographs()) == 3


def test_no_more_pictures_are_shown_than_a_run_has(run):
    for number in range(2 * PICTURES):
        Image.new("L", (8, 8)).save(run / f"photograph_{number:02d}.png")
    assert len(Album(read_run(run)).photographs()) == PICTURES


def test_an_archive_that_unpacks_to_far_more_than_it_has_is_not_unpacked(run):
    with (
        zipfile.ZipFile(run / "recovered.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (6, 1, 2048, 2048)}
        )
        for _ in range(6):
            file.write(bytes(2048 * 2048 * 4))
    with little_memory(32 * MB), soon():
        page = write_report(run).read_text()
    assert "packed, and no run packs them" in page
    assert load_gallery(run, "recovered.npz") is None


def test_arrays_are_bounded_by_the_memory_that_is_free(run, monkeypatch):
    class Free:
        available = 1000

    monkeypatch.setattr("psutil.virtual_memory", lambda: Free)
    assert "the limit is 166" in write_report(run).read_text()


def test_one_sample_has_no_more_pixels_than_can_be_drawn(run):
    np.savez(run / "recovered.npz", x=np.zeros((1, 1, 3000, 3000), np.float32))
    assert "samples of 9000000 numbers" in write_report(run).read_text()
    assert load_gallery(run, "recovered.npz") is None


@pytest.mark.parametrize("name", ["recovered.npz", "photograph_a.png"])
def test_results_are_not_read_through_a_link(run, tmp_path, name):
    secret = tmp_path / name
    if name == "recovered.npz":
        (run / name).rename(secret)
    else:
        Image.new("L", (8, 8)).save(secret)
    write_report(run)
    before = (run / "report.html").read_text()
    (run / name).symlink_to(secret)
    page = write_report(run).read_text()
    assert ("a link, which is not followed" in page) == (name == "recovered.npz")
    assert page.count("data:image/png") == before.count("data:image/png")
    assert load_gallery(run, "recovered.npz" if name == "recovered.npz" else "snapshots/x.npz") is None


def test_summaries_journals_and_rounds_are_not_read_through_a_link(run, tmp_path):
    for name in ("summary.json", NAME):
        if not (run / name).exists():
            (run / name).write_text('{"t": 1, "kind": "say"}\n')
        (run / name).rename(tmp_path / name)
        (run / name).symlink_to(tmp_path / name)
    with pytest.raises(UserError, match="a link, which is not followed"):
        load_summary(run)
    assert Tail(run, from_start=True).read() == []
    (run / "round.safetensors").symlink_to(tmp_path / "summary.json")
    with pytest.raises((DamagedError, OSError), match="a link, which is not followed"):
        read_tensors(run / "round.safetensors", checked=True)
    (run / "snapshots").symlink_to(tmp_path)
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 1, 4, 4), np.float32))
    assert load_gallery(run, "snapshots/x.npz") is None


def test_tables_have_known_keys_alone_and_no_formulas(run):
    tree = json.loads((run / "summary.json").read_text())
    strange = {"=cmd|' /C calc'!A0": 1.0, "+1": 2, "-2": 3, "@sum": 4, "\tx": 5, "unknown": 6, "": 7}
    tree |= strange
    tree["attack"] |= strange
    tree["withheld"] = {"0": 3, **strange}
    (run / "summary.json").write_text(json.dumps(tree))
    cells = []
    for path in export_csv(run, run / "csv"):
        with path.open(newline="") as file:
            cells += [cell for row in csv.reader(file) for cell in row]
    names = {cell for cell in cells if not _is_number(cell)}
    assert {"withheld.0", "withheld.unknown", "rounds"} <= names
    assert not any(cell.startswith(("=", "+", "-", "@", "\t")) for cell in names)
    assert "attack.unknown" not in names
    assert "unknown" not in names


def _is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return True
