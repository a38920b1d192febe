"""What a project needs to be joined: files that other programs read are as those programs want them."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from deploy.links import repository, write_links
from tests.deploy.installed_support import LATER, later_python

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_has_what_the_format_needs_and_the_version_of_the_project():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])


def test_badges_say_what_the_project_says():
    assert PROJECT["license"] in (ROOT / "docs" / "images" / "badge-licence.svg").read_text()
    python = (ROOT / "docs" / "images" / "badge-python.svg").read_text()
    assert re.findall(r">(3\.\d+)<", python) == [PROJECT["requires-python"].removeprefix(">=")]


@pytest.fixture
def linked(tmp_path):
    """The files that have the repository's address, as a copy, and how to read all of them."""
    shutil.copytree(ROOT / "examples" / "notebooks", tmp_path / "examples" / "notebooks")
    (tmp_path / "docs").mkdir()
    for name in ("docs/tutorials.md", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path, lambda: {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}


def test_badges_and_links_are_those_of_the_projects_address(linked):
    folder, read = linked
    here = read()
    write_links(folder, repository())
    assert read() == here


def test_without_an_address_no_badge_leads_nowhere_and_with_one_each_leads_to_its_notebook(linked):
    folder, read = linked
    write_links(folder, None)
    without = read()
    assert not re.search(r"OWNER|colab-badge|/github/|git\+", "".join(without.values()))
    assert sum("Upload notebook" in text for text in without.values()) == len(without) - 1  # all but CITATION.cff
    write_links(folder, "https://github.com/some/where")
    with_one = read()
    assert "Upload notebook" not in "".join(with_one.values())
    for path in (folder / "examples" / "notebooks").iterdir():
        (there,) = re.findall(r"/github/some/where/blob/main/([\w/.]+)\)", with_one[path])
        assert folder / there == path
        assert "git+https://github.com/some/where" in with_one[path]
    assert yaml.safe_load(with_one[folder / "CITATION.cff"])["repository-code"] == "https://github.com/some/where"
    write_links(folder, None)
    assert read() == without


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_a_file_is_as_the_program_wants_it_that_reads_it(kind, files):
    line = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{kind}"]
    paths = sorted(map(str, ROOT.glob(files)))
    assert paths
    done = subprocess.run([*line, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda one: one.stem)
def test_a_workflow_is_one_that_can_be_read(path):
    tree = yaml.safe_load(path.read_text())
    assert tree[True]["push"]  # YAML 1.1 reads the key `on` as true; GitHub does not mind
    for job in tree["jobs"].values():
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert "@" in step.get("uses", "@")
            script = re.sub(r"\$\{\{.*?\}\}", "x", step.get("run", ""))
            subprocess.run(["bash", "-n", "-c", script], check=True)
            for folder in re.findall(r"deploy/\w+", str(step)):
                assert (ROOT / folder).exists()


def test_a_new_version_is_written_wherever_it_stands():
    line = [sys.executable, "-m", "bumpversion", "bump", "minor", "--dry-run", "--verbose", "--allow-dirty"]
    told = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    for file in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        assert f"Would change file {file}" in " ".join((told.stdout + told.stderr).split())


def test_the_tests_workflow_has_every_python_that_docs_install_names():
    tree = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    versions = tree["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert versions == [PROJECT["requires-python"].removeprefix(">="), *LATER]
    page = (ROOT / "docs" / "install.md").read_text()
    assert all(version in page for version in versions)


@pytest.mark.parametrize("version", LATER)
def test_the_code_compiles_with_later_pythons(version):
    program = later_python(version)
    files = [str(ROOT / name) for name in ("attacker", "protos", "server", "vfl", "worker", "setup.py")]
    code = (
        "import ast, pathlib, sys, warnings\n"
        "warnings.simplefilter('error')\n"
        "for top in map(pathlib.Path, sys.argv[1:]):\n"
        "    for path in [top] if top.is_file() else top.rglob('*.py'):\n"
        "        compile(path.read_text(encoding='utf-8'), str(path), 'exec')\n"
    )
    done = subprocess.run([program, "-c", code, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
