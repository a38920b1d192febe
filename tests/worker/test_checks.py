"""A worker believes its own config and data: all else that a coordinator orders is refused before it costs anything."""

import subprocess
import sys
from itertools import islice

import pytest
import torch

from protos.codec import announce
from protos.coordinator_pb2 import End, Parameters, Purpose, Round, Start, Welcome
from tests.support import small_config
from vfl.config import EVALUATION_BATCH
from vfl.datasets.slices import boxes_of, load_data, slice_for
from vfl.errors import RunFailedError
from vfl.observation import Setting
from vfl.observation.schedule import batches_of
from worker.checks import OrderChecks
from worker.main import defence_plan

TRAIN, EVALUATE = Purpose.PURPOSE_TRAIN, Purpose.PURPOSE_EVALUATE
RIGHT = {"run_id": "run", "workers": 2, "label_holder": 0, "classes": 10, "output_widths": [10, 10]}


def checks_of(worker=0, federation=None, **changes):
    """The checks of a worker of two with 24 samples, which are trained on four at a time for six rounds."""
    free = {"schedule": False, "steps": False}  # the orders below are of no schedule
    federation = {"workers": 2, "batch_size": 4, "rounds": 6, "checks": free, **(federation or {})}
    config = small_config(federation=federation, **{"data": {"test_samples": 12}, **changes})
    data = slice_for(load_data(config), config, worker)
    plan = defence_plan(config, worker, len(data.x), most=data.most)
    return OrderChecks(config, data, plan)


def train(number, rows, version=1):
    return Round(round=number, purpose=TRAIN, parameters_version=version, indices=rows)


def evaluate(number, rows, version=1):
    return Round(round=number, purpose=EVALUATE, parameters_version=version, indices=rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label_holder": 1}, "says 2 workers and label holder 1, the config here 2 and 0"),
        ({"workers": 3}, "says 3 workers and label holder 0, the config here 2 and 0"),
        ({"classes": 9}, "says 9 classes, the labels here have 10"),
        ({"output_widths": [10]}, "outputs fit no model of 2 workers"),
        ({"output_widths": [10, 100_000_000]}, "worker 1 has outputs of 100000000, this worker 10"),
        ({"output_widths": [9, 10]}, "worker 0 has outputs of 9, this worker 10"),
        ({"output_widths": [10, 0]}, "worker 1 has outputs of 0, this worker 10"),
        ({"run_id": "x" * 300}, "longer than 256 characters"),
        ({"label_holder_address": "x" * 300}, "longer than 256 characters"),
    ],
)
def test_a_start_of_another_federation_is_refused(change, words):
    checks = checks_of()
    checks.start(Start(**RIGHT))
    with pytest.raises(RunFailedError, match=words):
        checks.start(Start(**{**RIGHT, **change}))


def test_a_worker_without_labels_knows_the_width_of_its_own_output():
    checks = checks_of(worker=1)
    checks.start(Start(**RIGHT))
    with pytest.raises(RunFailedError, match="worker 1 has outputs of 9, this worker 10"):
        checks.start(Start(**{**RIGHT, "output_widths": [10, 9]}))


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("schedule", ["epochs", "uniform", "orthogonal"])
@pytest.mark.parametrize("kind", ["vertical", "horizontal"])
def test_every_round_of_a_real_schedule_is_followed_and_again_after_a_fault(worker, schedule, kind):
    federation = {"batch_size": 5, "rounds": None, "epochs": 3, "schedule": schedule, "kind": kind, "checks": True}
    checks = checks_of(worker, federation)
    config = small_config(federation={"workers": 2, **federation})
    shares = config.topology.even_shares(24, 5)
    setting = Setting.of(config, boxes_of(load_data(config), config), 10, 24, shares=shares)
    batches = [setting.topology.rows_of_each(batch)[worker].tolist() for batch in batches_of(setting)]
    for number, rows in enumerate(batches, start=1):
        checks.round(train(number, rows))
    for number, rows in islice(enumerate(batches, start=1), 3, None):
        checks.round(train(number, rows))
    with pytest.raises(RunFailedError, match=f"orders round {len(batches) + 1}, .* plans {len(batches)}"):
        checks.round(train(len(batches) + 1, batches[0]))


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (train(1, [3]), "round 1 names 1 samples, and the config here plans batches of 4"),
        (train(1, [3] * 4), "round 1 names a sample twice"),
        (train(1, range(24)), "round 1 names 24 samples"),
        (train(1, []), "round 1 names 0 samples"),
        (train(1, [0, 1, 2, 24]), "samples that this worker does not have: it has 24"),
        (train(0, range(4)), "orders round 0, and the config here plans 6"),
        (train(7, range(4)), "orders round 7, and the config here plans 6"),
        (Round(round=1, parameters_version=1, indices=range(4)), "no purpose"),
        (evaluate(7, [3]), "test samples that this worker does not count alone"),
        (evaluate(7, [0]), "test samples that this worker does not count alone"),
        (evaluate(7, []), "test samples that this worker does not count alone"),
        (evaluate(7, range(13)), "test samples that this worker does not count alone"),
        (evaluate(7, [0] * 12), "test samples that this worker does not count alone"),
        (evaluate(6, range(12)), "round 6 evaluates, and is one that the config here trains in"),
    ],
)
def test_an_order_that_the_config_does_not_plan_is_refused(order, words):
    with pytest.raises(RunFailedError, match=words):
        checks_of().round(order)


