"""The pages: every link leads somewhere, every block of Python or YAML can be read, and none is left out."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from attacker.interface import attacks
from tests.browser_support import Watched, browsing, chromium
from worker.defences import defences

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WIDE = 120


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    found = set(re.findall(r'<a id="([^"]*)">', page.read_text()))
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page):
    lost = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            lost.append(target)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_can_be_read_in_an_editor_too(page):
    """Tables and pictures aside."""
    lines = FENCE.sub("", page.read_text()).splitlines()
    assert [line for line in lines if len(line) > WIDE and not line.lstrip().startswith(("|", "!["))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_of_a_page_can_be_read(page):
    for language, block in FENCE.findall(page.read_text()):
        if language == "python":
            ast.parse(block)
        elif language == "yaml":
            keys = re.findall(r"^[a-z]+(?=:)", block, re.MULTILINE)
            several = len(keys) != len(set(keys))  # ways to say one thing, one a line
            for part in block.splitlines() if several else [block]:
                yaml.safe_load(part)


def test_the_sites_contents_have_every_page_once():
    nav = re.search(r"^nav:\n(.*)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE | re.DOTALL)
    assert nav is not None
    named = re.findall(r"- ([\w/]+\.md)$", nav[1], re.MULTILINE)
    made = {"reference/cli.md", "reference/config.md", "reference/python.md"}
    top = {name for name in named if (ROOT / name).exists()}
    assert len(named) == len(set(named))
    assert set(named) - made - top == {path.name for path in (ROOT / "docs").glob("*.md")}


def test_the_first_page_leads_to_every_other():
    index = ROOT / "docs" / "index.md"
    linked = {target.partition("#")[0] for target in LINK.findall(index.read_text())}
    assert {path.name for path in index.parent.glob("*.md")} - linked == {"index.md", "release.md"}


def test_the_page_for_choosing_has_every_attack_and_defence():
    page = (ROOT / "docs" / "choose.md").read_text()
    names = {*attacks.builtin_names(), *defences.builtin_names()} - {"none"}
    assert {name for name in names if f"`{name}`" not in page} == set()
    assert [
        path for path in re.findall(r"`((?:configs|experiments)/[\w./]+)`", page) if not (ROOT / path).exists()
    ] == []


def test_the_page_of_seats_leads_to_the_limits_of_every_attack():
    section = (ROOT / "docs" / "seats.md").read_text().split("## Every attack\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    named = [name for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(named) == sorted(set(attacks.builtin_names()) - {"none"})
    assert all(re.search(r"\[(limits|what breaks it)\]\([\w.]*#", line) for line in lines)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_asks_nothing_of_other_sites(site):
    assert (site / "reference" / "cli.html").exists()
    outside = re.compile(r'<(?:script|img|iframe|link rel="(?:stylesheet|preconnect)")[^>]*(?:src|href)="https?:')
    assert [path.name for path in site.rglob("*.html") if outside.search(path.read_text())] == []


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_site_opened_from_its_folder_fits_a_phone_and_can_be_searched(site, scheme):
    paths = sorted(path for path in site.rglob("*.html") if path.name != "404.html" and "source" not in path.parts)
    assert len(paths) > len(PAGES)
    beyond = "document.documentElement.scrollWidth - window.innerWidth"
    with browsing() as browser, Watched(browser, viewport={"width": 375, "height": 800}, color_scheme=scheme) as seen:
        for path in paths:
            seen.page.goto(path.as_uri())
            assert (path.name, seen.page.evaluate(beyond)) == (path.name, 0)
        seen.page.goto((site / "index.html").as_uri())
        seen.page.locator("label[for=__search].md-header__button").click()
        seen.page.locator("input.md-search__input").press_sequentially("label holder")
        seen.page.locator(".md-search-result__item").first.wait_for(timeout=60_000)
    assert seen.errors == []
    assert [address for address in seen.asked if not address.startswith(("file:", "data:"))] == []
