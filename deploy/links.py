"""Writes the notebooks' badges, and all else that leads to the repository, from `[project.urls]` in pyproject.toml.

`make links` after the address has changed. Without an address, as now, no page has a badge: a sentence says how to open
a notebook in Colab by uploading it.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOKS = Path("examples/notebooks")
GITHUB = "https://github.com/"
COLAB = "https://colab.research.google.com"
UPLOAD = "In Colab: *File*, *Upload notebook*; then drag the wheel (`pip wheel --no-deps .`) to the pane *Files*.\n"
PAGE = re.compile(r"(?<=<!-- links -->\n).*?(?=<!-- end -->)", re.DOTALL)


def repository(root: Path = ROOT) -> str | None:
    """Return the address of the project's repository, None where pyproject.toml has none."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get("Repository")
    return None if address is None else str(address).rstrip("/").removesuffix(".git")


def write_links(root: Path, address: str | None) -> None:
    """Write all that has the address, or that says that there is none."""
    on_github = address if address and address.startswith(GITHUB) else None  # Colab reads from GitHub alone
    for path in sorted((root / NOTEBOOKS).glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        _write_notebook(notebook["cells"], path.name, on_github)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page = root / "docs" / "tutorials.md"
    text, count = PAGE.subn(_on_the_page(on_github), page.read_text(encoding="utf-8"))
    assert count == 1, f"{page}: where is <!-- links -->?"
    page.write_text(text, encoding="utf-8")
    cited = root / "CITATION.cff"
    lines = [line for line in cited.read_text(encoding="utf-8").splitlines() if not line.startswith("repository-code:")]
    if address:
        lines.append(f"repository-code: {address}")
    cited.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_notebook(cells: list[dict[str, Any]], name: str, address: str | None) -> None:
    """Put the badge, or the sentence, into the first cell below the title, and what Colab installs into the second."""
    title, install = cells[:2]
    title["source"][2] = _badge(name, address) if address else UPLOAD
    what = f'"cafe-vfl[tables] @ git+{address}"' if address else "./cafe_vfl-*.whl pyarrow"
    where = "" if address else ", from the wheel beside this notebook"
    install["source"] = [
        "import sys\n",
        "\n",
        f'if "google.colab" in sys.modules:  # on Colab only: install it there{where}\n',
        f"    %pip install --quiet {what}",
    ]


def _badge(name: str, address: str) -> str:
    there = f"{COLAB}/github/{address.removeprefix(GITHUB)}/blob/main/{NOTEBOOKS / name}"
    return f"[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({there})\n"


def _on_the_page(address: str | None) -> str:
    if address:
        return f"In Colab: the badge at the top of each notebook opens it from [the repository]({address}).\n"
    return (
        f"In Colab: build the wheel here, `pip wheel --no-deps .`; at <{COLAB}> choose *File*,\n"
        "*Upload notebook*, take one of these, drag the wheel to the pane *Files*, and run the cells from the top.\n"
        "There is no badge that does it in one step, as the project has no public address on GitHub yet.\n"
    )


if __name__ == "__main__":
    write_links(ROOT, repository())
