from pathlib import Path

import pytest

from attacker.interface import attacks
from vfl.config import apply_change, load_config, parse_config
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
        ("training.weight_decay=-0.1", r"training\.weight_decay: .*greater than or equal to 0 \(got -0\.1\)"),
        ("training.clip_norm=0", r"training\.clip_norm: .*greater than 0 \(got 0\)"),
        ("training.schedule=cosine", r"training\.schedule: .*\(got 'cosine'\)"),
        ("training.schedule.kind=linear", r"training\.schedule\.kind: .*'constant', 'cosine' or 'step'.*'linear'"),
        ("training.schedule.frozen_epochs=-1", r"training\.schedule\.frozen_epochs: .*greater than or equal to 0"),
        ("training.schedule.warmup_epochs=1.5", r"training\.schedule\.warmup_epochs: .*integer"),
        ("training.schedule={kind: step, every_epochs: 0}", r"training\.schedule\.every_epochs: .*equal to 1"),
        ("training.schedule={kind: step, factor: 0}", r"training\.schedule\.factor: .*greater than 0"),
        ("training.schedule={kind: cosine, floor: 2}", r"training\.schedule\.floor: .*less than or equal to 1"),
        ("training.schedule.floor=0.1", r"training\.schedule: floor belongs to kind cosine, and kind is constant"),
        ("training.schedule.factor=0.5", r"training\.schedule: factor belongs to kind step, and kind is constant"),
        ("training.schedule.gamma=0.5", r"training\.schedule\.gamma: there is no such key"),
        ("training.evaluate_every=0", r"training\.evaluate_every: .*greater than or equal to 1"),
        ("training.early_stop={}", r"training: early_stop needs evaluate_every"),
        ("training={evaluate_every: 1, early_stop: {patience: 0}}", r"training\.early_stop\.patience: .*equal to 1"),
        ("training={evaluate_every: 1, early_stop: {min_delta: -1}}", r"training\.early_stop\.min_delta: .*equal to 0"),
        ("colour=blue", r"colour: there is no such key"),
        ("federation", r"expected key=value"),
        ("data.name.first=1", r"name holds a value"),
    ],
)
def test_a_bad_key_is_named(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        load_config(write(tmp_path, GOOD), [change])


def test_a_training_section_reads_back_as_it_was_written(tmp_path):
    training = (
        "training={lr: 0.1, weight_decay: 0.01, clip_norm: 2, evaluate_every: 5, early_stop: {patience: 2}, "
        "schedule: {kind: step, every_epochs: 2, factor: 0.5, warmup_epochs: 1}}"
    )
    config = load_config(write(tmp_path, GOOD), [training])
    assert config.training.early_stop.min_delta == 0
    assert config.training.schedule.frozen_epochs == 0
    assert parse_config(config.model_dump(mode="json"), "the summary") == config


@pytest.mark.parametrize(
    ("text", "words"),
    [("- a\n- b", "holds no keys"), ("a: [1", "is not YAML"), ("data: {name: digits}", "federation: is missing")],
)
def test_a_bad_file_is_named(tmp_path, text, words):
    with pytest.raises(UserError, match=f"run.yaml.*{words}"):
        load_config(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"my\.csv is data and no config file: `cafe init my\.csv` writes"):
        load_config(Path("my.csv"))
    with pytest.raises(UserError, match=r"nowhere\.yaml cannot be read: No such file .*`cafe list configs`"):
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
