"""What a defence hands over is held against what it was given; what does not fit is a sentence with its name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.worker.defences.support import PLAN
from vfl.errors import RunFailedError
from vfl.observation import Tensors
from vfl.registry import PluginSection
from worker.defences import Chain, Defence, Plan, Played, Shield, WithheldError

GRADIENTS = {"bottom.fc.weight": torch.ones(2, 3), "bottom.fc.bias": torch.ones(2)}


def changed(tensor: Any) -> Callable[[dict[str, Tensor]], Any]:
    return lambda gradients: gradients | {"bottom.fc.bias": tensor}


def popped(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    del gradients["bottom.fc.bias"]
    return gradients


WRONG: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "nothing": (lambda _: None, "it must return the tensors by name, not NoneType"),
    "a list": (lambda gradients: list(gradients.values()), "not list"),
    "one less": (popped, "the names that it was given, and lacks bottom.fc.bias"),
    "one more": (lambda gradients: gradients | {"top.x": torch.ones(1)}, "and has added top.x"),
    "a number": (changed(0.5), r"bottom.fc.bias must stay a float32 tensor of shape \(2,\), and is float"),
    "another shape": (changed(torch.ones(1, 2)), r"and is a float32 tensor of shape \(1, 2\)"),
    "another dtype": (changed(torch.ones(2).double()), r"and is a float64 tensor of shape \(2,\)"),
    "NaN": (changed(torch.tensor([0.0, float("nan")])), "bottom.fc.bias must stay finite, and has NaN or infinity"),
    "infinity": (changed(torch.tensor([float("inf"), 0.0])), "bottom.fc.bias must stay finite"),
    "sparse": (changed(torch.ones(2).to_sparse()), "and is a sparse_coo float32 tensor"),
}


class Making(Defence):
    """Makes of the gradients what it is told to."""

    what: str

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        if self.what == "withheld":
            raise WithheldError("enough")
        if self.what == "with a gradient":
            return {name: tensor * nn.Parameter(torch.ones(())) for name, tensor in gradients.items()}
        return WRONG[self.what][0](dict(gradients) if played.number == 1 else gradients)


class Hooked(Defence):
    """Fails in one of its hooks, or returns there what does not fit."""

    where: str
    value: Any = None

    def given(self, where: str, otherwise: Any) -> Any:
        if self.where != where:
            return otherwise
        if self.value == "fails":
            raise KeyError("a bug")
        return torch.ones(1) if self.value == "a tensor" else self.value

    def schedule(self, planned: str) -> str:
        return self.given("schedule", planned)

    def start(self, _plan: Plan) -> Shield:
        return _Hooked(self)


class _Hooked:
    def __init__(self, options: Hooked) -> None:
        self._options = options

    @property
    def mean_over(self) -> int | None:
        return self._options.given("mean_over", None)

    def rows(self, _number: int, named: Tensor) -> Tensor:
        given = self._options.given("rows", named)
        return torch.tensor(given) if isinstance(given, list) else given

    def apply(self, gradients: Tensors, _played: Played) -> Tensors:
        return gradients

    def report(self) -> dict[str, Any]:
        return {"said": self._options.given("report", 1)} if self._options.value == "a tensor" else self.told()

    def told(self) -> Any:
        return self._options.given("report", {})


def chain_of(name: str, **options: Any) -> Chain:
    return Chain([PluginSection(name="none"), PluginSection(name=f"{__name__}:{name}", **options)], PLAN)


def uploaded(chain: Chain, number: int = 1) -> Tensors:
    return chain.apply(dict(GRADIENTS), number, rows=torch.arange(4), x=torch.zeros(4, 3), model=nn.Identity())


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("what", WRONG)
def test_an_upload_that_does_not_fit_is_told_with_the_defences_name(what, number):
    told = rf"^the defence plug-in \S+:Making failed in apply: .*{WRONG[what][1]}"
    with pytest.raises(RunFailedError, match=told):
        uploaded(chain_of("Making", what=what), number)


def test_an_upload_need_not_be_detached_and_may_be_withheld():
    made = uploaded(chain_of("Making", what="with a gradient"))
    assert not any(tensor.requires_grad for tensor in made.values())
    assert all(torch.equal(made[name], tensor) for name, tensor in GRADIENTS.items())
    with pytest.raises(WithheldError, match="enough"):
        uploaded(chain_of("Making", what="withheld"))


def test_gradients_that_were_not_finite_are_not_the_defences_fault():
    diverged = GRADIENTS | {"bottom.fc.weight": torch.full((2, 3), float("nan"))}
    made = chain_of("Making", what="NaN").apply(
        diverged, 1, rows=torch.arange(4), x=torch.zeros(4, 3), model=nn.Identity()
    )
    assert bool(made["bottom.fc.weight"].isnan().all())


def test_large_gradients_whose_sum_is_infinite_are_finite():
    large = {name: torch.full_like(tensor, 3e38) for name, tensor in GRADIENTS.items()}
    chain = chain_of("Making", what="with a gradient")
    assert chain.apply(large, 1, rows=torch.arange(4), x=torch.zeros(4, 3), model=nn.Identity()).keys() == large.keys()


def used(where: str, value: Any) -> object:
    chain = chain_of("Hooked", where=where, value=value)
    uploaded(chain)
    return chain.mean_over, chain.rows(1, torch.arange(4)), chain.report()


@pytest.mark.parametrize("where", ["schedule", "mean_over", "rows", "report"])
def test_an_error_in_any_hook_bears_the_defences_name(where):
    with pytest.raises(
        RunFailedError, match=rf":Hooked failed in {where}: KeyError: 'a bug' \(test_checked_defences.py"
    ):
        used(where, "fails")


@pytest.mark.parametrize(
    ("where", "value", "told"),
    [
        ("schedule", None, "it must return a schedule's name, not NoneType"),
        ("mean_over", 0, "it must be a whole number from 1 on or None, not 0"),
        ("mean_over", True, "it must be a whole number from 1 on or None, not bool"),
        ("mean_over", 0.5, "it must be a whole number from 1 on or None, not float"),
        ("rows", None, "it must return an int64 tensor of one dimension, not NoneType"),
        ("rows", [0.5], "not a float32 tensor"),
        ("rows", [0, 20], "it must return rows from 0 to 19, not 20"),
        ("report", None, "it must return a dict, not NoneType"),
        ("report", "a tensor", "it must return what JSON can hold: Object of type Tensor is not JSON"),
    ],
)
def test_what_any_hook_returns_is_checked(where, value, told):
    with pytest.raises(RunFailedError, match=rf":Hooked failed in {where}: .*{told}"):
        used(where, value)


def test_hooks_that_fit_are_taken_at_their_word():
    over, rows, report = used("mean_over", 7)
    assert (over, rows.tolist(), report["chain"][1]) == (7, [0, 1, 2, 3], {"name": f"{__name__}:Hooked"})
    assert used("mean_over", torch.tensor(7).numpy()[()])[0] == 7  # numpy's whole numbers are such too
    assert used("rows", [5, 6])[1].tolist() == [5, 6]
