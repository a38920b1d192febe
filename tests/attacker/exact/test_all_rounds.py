"""Layers too narrow for a batch while parameters move: what samples add, on average and exactly, and who they are."""

import numpy as np
import pytest
import torch

import vfl
from attacker.exact.all_rounds.settle import DONE, confirmed, settle
from attacker.exact.all_rounds.stack import Stack
from attacker.exact.all_rounds.stacking import is_affine, second_of, stacked
from attacker.interface import silent
from vfl.errors import UserError
from vfl.maths.loss import CROSS_ENTROPY, Loss
from vfl.models.layers import fully_connected
from vfl.models.whole import WholeModel
from vfl.observation import ModelTensors, Observation

COLUMNS, CLASSES, ROWS = (3, 4), 3, 20


def network(units: int = 16, outputs: int = CLASSES) -> WholeModel:
    torch.manual_seed(0)
    bottoms = [
        torch.nn.Sequential(torch.nn.Linear(d, units), torch.nn.ReLU(), torch.nn.Linear(units, 5)) for d in COLUMNS
    ]
    return WholeModel(bottoms, torch.nn.Linear(10, outputs), [5, 5])


def played(model: WholeModel, rounds: int, batch: int, loss: Loss) -> tuple[list[Observation], list[torch.Tensor]]:
    """Rounds of plain PyTorch under Adam, and the rows and labels that they are of."""
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, sum(COLUMNS), generator=draws)
    y = torch.randint(2 if loss.name == "binary" else CLASSES, (ROWS,), generator=draws)
    y = torch.randn(ROWS, generator=draws) if loss.of_number else y
    optimiser, seen = torch.optim.Adam(model.parameters(), lr=1e-3), []
    for number in range(1, rounds + 1):
        rows = torch.randperm(ROWS, generator=draws)[: batch - number % 2]
        optimiser.zero_grad()
        loss.total(model(x[rows].split(COLUMNS, dim=1)), y[rows]).div(len(rows)).backward()

        def tensors(what) -> ModelTensors:
            bottoms = [{n: what(p).detach().clone() for n, p in own.named_parameters()} for own in model.bottoms]
            return ModelTensors(tuple(bottoms), {n: what(p).detach().clone() for n, p in model.top.named_parameters()})

        both = tensors(lambda p: p), tensors(lambda p: p.grad)
        seen.append(Observation(number, rows, number, *both))
        optimiser.step()
    return seen, [x, y]


def stack_of(rounds: int, batch: int, loss: Loss = CROSS_ENTROPY) -> tuple[Stack, list[torch.Tensor]]:
    model = network(outputs=loss.outputs(CLASSES))
    seen, truth = played(model, rounds, batch, loss)
    layers = [fully_connected(own, (d,))[0] for own, d in zip(model.bottoms, COLUMNS, strict=True)]
    x, y = truth
    rows = [torch.cat([x, y[:, None]], dim=1), torch.zeros(ROWS).long()] if loss.of_number else truth
    return stacked(seen, layers, model, loss=loss, batch=batch), rows


def chosen(y: torch.Tensor, loss: Loss = CROSS_ENTROPY) -> torch.Tensor:
    return torch.nn.functional.one_hot(y, {"cross_entropy": CLASSES, "binary": 2, "squared": 1}[loss.name]).float()


LOSSES = [CROSS_ENTROPY, Loss("binary"), Loss("binary", (1.0, 5.0)), Loss("squared")]


@pytest.mark.parametrize("loss", LOSSES)
def test_what_the_true_rows_add_is_each_rounds_gradient(loss: Loss) -> None:
    stack, (x, y) = stack_of(3, 6, loss)
    for at in range(3):
        one = stack.part(slice(at, at + 1))
        here = one.indices[0][one.present[0] > 0]
        added = one.added(x[here][None], chosen(y[here], loss)[None])
        for seen, own in zip(one.seen, added, strict=True):
            torch.testing.assert_close(own[0].sum(0), seen[0], atol=1e-5, rtol=1e-4)


def test_a_blurred_row_adds_what_rows_around_it_add_on_average() -> None:
    stack, (x, y) = stack_of(1, 6)
    linear = Stack(  # logits that do not depend on the rows: what comes back is the same for all of them
        stack.indices, stack.present, stack.weights, stack.biases, stack.rest, stack.offset, stack.seen, _Constant()
    )
    around = x[:1] + 0.5 * torch.randn(200_000, x.shape[1], generator=torch.Generator().manual_seed(2))
    plain = linear.added(around[None], chosen(y[:1]).expand(len(around), -1)[None])
    blurred = linear.added(x[:1][None], chosen(y[:1])[None], blur=0.5)
    for many, one in zip(plain, blurred, strict=True):
        torch.testing.assert_close(many[0].mean(0), one[0, 0], atol=3e-3, rtol=0)


