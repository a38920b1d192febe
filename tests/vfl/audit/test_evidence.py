"""What an audit shows side by side."""

from types import SimpleNamespace

import numpy as np
import torch

from tests.vfl.audit.made import attempt, finding, made_audit
from vfl.audit import evidence
from vfl.audit.document import chapters
from vfl.audit.document.page import audit_page
from vfl.audit.document.pdf import write_pdf
from vfl.audit.judgement import conclude
from vfl.datasets import Data
from vfl.seats import COORDINATOR


def test_five_images_are_shown_real_and_rebuilt_beside_what_a_guess_has(tmp_path, monkeypatch):
    truth = np.random.default_rng(0).uniform(size=(7, 1, 8, 8)).astype(np.float32)
    found = truth.copy()
    found[1] = 0.5
    summary = SimpleNamespace(attack=SimpleNamespace(psnr_baseline=11.6))
    monkeypatch.setattr(evidence, "load_summary", lambda _folder: summary)
    monkeypatch.setattr(evidence, "_arrays", lambda _folder: {"x": found, "x_true": truth})
    data = Data("image", torch.tensor(truth), torch.arange(7) % 2, 2, tuple(map(str, range(7))))
    images = attempt(finding(what="images", target="workers 0 and 1"))
    shown = evidence.Evidence(data, None).shown(tmp_path, [images])
    audit = conclude(made_audit(images, **shown), [(COORDINATOR,)])
    (rows,) = (one for one in chapters(audit) if one.key == "rows")
    lines = rows.blocks[0].lines
    assert rows.blocks[0].title == "the coordinator, by exact (guessing the mean image has 11.6 dB)"
    assert [(line[0].text, line[1].picture == line[2].picture) for line in lines] == [
        ("0", True), ("1", False), ("2", True), ("3", True), ("4", True)
    ]  # fmt: skip
    assert lines[0][3].text == "100.0 dB"
    assert float(lines[1][3].text.removesuffix(" dB")) < 15
    assert f'<img src="{lines[1][2].picture}" alt="1, rebuilt">' in audit_page(audit)
    write_pdf(tmp_path, audit)
    assert (tmp_path / "audit.pdf").read_bytes().count(b"/Subtype /Image") >= 2
