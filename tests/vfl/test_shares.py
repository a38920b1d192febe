"""Whose samples are whose in a horizontal federation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import small_config
from vfl.config import parse_config
from vfl.datasets.slices import WorkerData, load_data, slice_for, write_slices
from vfl.errors import UserError
from vfl.observation import ModelTensors, Setting, averaged
from vfl.observation.schedule import batches_of
from vfl.partition import Box
from vfl.topology import Topology, even_runs


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(1, 30))
def test_runs_cover_all_samples_in_order_and_differ_by_one_at_most(count, workers):
    runs = even_runs(count, workers)
    assert [i for run in runs for i in range(count)[run]] == list(range(count))
    sizes = [run.stop - run.start for run in runs]
    assert len(sizes) == workers
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_rows_of_the_workers_and_indices_of_the_whole_are_the_same_thing(shares, data):
    rows = [torch.tensor(data.draw(st.permutations(range(share)))[: max(1, share // 2)]) for share in shares]
    topology = Topology(len(shares), kind="horizontal", shares=tuple(shares))
    indices = torch.cat(topology.indices_of(rows))
    assert len(set(indices.tolist())) == sum(map(len, rows))
    for own, back in zip(rows, topology.rows_of_each(indices), strict=True):
        assert torch.equal(own, back)


@pytest.mark.parametrize("schedule", ["epochs", "uniform", "orthogonal"])
def test_each_worker_draws_batches_of_its_own_samples(schedule):
    model, topology = small_config().model, Topology(3, kind="horizontal", shares=(8, 9, 8))
    setting = Setting(model, (Box.all((4,)),), 2, 25, 4, schedule, 9, True, 0, topology=topology)
    drawn = [topology.rows_of_each(indices) for indices in batches_of(setting)]
    assert len(drawn) == 9
    assert setting.rounds_per_epoch == 3
    assert all(0 < len(rows) <= 4 for each in drawn for rows in each)
    orders = [torch.cat([each[worker] for each in drawn]).tolist() for worker in (0, 2)]
    assert orders[0] != orders[1]  # equal shares, but not drawn alike
    if schedule != "uniform":
        for worker, share in enumerate(topology.shares):
            first = torch.cat([each[worker] for each in drawn[: -(-share // 4)]])
            assert torch.equal(first.sort().values, torch.arange(share))


def test_the_average_is_weighted_by_batch_sizes_and_leaves_out_who_gave_nothing():
    def upload(value):
        return ModelTensors(({"w": torch.full((2,), value)},), {"v": torch.tensor([10 * value])})

    nothing = ModelTensors(({},), {})
    mean = averaged([upload(1.0), nothing, upload(4.0)], [1, 7, 2])
    torch.testing.assert_close(mean.bottoms[0]["w"], torch.full((2,), 3.0))
    torch.testing.assert_close(mean.top["v"], torch.tensor([30.0]))
    assert averaged([nothing, nothing], [1, 1]) == nothing


def test_each_worker_holds_whole_samples_their_labels_and_some_test_samples(tmp_path):
    config = small_config(
        data={"name": "digits", "samples": 25, "test_samples": 2},
        federation={"kind": "horizontal", "workers": 3, "batch_size": 5},
    )
    data = load_data(config)
    held = [WorkerData.load(path) for path in write_slices(config, data, tmp_path)]
    assert torch.equal(torch.cat([own.x for own in held]), data.x)
    assert torch.equal(torch.cat([own.y for own in held]), data.y)
    assert torch.equal(torch.cat([own.x_test for own in held if own.x_test is not None]), data.x_test)
    assert torch.equal(torch.cat([own.y_test for own in held if own.y_test is not None]), data.y_test)
    assert {own.classes for own in held} == {data.classes}
    assert {own.most for own in held} == {9}
    assert len({own.ids_digest for own in held}) == 3


def test_too_few_samples_for_a_batch_at_each_worker_is_a_sentence():
    sentence = r"federation\.batch_size: 25 samples among 4 workers leave one with 6, .* draws 7 of its own a round"
    with pytest.raises(UserError, match=sentence):
        Topology(4, kind="horizontal").even_shares(25, 7)


def test_columns_of_parties_have_no_place_in_it(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,label\n1,2,x\n3,4,y\n")
    config = small_config(
        data={"name": "csv", "path": str(path), "label": "label", "columns": [["a"], ["b"]]},
        federation={"kind": "horizontal", "workers": 2, "batch_size": 1},
    )
    with pytest.raises(UserError, match=r"in a horizontal federation each has all of them; give one file for all"):
        slice_for(load_data(config), config, 0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"federation": {"slices": ["0:8,0:4", "0:8,4:8"]}}, "slices: the workers of a horizontal .* whole samples"),
        ({"federation": {"label_holder": 1}}, "label_holder: each worker of a horizontal .* its own samples; leave it"),
        ({"federation": {"label_holder_features": False}}, "label_holder_features: each worker of a horizontal"),
        (
            {"model": {"name": "mlp", "bottoms": {1: {"name": "mlp"}}}},
            r"model\.bottoms: all workers .* train one model",
        ),
        ({"federation": {"kind": "diagonal"}}, "'vertical' or 'horizontal'"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(changes, sentence):
    federation = {"kind": "horizontal", "workers": 2, "batch_size": 4, "epochs": 1, **changes.pop("federation", {})}
    with pytest.raises(UserError, match=sentence):
        parse_config({"data": {"name": "digits"}, "federation": federation, **changes}, "the test")
