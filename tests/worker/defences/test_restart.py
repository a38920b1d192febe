"""A worker that comes back in the middle of a run: rounds done again, counts that are gone on with or were lost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.worker.defences.support import PLAN, conv_model, numbers, played, started, upload
from vfl.registry import PluginSection
from worker.defences import Chain, WithheldError


def applied(chain: Chain) -> object:
    model, x = conv_model(), numbers(4, 1, 8, 8)
    gradients = {f"bottom.{name}": torch.ones_like(tensor) for name, tensor in model.named_parameters()}
    return chain.apply(gradients, 1, rows=torch.arange(4), x=x, model=model)


@pytest.mark.parametrize("counting", [{"name": "breaker"}, {"name": "dp", "noise_multiplier": 1.0, "batches": "known"}])
def test_a_restarted_worker_whose_defence_keeps_count_uploads_no_more(counting: dict[str, object]) -> None:
    chain = Chain([PluginSection(name="clip"), PluginSection.model_validate(counting)], PLAN)
    applied(chain)
    chain.start_late()
    with pytest.raises(WithheldError, match=f"it was restarted, and with it went what its {counting['name']} had"):
        applied(chain)
    assert chain.report()["withheld_from"]["round"] == 0


DP = {"name": "dp", "noise_multiplier": 1.0, "batches": "known"}
BREAKER = {"name": "breaker", "limit": 0.3, "cell": 2}


class Process:
    """One worker's defences as one of its processes has them, all with the same file for what they count."""

    def __init__(self, folder: Path, *sections: dict[str, object], late: bool = False) -> None:
        self.file = folder / "count"
        plan = replace(PLAN, rounds=40, count=self.file)
        self.chain = Chain([PluginSection.model_validate(one) for one in sections], plan)
        if late:
            self.chain.start_late()
        else:
            self.chain.start_first()

    def play(self, *rounds: int) -> list[object]:
        """Return what is uploaded in each of these rounds, or the sentence with which nothing is."""
        model, said = conv_model(), []
        for number in rounds:
            rows = torch.randperm(20, generator=torch.Generator().manual_seed(number // 5))[number % 5 * 4 :][:4]
            x = numbers(20, 1, 8, 8)[rows]
            model.zero_grad()
            (model(x) * numbers(20, 5, seed=9)[rows]).sum().backward()
            gradients = {f"bottom.{name}": one.grad.clone() for name, one in model.named_parameters()}
            try:
                uploaded = self.chain.apply(gradients, number, rows=rows, x=x, model=model)
                said.append({name: tensor.tolist() for name, tensor in uploaded.items()})
            except WithheldError as withheld:
                said.append(str(withheld))
        return said


@pytest.mark.parametrize("sections", [[DP], [BREAKER], [DP, BREAKER], [BREAKER | {"limit": 0.0}]])
def test_a_restarted_worker_goes_on_with_its_count_bit_by_bit(
    sections: list[dict[str, object]], tmp_path: Path
) -> None:
    undisturbed = Process(tmp_path / "a", *sections)
    expected = undisturbed.play(*range(20))
    first = Process(tmp_path / "b", *sections)
    said = first.play(*range(7))
    second = Process(tmp_path / "b", *sections, late=True)
    assert second.play(*range(5, 7)) == expected[5:7]  # done again, and counted once
    said += second.play(*range(7, 15))
    third = Process(tmp_path / "b", *sections, late=True)
    said += third.play(*range(15, 20))
    assert said == expected
    assert third.chain.report() == undisturbed.chain.report()
    assert first.file.stat().st_mode & 0o777 == 0o600


def test_a_breaker_trips_in_the_round_in_which_it_would_have_without_the_restart(tmp_path: Path) -> None:
    said = Process(tmp_path / "a", BREAKER).play(*range(20))
    trips = next(at for at, one in enumerate(said) if isinstance(one, str))
    assert trips > 5  # its memory decides, not one gradient
    Process(tmp_path / "b", BREAKER).play(*range(trips - 1))
    assert Process(tmp_path / "b", BREAKER, late=True).play(*range(trips - 1, 20)) == said[trips - 1 :]


def test_a_dp_budget_is_not_spent_twice_by_a_restart(tmp_path: Path) -> None:
    Process(tmp_path, DP).play(*range(40))
    for number in (40, 41):
        again = Process(tmp_path, DP, late=True)
        assert again.play(number) == ["its dp budget was for 40 rounds, and this is one more"]


def changed(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (None, "No such file"),
        (lambda _: b"", "is empty"),
        (changed(20), "is damaged"),
        (changed(-20), "is damaged"),
        (lambda _: b"[[[[1]]]]\n", "is damaged"),
        (lambda data: data.replace(b'"places": ["0"]', b'"places": ["1"]'), "is damaged"),
    ],
)
def test_a_count_that_cannot_be_gone_on_with_ends_the_uploads(damage: object, sentence: str, tmp_path: Path) -> None:
    process = Process(tmp_path, DP)
    process.play(1, 2, 3)
    if callable(damage):
        process.file.write_bytes(damage(process.file.read_bytes()))
    else:
        process.file.unlink()
    (said,) = Process(tmp_path, DP, late=True).play(4)
    assert "it was restarted, and with it went what its dp had counted" in str(said)
    assert sentence in str(said)


def test_a_record_that_a_killed_process_wrote_half_of_was_never_uploaded_and_is_written_again(tmp_path: Path) -> None:
    expected = Process(tmp_path / "a", DP).play(1, 2, 3, 4)
    process = Process(tmp_path / "b", DP)
    process.play(1, 2)
    whole = process.file.read_bytes()
    process.play(3)
    for cut in (len(whole) + 1, len(whole) + 100, process.file.stat().st_size - 1):
        half = process.file.read_bytes()[:cut]
        (tmp_path / "c").mkdir(exist_ok=True)
        (tmp_path / "c" / "count").write_bytes(half)
        late = Process(tmp_path / "c", DP, late=True)
        assert late.play(3, 4) == expected[2:]
        assert Process(tmp_path / "c", DP, late=True).chain.report()["chain"][0]["rounds"] == 4


def test_a_count_of_another_plan_or_one_that_is_put_back_is_not_gone_on_with(tmp_path: Path) -> None:
    process = Process(tmp_path, DP)
    process.play(1, 2)
    old = process.file.read_bytes()
    process.play(3, 4)
    (said,) = Process(tmp_path, DP | {"clip": 2.0}, late=True).play(5)
    assert "is of another run" in str(said)
    process.file.write_bytes(old)
    assert Process(tmp_path, DP, late=True).play(5) == [
        "it was restarted, its count ends with round 2, and round 5 is ordered"
    ]


def test_a_new_run_begins_with_an_empty_count(tmp_path: Path) -> None:
    Process(tmp_path, DP).play(1, 2)
    assert Process(tmp_path, DP).chain.report()["chain"][0]["rounds"] == 0
    assert Process(tmp_path, DP, late=True).chain.report()["chain"][0]["rounds"] == 0


def test_two_processes_with_one_count_do_not_spoil_it_silently(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old = Process(tmp_path, DP)
    old.play(1, 2)
    new = Process(tmp_path, DP, late=True)
    new.play(3)
    assert isinstance(old.play(3)[0], dict)
    assert "another process has written there too" in capfd.readouterr().err
    (said,) = Process(tmp_path, DP, late=True).play(4)
    assert "No such file" in str(said)


def test_a_count_that_cannot_be_kept_is_said_and_the_run_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    process = Process(tmp_path / "taken", DP)
    assert isinstance(process.play(1)[0], dict)
    assert "cannot be kept in" in capfd.readouterr().err


def test_other_defences_go_on_after_a_restart() -> None:
    chain = Chain([PluginSection(name="noise")], PLAN)
    chain.start_late()
    assert applied(chain)


def test_a_round_that_is_done_again_counts_once_for_the_breaker() -> None:
    model, x = conv_model(), numbers(4, 1, 8, 8)
    gradients = {f"bottom.{name}": numbers(*tensor.shape) for name, tensor in model.named_parameters()}
    reports = []
    for times in (1, 3):
        breaker = started("breaker", limit=0.99)
        for number in (1, 2):
            for _ in range(times):
                assert breaker.apply(gradients, played(model, x, number)) is gradients
        reports.append(breaker.report())
    assert reports[0] == reports[1]


def test_a_round_ordered_again_with_other_samples_is_withheld_where_looks_are_counted() -> None:
    model, x = conv_model(), numbers(4, 1, 8, 8)
    gradients = {f"bottom.{name}": numbers(*tensor.shape) for name, tensor in model.named_parameters()}
    chain = Chain([PluginSection.model_validate({"name": "dp", "noise_multiplier": 1.0, "batches": "known"})], PLAN)
    first = chain.apply(gradients, 1, rows=torch.arange(4), x=x, model=model)
    again = chain.apply(gradients, 1, rows=torch.arange(4), x=x, model=model)
    assert all(torch.equal(first[name], again[name]) for name in first)
    with pytest.raises(WithheldError, match="round 1 was ordered again with other samples or parameters"):
        chain.apply(gradients, 1, rows=torch.arange(4) + 1, x=x, model=model)


def test_a_round_withheld_ahead_leaves_the_one_before_it_as_it_was() -> None:
    model, x = conv_model(), numbers(4, 1, 8, 8)
    gradients = {f"bottom.{name}": numbers(*tensor.shape) for name, tensor in model.named_parameters()}
    dp = {"name": "dp", "noise_multiplier": 1.0, "batches": "known"}
    chain = Chain([PluginSection.model_validate(dp)], replace(PLAN, rounds=1, samples=4))
    chain.apply(gradients, 1, rows=torch.arange(4), x=x, model=model)
    for _ in range(2):
        with pytest.raises(WithheldError, match="this is one more"):
            chain.apply(gradients, 2, rows=torch.arange(4), x=x, model=model)
    assert chain.apply(gradients, 1, rows=torch.arange(4), x=x, model=model)


def test_fake_gradients_that_are_redrawn_are_the_same_when_a_round_is_done_again() -> None:
    rounds = [{"top.w": numbers(40, seed=seed)} for seed in range(1, 6)]
    shield = started("fake_gradients", nu=1, tau=2.0)
    first = [upload(shield, gradients, number=at) for at, gradients in enumerate(rounds, start=1)]
    assert shield.report()["redraws"] > 0
    again = [upload(shield, gradients, number=at) for at, gradients in enumerate(rounds, start=1)]
    assert all(torch.equal(a["top.w"], b["top.w"]) for a, b in zip(first, again, strict=True))


def test_fake_gradients_of_a_restarted_worker_are_those_of_one_that_was_not() -> None:
    rounds = [{"top.w": numbers(40, seed=seed)} for seed in range(1, 6)]
    shield = started("fake_gradients", nu=1, tau=2.0)
    undisturbed = [upload(shield, gradients, number=at, seed=at) for at, gradients in enumerate(rounds, start=1)]
    assert shield.report()["redraws"] > 0
    restarted = upload(started("fake_gradients", nu=1, tau=2.0), rounds[-1], number=5, seed=5)
    assert torch.equal(restarted["top.w"], undisturbed[-1]["top.w"])
