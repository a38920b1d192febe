"""The report of a real run in a real browser: what people see on a desk, on a phone, in the dark and on paper."""

import http.server
import re
import threading

import numpy as np
import pytest

from tests.browser_support import Watched, browsing, chromium, pixels
from tests.integration.command_support import cafe
from vfl.config import load_config
from vfl.folder.schema import as_json
from vfl.folder.summary import load_summary

CONFIG = """
seed: 2
data: {name: photos, samples: 24, tile: 8}
federation: {workers: 2, batch_size: 4, epochs: 10}
model: {name: mlp, hidden: [16]}
attack: {name: least_squares}
snapshots: 20
transcript: true
"""
BROKEN = """
from attacker.interface import AttackPlugin

class Broken(AttackPlugin):
    def start(self, setting):
        return self
    def observe(self, observation):
        pass
    def recover(self, progress):
        raise KeyError("a bug")
"""
VIEWS = [(width, scheme) for width in (375, 1440) for scheme in ("light", "dark")]
PICTURES = """() => [...document.images].map(image => {
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
  const brush = canvas.getContext("2d");
  brush.drawImage(image, 0, 0);
  const values = [...brush.getImageData(0, 0, canvas.width, canvas.height).data];
  return {alt: image.alt, width: image.naturalWidth, height: image.naturalHeight, values};
})"""
COLOURS = """() => ["--ink", "--muted", "--link", "--one", "--page", "--card"].map(name =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim())"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run, as a person starts it."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "run.yaml").write_text(CONFIG)
    done = cafe("run", folder / "run.yaml", "--out", folder / "out", "--quiet")
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def browser():
    if chromium() is None:
        pytest.skip("no Chromium on this machine: install one, such as Debian's package chromium")
    with browsing() as started:
        yield started


@pytest.fixture
def page(browser, run):
    with Watched(browser, viewport={"width": 1440, "height": 900}) as watched:
        watched.page.goto((run / "report.html").as_uri())
        yield watched.page


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colours such as #14181f."""

    def luminance(colour: str) -> float:
        parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_it_fits_is_readable_and_asks_for_nothing(browser, run, width, scheme):
    with Watched(browser, viewport={"width": width, "height": 800}, color_scheme=scheme) as watched:
        watched.page.goto((run / "report.html").as_uri())
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
        assert "The coordinator rebuilt" in watched.page.inner_text("h1")
        ink, muted, link, one, background, card = watched.page.evaluate(COLOURS)
        assert min(contrast(text, under) for text in (ink, muted, link) for under in (background, card)) >= 4.5
        assert contrast(one, card) >= 3
        painted = pixels(watched.page)
        corner = painted[5, 5]
        assert corner.min() > 200 if scheme == "light" else corner.max() < 60
        assert painted.std() > 10
        plot = pixels(watched.page.query_selector("svg.plot"))
        assert plot.std() > 5
        assert watched.errors == []
        assert all(address.startswith(("file:", "data:")) for address in watched.asked)


def test_every_picture_is_there_and_is_what_was_recovered(page, run):
    found = page.evaluate(PICTURES)
    assert all(picture["alt"] for picture in found)
    assert all(picture["width"] > 0 for picture in found)
    with np.load(run / "recovered.npz") as arrays:
        x, truth = arrays["x"], arrays["x_true"]
    seen = set()
    for picture in found:
        name = re.match(r"Sample (\d+), (rebuilt|real)", picture["alt"])
        if name:
            image = (x if name[2] == "rebuilt" else truth)[int(name[1])]
            expected = np.round(image.clip(0, 1) * 255).transpose(1, 2, 0)
            shown = np.array(picture["values"]).reshape(picture["height"], picture["width"], 4)[..., :3]
            assert np.array_equal(shown, expected)
            assert shown.std() > 0
            seen.add((name[2], int(name[1])))
    assert {sample for kind, sample in seen if kind == "rebuilt"} == set(range(24))
    photographs = [picture for picture in found if picture["alt"].startswith("The photograph")]
    assert [picture["alt"].split(":")[0] for picture in photographs] == [
        "The photograph china",
        "The photograph flower",
    ]
    assert all(np.std(picture["values"]) > 20 for picture in photographs)


def test_the_numbers_are_those_of_the_summary(page, run):
    summary = as_json(load_summary(run))
    shown = page.eval_on_selector_all("data", "all => all.map(one => [one.dataset.key, one.value, one.innerText])")
    assert {"attack.psnr_mean", "attack.ssim_mean", "attack.psnr_baseline", "seconds.total"} <= {
        key for key, *_ in shown
    }
    for key, value, text in shown:
        tree = summary
        for part in key.split("."):
            tree = tree[part]
        assert float(value) == tree
        digits = re.sub(r"[^\d.]", "", text)
        if key.startswith("attack.psnr"):
            assert float(digits) == pytest.approx(tree, abs=0.05)
    points = [step["psnr_mean"] for step in summary["attack"]["over_rounds"]]
    label = page.get_attribute("svg[aria-label^='PSNR over the rounds']", "aria-label")
    assert label.endswith(f"{points[-1]:.1f} after round {summary['attack']['over_rounds'][-1]['round']}.")


def test_it_can_ask_for_nothing_even_if_it_wanted_to(page):
    asked = []

    class Noting(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Noting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        blocked = page.evaluate(
            """address => new Promise(done => {
              const image = new Image(); image.onload = () => done("loaded"); image.onerror = () => done("blocked");
              image.src = address + "image"; })""",
            address,
        )
        fetched = page.evaluate("address => fetch(address).then(() => 'loaded', () => 'blocked')", address)
        server.shutdown()
    assert (blocked, fetched, asked) == ("blocked", "blocked", [])


def test_a_keyboard_gets_everywhere(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    whole = page.locator("details", has_text="The whole config")
    whole.locator("summary").focus()
    page.keyboard.press("Enter")
    assert whole.locator("pre").is_visible()
    assert "tile: 8" in whole.inner_text()


def test_it_prints_on_white_paper_without_the_links_to_its_parts(page):
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.is_visible("nav")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    paper = page.pdf(format="A4", print_background=True)
    assert paper.startswith(b"%PDF")
    assert len(paper) > 50_000


def test_its_config_is_the_whole_config_of_the_run(page, run, tmp_path):
    with page.expect_download() as download:
        page.click("a[download='run.yaml']")
    download.value.save_as(tmp_path / "run.yaml")
    assert load_config(tmp_path / "run.yaml") == load_config(run.parent / "run.yaml")


def test_an_attack_on_a_transcript_and_the_command_itself_write_one_too(run, tmp_path):
    again = cafe("attack", run / "transcript", "--out", tmp_path / "again", "--no-score", "--quiet")
    assert again.returncode == 0, again.stderr
    assert "is not scored" in (tmp_path / "again/report.html").read_text(encoding="utf-8")
    before = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    written = cafe("report", run)
    assert (written.returncode, written.stdout) == (0, f"{run / 'report.html'}\n")
    assert (run / "report.html").read_bytes() == before


def test_a_run_that_fails_has_a_report_that_says_so(tmp_path):
    (tmp_path / "broken_attack.py").write_text(BROKEN)
    (tmp_path / "run.yaml").write_text(CONFIG.replace("least_squares", "broken_attack:Broken"))
    done = cafe("run", "run.yaml", "--out", "out", "--quiet", cwd=tmp_path)
    assert done.returncode == 1
    text = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "This run did not come to its end:" in text
    assert "KeyError" in text