class _Constant(Loss):
    def possible_u(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.eye(CLASSES).expand(len(logits), -1, -1)


def test_rows_that_are_nearly_right_settle_on_the_truth_and_wrong_ones_say_so() -> None:
    stack, (x, y) = stack_of(24, 12)
    draws = torch.Generator().manual_seed(3)
    near = x + 0.1 * torch.randn(x.shape, generator=draws)
    found, left = settle(stack, near, y, classes=CLASSES, progress=silent)
    assert left < DONE
    torch.testing.assert_close(found.float(), x, atol=1e-4, rtol=0)
    _, left = settle(stack, torch.randn(x.shape, generator=draws), (y + 1) % CLASSES, classes=CLASSES, progress=silent)
    assert left > DONE


def test_the_right_rows_are_told_from_the_wrong_ones_and_what_is_left_is_the_wrong_ones_alone() -> None:
    stack, (x, y) = stack_of(24, 6)
    wrong = torch.tensor([3, 11])
    rows = x.index_add(0, wrong, torch.full((2, x.shape[1]), 0.01))
    sure, _ = confirmed(stack, rows, y, classes=CLASSES)
    assert (~sure).nonzero()[:, 0].tolist() == wrong.tolist()
    rest = stack.without(x, chosen(y), sure)
    assert len(rest) == sum(bool(set(wrong.tolist()) & set(one.tolist())) for one in stack.indices)
    for at in range(len(rest)):
        one = rest.part(slice(at, at + 1))
        here = wrong[one.indices[0][one.present[0] > 0]]
        for seen, own in zip(one.seen, one.added(x[here][None], chosen(y[here])[None]), strict=True):
            torch.testing.assert_close(own[0].sum(0), seen[0], atol=1e-5, rtol=1e-4)


def test_networks_of_another_form_are_told_apart() -> None:
    deep = torch.nn.Sequential(*network().bottoms[0], torch.nn.ReLU(), torch.nn.Linear(5, 2))
    smooth = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    for model, expected in ((network().bottoms[0], "2"), (deep, None), (smooth, None)):
        second = second_of(model, fully_connected(model, (3,))[0], (3,))
        assert (second and second.name) == expected
    assert is_affine(torch.nn.Linear(4, 2), 4)
    assert not is_affine(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)), 4)


@pytest.fixture
def table(tmp_path):
    """A table of 24 rows, three columns at each of two workers."""
    draws = np.random.default_rng(3)
    x = draws.normal(size=(24, 6)).astype("float32")
    np.savez(tmp_path / "rows.npz", x_train=x, y_train=(x @ draws.normal(size=6) > 0).astype("int64"))

    def config(**changes):
        federation = {"workers": 2, "batch_size": 6, "epochs": changes.pop("epochs", 12)}
        return {
            "data": {"name": "npz", "path": str(tmp_path / "rows.npz")},
            "federation": federation,
            "model": {"name": "mlp", "hidden": [32], "output": 4},
            "training": {"optimizer": "adam", "lr": 0.001},
            "attack": {"name": "exact"},
        } | changes

    return config


def test_batches_twice_as_large_as_the_layer_is_wide_are_told_apart_while_adam_trains(table) -> None:
    run = vfl.simulate(table())
    assert run.result.attack.share_exact == run.result.attack.label_accuracy == 1.0
    assert run.result.attack.certified == 24
    assert np.abs(run.arrays["x"] - run.arrays["x_true"]).max() < 1e-4


def test_rows_are_found_with_the_numbers_that_are_predicted_of_them(table, tmp_path) -> None:
    draws = np.random.default_rng(3)
    x = draws.normal(size=(24, 6))
    rows = [",".join(map(str, [*row, row @ np.arange(6)])) for row in x]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,d,e,f,y", *rows]))
    training = {"optimizer": "adam", "lr": 0.001, "loss": "squared"}
    run = vfl.simulate(table(data={"name": "csv", "path": str(tmp_path / "rows.csv"), "label": "y"}, training=training))
    assert run.result.attack.share_exact == run.result.attack.label_accuracy == 1.0
    assert run.result.attack.certified > 20


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 3}, r"by all rounds it needs 6 epochs \(24 rounds\)"),
        (
            {"model": {"name": "mlp", "hidden": [32], "output": 4, "top_hidden": [8]}},
            "by all rounds it needs a top model without",
        ),
        (
            {"training": {"optimizer": "adam", "lr": 0.001, "class_weights": [1, 5]}},
            "by all rounds it needs rounds that are divided by a number",
        ),
    ],
)
def test_what_lacks_for_all_rounds_is_named(table, changes, words) -> None:
    with pytest.raises(UserError, match=words):
        vfl.simulate(table(**changes))
