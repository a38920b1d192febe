"""SECURITY.md says the limits that are in force, and every call has one."""

import ast
import re
from pathlib import Path

from tests.fuzz.support import EXAMPLES
from vfl import limits

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()


def test_the_table_has_every_limit_with_its_value():
    told = dict(re.findall(r"^\| `([A-Z_]+)` \| ([\d,.]+) \|", TEXT, re.MULTILINE))
    real = {
        name: f"{value:,g}" if isinstance(value, float) else f"{value:,}"
        for name, value in vars(limits).items()
        if name.isupper()
    }
    assert told == real


def test_the_number_of_inputs_is_right():
    assert f"each target has {EXAMPLES} inputs a run" in TEXT


def calls_without_a_deadline(path):
    """Calls of gRPC stubs in a file that say no timeout, by their names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            on_stub = "stub" in ast.unparse(node.func.value).lower()
            if on_stub and "timeout" not in {keyword.arg for keyword in node.keywords}:
                yield node.func.attr


def test_no_call_is_without_a_deadline():
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for package in ("bench", "server", "vfl", "worker")
        for path in (ROOT / package).rglob("*.py")
        for name in calls_without_a_deadline(path)
    }
    # The stream of orders lasts as long as the run: WELCOME_SECONDS, ORDER_SECONDS and keep-alive bound it.
    assert found == {("worker/link.py", "Join")}
