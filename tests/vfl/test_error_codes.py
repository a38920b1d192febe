"""Errors have codes that stay: every place that raises one has its kind, every kind its page."""

import ast
from pathlib import Path

import pytest

from tests.integration.command_support import cafe
from vfl.error_codes import CODES, code_of, page
from vfl.errors import CafeError, InterruptedRunError, UserError, from_words

ROOT = Path(__file__).parents[2]


def raising_modules() -> set[str]:
    found = set()
    for package in ("attacker", "protos", "server", "vfl", "worker"):
        for path in (ROOT / package).rglob("*.py"):
            calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
            if names & {"UserError", "RunFailedError", "CafeError"}:
                found.add(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    return found


def test_every_module_that_raises_an_error_has_a_kind_of_its_own():
    modules = raising_modules()
    assert len(modules) > 50
    named = [name for kind in CODES.values() for name in kind.modules]
    assert {one for one in modules if not any(one == name or one.startswith(f"{name}.") for name in named)} == set()
    assert len(named) == len(set(named))
    explicit = {"E11", "E71", "E83"}  # vfl.errors.missing_extra, DamagedError, a condition of an audit
    assert {code_of(module) for module in modules} | explicit == CODES.keys()


def test_the_page_is_what_the_codes_say():
    assert (ROOT / "docs" / "errors.md").read_text() == page()


def test_the_code_is_that_of_the_module_which_raises_and_crosses_processes():
    from vfl.config import load_config

    with pytest.raises(UserError) as caught:
        load_config(Path("no-such-file.yaml"))
    assert caught.value.code == "E20"
    assert from_words(2, "a sentence", "E30").code == "E30"
    printed = from_words(2, "a sentence [E40]")
    assert (str(printed), printed.code) == ("a sentence", "E40")
    assert InterruptedRunError("stopped").code == ""
    assert CafeError("from a plug-in of somebody else's").code == "E21"


def test_a_bad_key_ends_with_a_code_that_is_explained(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("federation: {wrokers: 2}\n")
    ended = cafe("run", config)
    assert ended.returncode == 2
    assert ended.stderr.endswith("there is no such key [E20]\n")
    told = cafe("explain", "E20")
    assert CODES["E20"].do in told.stdout
    assert cafe("explain", "E99").stderr.endswith("`cafe explain` lists them [E10]\n")
