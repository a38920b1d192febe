from pathlib import Path

import pytest

from attacker.interface import attacks
from vfl.config import apply_change, load_config
from vfl.datasets import datasets
from vfl.errors import UserError
from vfl.models import models

GOOD = """
data: {name: digits, samples: 20}
federation: {workers: 4, batch_size: 5, epochs: 2}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_defaults_and_changes(tmp_path):
    config = load_config(
        write(tmp_path, GOOD), ["federation.workers=16", "training.lr=0.1", "attack.name=least_squares"]
    )
    assert config.federation.workers == 16
    assert config.training.lr == 0.1
    assert config.attack.name == "least_squares"
    assert not config.training.frozen
    assert config.federation.planned_rounds(23) == 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("federation.wrkers=4", r"federation\.wrkers: there is no such key"),
        ("federation.workers=many", r"federation\.workers: .*integer.*'many'"),
        ("federation.workers=0", r"federation\.workers: .*greater than or equal to 1"),
        ("federation.label_holder=4", r"label_holder is 4, but the workers are 0 to 3"),
        ("federation.rounds=3", r"either epochs or rounds"),
        ("federation.slices=['0:4']", r"1 slices for 4 workers"),
        ("training.lr=-1", r"training\.lr"),
        ("colour=blue", r"colour: there is no such key"),
        ("federation", r"expected key=value"),
        ("data.name.first=1", r"name holds a value"),
    ],
)
def test_a_bad_key_is_named(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        load_config(write(tmp_path, GOOD), [change])


@pytest.mark.parametrize(
    ("text", "words"),
    [("- a\n- b", "holds no keys"), ("a: [1", "is not YAML"), ("data: {name: digits}", "federation: is missing")],
)
def test_a_bad_file_is_named(tmp_path, text, words):
    with pytest.raises(UserError, match=f"run.yaml.*{words}"):
        load_config(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.yaml cannot be read: No such file"):
        load_config(tmp_path / "nowhere.yaml")


def test_changes_make_sections_that_are_not_there():
    tree: dict = {}
    apply_change(tree, "attack.name=exact")
    assert tree == {"attack": {"name": "exact"}}


EXAMPLES = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_every_example_config_is_valid(path):
    config = load_config(path)
    assert config.federation.workers >= 1
    for registry, section in ((datasets, config.data), (models, config.model), (attacks, config.attack)):
        registry.build(section)  # its options too