def test_a_past_round_comes_again_with_its_own_samples_alone():
    checks = checks_of()
    for number in (1, 2, 3):
        checks.round(train(number, range(4 * number, 4 * number + 4)))
    checks.round(train(2, range(8, 12)))
    with pytest.raises(RunFailedError, match="round 2 was ordered before, with other samples"):
        checks.round(train(2, range(4)))
    with pytest.raises(RunFailedError, match="orders round 5 after round 3"):
        checks.round(train(5, range(4)))
    checks.round(train(4, range(4)))


def test_test_samples_are_counted_whole_batches_at_a_time_and_no_more_often_than_planned():
    data = {"name": "synthetic", "samples": 24, "test_samples": EVALUATION_BATCH + 5, "shape": [1, 8, 8]}
    checks = checks_of(data=data, training={"lr": 0.1, "evaluate_every": 3})
    first, last = range(EVALUATION_BATCH), range(EVALUATION_BATCH, EVALUATION_BATCH + 5)
    for version in (3, 3, 6, 7):  # one of them again, after a fault
        checks.round(evaluate(7, first, version))
        checks.round(evaluate(8, last, version))
    with pytest.raises(RunFailedError, match="evaluates once more, and the config here plans 3 evaluations"):
        checks.round(evaluate(9, first, 8))
    once_more = checks_of(data=data, training={"lr": 0.1, "evaluate_first": True})
    for version in (0, 7):
        once_more.round(evaluate(7, first, version))
    with pytest.raises(RunFailedError, match="plans 2 evaluations"):
        once_more.round(evaluate(7, first, 8))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, -1e7])
def test_parameters_with_which_nothing_can_be_computed_are_refused(value):
    checks = checks_of()
    right = {"bottom.weight": torch.full((2, 2), 1e5), "bottom.none": torch.zeros(0)}
    checks.parameters(1, right, right)
    with pytest.raises(RunFailedError, match=r"bottom\.weight has values that are not finite, or beyond 1,000,000"):
        checks.parameters(1, {"bottom.weight": torch.tensor([0.0, value])}, right)


def test_parameters_of_another_shape_or_that_should_not_move_are_refused():
    own = {"bottom.weight": torch.zeros(2, 2)}
    checks_of(training={"lr": 0.1}).announced(Parameters(version=2, bundle=announce(own)), own)
    checks = checks_of()
    checks.announced(Parameters(version=1, bundle=announce(own)), own)
    with pytest.raises(RunFailedError, match="sends parameters 2, and the config here leaves them as they are"):
        checks.announced(Parameters(version=2, bundle=announce(own)), own)
    with pytest.raises(RunFailedError, match=r"has shape \(3, 2\), this worker's \(2, 2\)"):
        checks.announced(Parameters(version=1, bundle=announce({"bottom.weight": torch.zeros(3, 2)})), own)


def test_a_welcome_and_an_end_that_no_coordinator_sends_are_refused():
    checks = checks_of()
    checks.welcome(Welcome(session="0" * 32))
    checks.end(End(rounds=6))
    with pytest.raises(RunFailedError, match="session is longer than 256"):
        checks.welcome(Welcome(session="0" * 300))
    with pytest.raises(RunFailedError, match="says that 7 rounds are done, the config here plans 6"):
        checks.end(End(rounds=7))


LIE = """
import resource, sys
from tests.worker.test_checks import RIGHT, checks_of
from protos.coordinator_pb2 import Start
from vfl.errors import RunFailedError
checks = checks_of()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    checks.start(Start(**{**RIGHT, "output_widths": [10, 400_000_000]}))
except RunFailedError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_lie_about_widths_takes_no_memory():
    done = subprocess.run([sys.executable, "-c", LIE], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 32 << 10  # kilobytes
