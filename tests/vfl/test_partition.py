import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vfl.errors import UserError
from vfl.partition import assemble, partition


def test_four_and_sixteen_workers_hold_a_grid():
    assert [box.shape for box in partition((3, 32, 32), 4)] == [(3, 16, 16)] * 4
    assert [box.shape for box in partition((1, 28, 28), 16)] == [(1, 7, 7)] * 16
    assert partition((3, 32, 32), 4)[1].start == (0, 0, 16)


def test_three_workers_share_an_image_as_evenly_as_it_goes():
    assert sorted(box.shape for box in partition((1, 28, 28), 3)) == [(1, 28, 9), (1, 28, 9), (1, 28, 10)]


def test_columns_of_a_table():
    assert [box.shape[0] for box in partition((30,), 4)] == [8, 7, 7, 8]


@given(st.integers(1, 12), st.integers(12, 20), st.integers(12, 20), st.booleans())
def test_cut_and_assembled_samples_are_the_same(workers, height, width, image):
    shape = (2, height, width) if image else (height,)
    x = torch.rand(3, *shape)
    boxes = partition(shape, workers)
    assert len(boxes) == workers
    assert torch.equal(assemble(boxes, [box.cut(x) for box in boxes]), x)


def test_explicit_unequal_slices():
    boxes = partition((1, 8, 8), 3, ["0:8,0:3", "0:2,3:8", "2:8,3:8"])
    assert [box.shape for box in boxes] == [(1, 8, 3), (1, 2, 5), (1, 6, 5)]


@pytest.mark.parametrize(
    ("slices", "words"),
    [
        (["0:8,0:4", "0:8,3:8"], "8 features are held by more than one worker, by 0 and by 1"),
        (["0:8,0:4", "0:8,5:8"], "8 features are held by no worker"),
        (["0:8,0:4", "0:9,4:8"], "worker 1 covers 0:9 of a dimension of size 8"),
        (["0:8", "0:8,4:8"], "has 1 ranges, a sample of shape .* needs 2"),
        (["left", "right"], "'left' of worker 0 is not like"),
    ],
)
def test_slices_that_do_not_tile_the_sample_are_refused(slices, words):
    with pytest.raises(UserError, match=words):
        partition((1, 8, 8), 2, slices)


def test_more_workers_than_features():
    with pytest.raises(UserError, match="3 features cannot be divided among 4 workers"):
        partition((3,), 4)
    with pytest.raises(UserError, match="4x4 cannot be divided among 17"):
        partition((1, 4, 4), 17)
