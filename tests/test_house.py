"""The house keeps its rules: ARCHITECTURE.md names what exists; rooms, functions and classes have bounds."""

import ast
import importlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("protos", "server", "worker", "attacker", "vfl")
MODULES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py") if "_pb2" not in path.name)
NAMED = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:[./][A-Za-z_0-9]+)*(?:/|\.py)?)(?:\(\))?`")


def _functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def _exists(name: str) -> bool:
    if "/" in name:
        return (ROOT / name).exists()
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if attribute in getattr(found, "__annotations__", {}):  # a field
                return attribute == parts[-1]
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_name_in_the_description_of_the_house_exists(page):
    names = set(NAMED.findall((ROOT / page).read_text(encoding="utf-8")))
    assert len(names) > 10
    assert {name for name in names if not _exists(name)} == set()


def test_every_room_of_vfl_has_its_place_among_the_layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(one for one in contracts if one["type"] == "layers")["layers"]
    placed = {name.strip() for layer in layers for name in layer.split("|")}
    rooms = {
        f"vfl.{path.stem}"
        for path in (ROOT / "vfl").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert rooms - {"vfl.__init__"} == {name for name in placed if name.startswith("vfl.")}
    assert set(PACKAGES) - {"vfl"} == {name for name in placed if "." not in name}


def test_no_room_has_more_than_fifteen_modules_lying_open():
    open_modules = Counter(path.parent for path in MODULES if path.name not in ("__init__.py", "__main__.py"))
    assert {str(room.relative_to(ROOT)): count for room, count in open_modules.items() if count > 15} == {}


def test_no_function_is_longer_than_sixty_lines():
    assert {name for name, node in _functions() if (node.end_lineno or 0) - node.lineno >= 60} == set()


def test_no_function_takes_more_than_four_things_by_place():
    wide = set()
    for name, node in _functions():
        by_place = [one.arg for one in (*node.args.posonlyargs, *node.args.args) if one.arg not in ("self", "cls")]
        # torch calls an autograd function's forward by place, and stand-ins as it calls what they stand for
        if len(by_place) > 4 and by_place[0] != "ctx" and node.name not in ("soft_max_pool2d", "coarse_conv2d"):
            wide.add(name)
    assert wide == set()


def test_no_class_has_more_than_fifteen_methods():
    large = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                if len(methods) > 15:
                    large.add(f"{path.relative_to(ROOT)} {node.name}")
    assert large == set()


def test_the_roles_and_the_wire_are_the_only_packages_at_the_top():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "examples"} == set(PACKAGES)


def test_no_package_has_two_public_things_of_one_name():
    places: dict[tuple[Path, str], list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                places.setdefault((path.parent, node.name), []).append(str(path.relative_to(ROOT)))
    assert [where for where in places.values() if len(where) > 1] == []
