"""What is written into a run's folder."""

import torch

from vfl.folder import clear_run
from vfl.folder.record import Record, write_model
from vfl.folder.summary import Evaluated, Train
from vfl.models.whole import state_dict, whole_model
from vfl.observation import ModelTensors
from vfl.registry import PluginSection

SHAPES = [(1, 8, 8), (1, 8, 6)]


def build(seed: int, **options):
    return whole_model(PluginSection.model_validate({"name": "cafe_cnn", **options}), SHAPES, 3, seed)


def parts(model) -> ModelTensors:
    bottoms = tuple(dict(bottom.named_parameters()) for bottom in model.bottoms)
    return ModelTensors(bottoms, dict(model.top.named_parameters()))


def test_a_saved_model_fits_the_whole_model(tmp_path):
    trained = build(seed=1)
    write_model(tmp_path, parts(trained))
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    loaded = build(seed=2)
    loaded.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    slices = [torch.rand(4, *shape) for shape in SHAPES]
    assert torch.equal(loaded(slices), trained(slices))
    assert loaded(slices).shape == (4, 3)
    assert {"bottoms.0.conv1.weight", "bottoms.1.fc3.bias", "top.fc.weight"} < state_dict(parts(trained)).keys()


def test_fixed_batch_norm_is_no_hindrance():
    model = build(seed=1, batch_norm=True)
    model.load_state_dict(state_dict(parts(model)))


def test_without_a_round_there_is_no_model_and_a_new_run_clears_the_old_one(tmp_path):
    write_model(tmp_path, None)
    assert not list(tmp_path.iterdir())
    write_model(tmp_path, parts(build(seed=1)))
    clear_run(tmp_path)
    assert not list(tmp_path.iterdir())


def evaluated(number: int, loss: float, accuracy: float) -> Evaluated:
    return Evaluated(round=number, loss=loss, accuracy=accuracy)


def test_the_last_evaluation_is_that_of_the_last_round():
    record = Record(rounds=4, train=Train(evaluations=[evaluated(2, 1.0, 0.5), evaluated(4, 0.9, 0.6)]))
    assert record.last_evaluation == evaluated(4, 0.9, 0.6)
    record.rounds = 5  # the run was stopped before the next one
    assert record.last_evaluation is None
    assert Record().last_evaluation is None
