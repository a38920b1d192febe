"""The live page in a real browser, beside real runs: what it shows, and that its buttons do what they say."""

import json
import os
import pty
import re
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

from tests.browser_support import Watched, browsing, chromium, pixels
from tests.integration.command_support import CAFE, ENVIRONMENT, nothing_left, ours, wait_for

ROUNDS = 2000
CONFIG = """
seed: 1
data: {name: digits, samples: 40, test_samples: 20}
federation: {workers: 2, batch_size: 8, rounds: HOW_MANY, label_holder: 1}
model: {name: mlp, hidden: [16]}
attack: {name: least_squares}
snapshots: 100
"""


class OnTerminal:
    """`cafe run --ui` on a terminal of its own."""

    def __init__(self, folder, rounds: int) -> None:
        self.folder, self.tag = folder / "run", str(folder)
        config = folder / "run.yaml"
        config.write_text(CONFIG.replace("HOW_MANY", str(rounds)))
        self.words = ""
        self._terminal, theirs = pty.openpty()
        command = [*CAFE, "run", str(config), "--out", str(self.folder), "--ui", "--ui-listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**ENVIRONMENT, "CAFE_TEST_TAG": self.tag},
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_for(lambda: self._url or self.process.poll() is not None)
        assert self._url, self.words
        self.url = self._url[1]

    @property
    def _url(self):
        return re.search(r"live page: (http://127\.0\.0\.1:\d+/)\r?\n", self.words)

    def _read(self) -> None:
        while True:
            try:
                said = os.read(self._terminal, 65536)
            except OSError:  # the last process on this terminal is gone
                break
            self.words += said.decode(errors="replace")

    def wait(self) -> int:
        """Wait until the command ends; return its exit code."""
        code = self.process.wait(timeout=500)
        self._reader.join(timeout=30)
        return code

    def rounds_in_journal(self) -> int:
        """The last round that the coordinator wrote down."""
        lines = [json.loads(line) for line in (self.folder / "journal.jsonl").read_text().splitlines()]
        return max((line["round"] for line in lines if line["kind"] == "round"), default=0)

    def end(self) -> None:
        """Leave nothing behind."""
        for process in ours(self.tag):
            process.kill()
        os.close(self._terminal)


@pytest.fixture(scope="module")
def browser():
    if chromium() is None:
        pytest.skip("no Chromium on this machine: install one, such as Debian's package chromium")
    with browsing() as found:
        yield found


@pytest.fixture(scope="module")
def run(browser, tmp_path_factory):
    """A run that takes its time, and stays on show when it is over."""
    found = OnTerminal(tmp_path_factory.mktemp("run"), rounds=ROUNDS)
    yield found
    found.end()


@pytest.fixture(scope="module")
def watched(browser, run):
    """The page, open from the start of the run."""
    with Watched(browser, viewport={"width": 1440, "height": 1000}) as found:
        found.page.set_default_timeout(120_000)
        found.page.goto(run.url)
        yield found


def shown(page) -> int:
    return int(page.inner_text("#round"))


def wrong(watched) -> list[str]:
    """What went wrong in a page, but for what other tests' network interfaces do to any browser's requests."""
    return [error for error in watched.errors if "ERR_NETWORK_CHANGED" not in error]


def in_state(page, state: str) -> None:
    page.wait_for_selector(f"#state[data-state={state}]")


def test_pause_stops_the_rounds(watched, run):
    page = watched.page
    in_state(page, "running")
    wait_for(lambda: shown(page) > 5)
    page.click("#pause")
    in_state(page, "paused")
    time.sleep(1)  # the round under way ends
    before = shown(page)
    assert 5 < before < ROUNDS
    time.sleep(2)  # many rounds' time
    assert shown(page) == run.rounds_in_journal() == before
    assert page.is_hidden("#pause")


def test_the_federation_is_drawn(watched):
    page = watched.page
    assert page.inner_text("#rounds") == str(ROUNDS)
    workers = page.query_selector_all("#federation .worker")
    assert [worker.get_attribute("data-state") for worker in workers] == ["joined", "joined"]
    assert [("holder" in worker.get_attribute("class")) for worker in workers] == [False, True]


def test_resume_goes_on(watched):
    page = watched.page
    before = shown(page)
    page.click("#resume")
    in_state(page, "running")
    page.wait_for_selector("#federation .dot")  # a message under way
    wait_for(lambda: shown(page) > before + 5)
    wait_for(lambda: "left" in page.inner_text("#pace"))


def test_in_the_end_the_numbers_are_those_of_the_summary(watched, run):
    page = watched.page
    in_state(page, "done")
    summary = json.loads((run.folder / "summary.json").read_text())
    attack = summary["attack"]
    assert shown(page) == summary["rounds"] == ROUNDS
    assert page.inner_text("#loss") == f"{summary['train']['loss_last']:.4f}"
    assert page.inner_text("#accuracy") == f"test accuracy {summary['train']['test_accuracy']:.1%}"
    rebuilt = round(attack["share_30db"] * 40)
    assert page.inner_text("#verdict").startswith(f"The coordinator rebuilt {rebuilt} of 40 images")
    assert page.inner_text("#level").lower() in ("leaked", "partly leaked", "no more than a guess")
    assert page.inner_text("#basis").startswith("Against `")
    names, values = (page.locator(f"#scores {part}").all_inner_texts() for part in ("dt", "dd"))
    scores = dict(zip(names, values, strict=True))
    assert scores == {
        "rounds": str(ROUNDS),
        "seconds in all": f"{summary['seconds']['total']:.1f}",
        "PSNR, mean": f"{attack['psnr_mean']:.1f} dB",
        "median": f"{attack['psnr_median']:.1f} dB",
        "worst": f"{attack['psnr_min']:.1f} dB",
        "guessing the mean image": f"{attack['psnr_baseline']:.1f} dB",
        "PSNR of slices": f"{attack['psnr_slices']:.1f} dB",
        "MSE, mean": re.sub(r"e([+-])0", r"e\1", f"{attack['mse_mean']:.1e}"),
        "SSIM, mean": f"{attack['ssim_mean']:.4f}",
        "SSIM of the mean image": f"{attack['ssim_baseline']:.4f}",
        "30 dB or better": f"{attack['share_30db']:.1%}",
    }
    assert page.is_hidden("#controls")


def test_real_and_rebuilt_images_stand_side_by_side(watched, run):
    page = watched.page
    widths = "[...new Set([...document.querySelectorAll('#pictures img')].map((one) => one.naturalWidth))]"
    wait_for(lambda: page.evaluate(widths) == [8])
    figures = page.query_selector_all("#pictures figure")
    assert len(figures) == 24
    with np.load(run.folder / "recovered.npz") as arrays:
        chosen = np.linspace(0, 39, 24).round().astype(int)
        expected = [[arrays[key][sample, 0] for key in ("x_true", "x")] for sample in chosen]
    for figure, pair in zip(figures[:3], expected, strict=False):
        for image, values in zip(figure.query_selector_all("img"), pair, strict=True):
            painted = pixels(image)[:, :, 0]
            assert painted.std() > 20
            rows, columns = (((np.arange(8) + 0.5) * length / 8).astype(int) for length in painted.shape)
            middles = painted[np.ix_(rows, columns)]
            assert np.corrcoef(middles.ravel(), values.clip(0, 1).ravel())[0, 1] > 0.9


def test_what_else_the_folder_has_can_be_opened(watched, run):
    links = {link.inner_text(): link.get_attribute("href") for link in watched.page.query_selector_all("#links a")}
    assert links["All numbers (summary.json)"] == "/files/summary.json"
    answer = watched.context.request.get(run.url + "files/summary.json")
    assert answer.text() == (run.folder / "summary.json").read_text()
    with watched.context.expect_page() as opened:
        watched.page.click("#links a:has-text('The whole report')")
    report = opened.value
    report.wait_for_load_state()
    assert "The coordinator rebuilt" in report.inner_text("body")
    report.close()


@pytest.mark.parametrize("width", [375, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phones_and_screens_by_day_and_by_night(browser, run, width, scheme):
    with Watched(browser, viewport={"width": width, "height": 900}, color_scheme=scheme) as found:
        found.page.goto(run.url)
        in_state(found.page, "done")
        found.page.wait_for_selector("#loss-chart canvas")
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        corner = pixels(found.page)[2, 2]
        assert (corner.mean() < 60) == (scheme == "dark")
        assert found.page.query_selector("#federation .coordinator").is_visible()
        assert wrong(found) == []


def test_nothing_was_asked_of_any_other_machine_and_nothing_went_wrong(watched, run):
    assert len(watched.asked) > 20
    assert [url for url in watched.asked if not url.startswith(run.url)] == []
    assert wrong(watched) == []


def test_on_a_terminal_the_page_stays_until_ctrl_c(watched, run):
    wait_for(lambda: "until Ctrl-C" in run.words)
    os.kill(run.process.pid, signal.SIGINT)
    watched.page.wait_for_selector("#notice:has-text('no longer served')")
    assert run.wait() == 0, run.words
    assert nothing_left(run.tag)


def test_stop_asks_first_and_keeps_what_is_done(browser, tmp_path):
    run = OnTerminal(tmp_path, rounds=1_000_000)
    try:
        with Watched(browser, viewport={"width": 375, "height": 800}, reduced_motion="reduce") as found:
            page = found.page
            page.set_default_timeout(120_000)
            page.goto(run.url)
            in_state(page, "running")
            wait_for(lambda: shown(page) > 20)
            assert page.query_selector("#federation .dot") is None  # nothing moves for who does not want it
            page.click("#stop")
            page.click("#go-on")
            before = shown(page)
            wait_for(lambda: shown(page) > before + 20)
            page.click("#stop")
            page.click("#really-stop")
            in_state(page, "failed")
            assert page.inner_text("#verdict") == "The run ended early: stopped before the end."
            assert wrong(found) == []
        assert run.wait() == 130
        assert f"cafe: stopped; what was done by then is in {run.folder}" in " ".join(run.words.split())
        summary = json.loads((run.folder / "summary.json").read_text())
        assert summary["ended"] == "stopped before the end"
        assert summary["rounds"] > before
        assert (run.folder / "model.pt").exists()
        assert nothing_left(run.tag)
    finally:
        run.end()
