"""The live page in a real browser, for every seat: whose node is marked, what reaches the attack, what came of it."""

import pytest

from tests.browser_support import Watched, browsing, chromium
from tests.vfl.ui.folder_support import ROUNDS, SAMPLES, Served, begin, estimate
from vfl.config import parse_config
from vfl.datasets.slices import load_data
from vfl.folder.journal import Journal
from vfl.local.simulation import simulate


@pytest.fixture(scope="module")
def browser():
    if chromium() is None:
        pytest.skip("no Chromium on this machine: install one, such as Debian's package chromium")
    with browsing() as found:
        yield found


def seen(browser, folder, wait="#curious li"):
    """What the page of a folder says of who is curious."""
    served = Served(folder)
    try:
        with Watched(browser) as watched:
            page = watched.page
            page.goto(served.origin)
            page.wait_for_selector(wait)
            texts = {name: page.inner_text(f"#{name}") for name in ("pictures-title", "step", "known", "known-of")}
            curious = page.locator("#federation .curious text:not(.note)").all_text_contents()
            said = page.locator("#curious li").all_inner_texts()
            links = [page.locator(f"#federation .link{kind}").count() for kind in (".seen", ".seen.between")]
            names, values = (page.locator(f"#scores {part}").all_inner_texts() for part in ("dt", "dd"))
            scores = dict(zip(names, values, strict=True))
            assert watched.errors == []
    finally:
        served.end()
    return texts, curious, said, links, scores


SEATS = {
    "worker": ({"worker": 2}, ["2"], [1, 1], "worker 2 has"),
    "label holder": ("label_holder", ["1"], [2, 2], "the label holder has"),
    "coalition": (["coordinator", {"worker": 2}], ["coordinator", "2"], [4, 1], "the coordinator and worker 2 have"),
    "malicious": ({"coordinator": "malicious"}, ["coordinator"], [3, 0], "the malicious coordinator has"),
    "malicious label holder": ({"label_holder": "malicious"}, ["1"], [2, 2], "the malicious label holder has"),
    "malicious worker": ({"worker": 2, "malicious": True}, ["2"], [1, 1], "malicious worker 2 has"),
}
SAID = {
    "worker": ["Worker 2 is curious: it sees the answers to its own outputs"],
    "label holder": ["The label holder is curious: it sees every worker's outputs"],
    "coalition": [
        "The coordinator is curious: it sees every worker's gradients",
        "Worker 2 is curious: it sees the answers to its own outputs",
    ],
    "malicious": ["The malicious coordinator orders what its attack proposes, and sees every worker's gradients"],
    "malicious label holder": [
        "The malicious label holder answers what its attack proposes, and sees every worker's outputs"
    ],
    "malicious worker": [
        "Malicious worker 2 uploads what its attack proposes, and sees the answers to its own outputs"
    ],
}


@pytest.mark.parametrize("seat", SEATS)
def test_the_curious_are_marked_with_what_reaches_them(browser, tmp_path, seat):
    adversary, curious, links, title = SEATS[seat]
    journal = begin(tmp_path / "run", adversary=adversary, attack={"name": "least_squares"})
    estimate(journal, tmp_path / "run", 2)
    journal.close()
    texts, *found, _ = seen(browser, tmp_path / "run")
    assert found == [curious, SAID[seat], links]
    assert texts["pictures-title"] == f"What {title} rebuilt"
    assert texts["step"] == f"{title.replace(' has', ' watches').replace(' have', ' watch')} the rounds"
    assert (texts["known"], texts["known-of"]) == ("12.5", "dB mean PSNR")


def test_labels_that_a_worker_found_are_the_number_of_the_page(browser, tmp_path):
    tree = {
        "seed": 3,
        "data": {"name": "digits", "samples": SAMPLES},
        "federation": {"workers": 3, "batch_size": 15, "epochs": 1},
        "model": {"name": "mlp", "hidden": [16]},
        "training": {"optimizer": "adam", "lr": 0.001},
        "adversary": {"worker": 2},
        "attack": {"name": "label_clusters"},
    }
    config = parse_config(tree, "the test")
    simulate(config, load_data(config), tmp_path / "run")
    journal = Journal(tmp_path / "run")
    journal.run(config, SAMPLES, ROUNDS)
    journal.finish()
    texts, curious, _, _, scores = seen(browser, tmp_path / "run", "#result:not([hidden])")
    assert curious == ["2"]
    assert texts["known-of"] == "of labels right"
    assert scores["labels right, up to names"] == texts["known"]
    assert float(scores["guessing labels"].rstrip("%")) < float(texts["known"].rstrip("%"))
    assert texts["step"].startswith("label_clusters by worker 2, ")
