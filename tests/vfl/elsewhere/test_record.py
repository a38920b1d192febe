"""A transcript from somebody else's training loop: what it holds, what attacks make of it, what is not known."""

import contextlib
from itertools import pairwise

import pytest
import torch
from torch import nn

import vfl
from attacker.driver.offline import attack_transcript
from attacker.start import refusals, start_attack
from tests.vfl.elsewhere.loop_support import COLUMNS, SAMPLES, Own, data, networks, recorded, recording, train
from vfl.config import parse_config
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.folder.transcript import Transcript
from vfl.models.whole import known_model
from vfl.referee import score_run
from vfl.registry import PluginSection


def attacked(folder, out, name, **options):
    """Let an attack loose on a transcript; return the scores."""
    transcript = Transcript(folder)
    section = PluginSection.model_validate({"name": name, **options})
    config = transcript.config.model_copy(update={"attack": section})
    attack_transcript(transcript, config, out)
    return score_run(out, config, load_data(config)).attack


def test_rounds_hold_the_gradients_and_parameters_of_the_loop_bit_by_bit(tmp_path):
    bottoms, top = networks()
    seen = []

    def say(recorder, rows):
        parts = [*bottoms, top]
        seen.append([{n: (p.detach().clone(), p.grad.clone()) for n, p in one.named_parameters()} for one in parts])
        recorder.round(rows)

    with recording(tmp_path, bottoms, top) as recorder:
        train(recorder, bottoms, top, say=say)
    rounds = list(Transcript(recorder.transcript))
    assert len(rounds) == len(seen) == recorder.rounds == 12
    for one, parts in zip(rounds, seen, strict=True):
        for gradients, parameters, kept in zip(
            (*one.gradients.bottoms, one.gradients.top),
            (*one.parameters.bottoms, one.parameters.top),
            parts,
            strict=True,
        ):
            assert gradients.keys() == parameters.keys() == kept.keys()
            assert all(torch.equal(parameters[n], p) and torch.equal(gradients[n], g) for n, (p, g) in kept.items())
    assert [one.version for one in rounds] == list(range(1, 13))


def test_the_network_is_rebuilt_from_its_description_and_computes_the_same(tmp_path):
    bottoms, top = networks()
    with recording(tmp_path, bottoms, top) as recorder:
        train(recorder, bottoms, top, epochs=1, lr=0.0)
    transcript = Transcript(recorder.transcript)
    first = next(iter(transcript))
    model = known_model(transcript.setting, first.parameters)
    x, _ = data()
    expected = top(torch.cat([bottoms[0](x[:, :12]), bottoms[1](x[:, 12:])], dim=1))
    assert torch.equal(model([x[:, :12], x[:, 12:]]), expected)
    assert transcript.setting.frozen
    assert first.version == 1


def test_exact_recovers_the_rows_of_the_loop_in_its_owners_units(tmp_path):
    x, y = data()
    mean, deviation = torch.arange(COLUMNS) * 10.0, torch.full((COLUMNS,), 3.0)
    names = [f"income {at}" for at in range(COLUMNS)]
    folder = recorded(tmp_path, epochs=3, truth=(x, y), columns=names, units=(mean, deviation))
    score = attacked(folder, tmp_path / "out", "exact")
    assert score.share_exact == 1.0
    rows = (tmp_path / "out" / "rows.csv").read_text().splitlines()
    assert "income 19" in rows[0]
    real = (x * deviation + mean)[0]
    assert any(f"{float(real[19]):.3f}"[:5] in line for line in rows)


@pytest.mark.parametrize(
    ("unknown", "able", "unable"),
    [
        (("indices",), {"exact"}, {"cafe": "the batches' indices", "least_squares": "the batches' indices"}),
        (("indices", "batch_size"), {"exact"}, {"idlg": "the sizes of the batches"}),
        (("parameters",), {"least_squares"}, {"exact": "the parameters in force", "idlg": "the parameters in force"}),
    ],
)
def test_attacks_that_can_do_without_what_is_unknown_run_and_the_others_say_what_they_lack(
    unknown, able, unable, tmp_path
):
    known = {"batch_size": 6} if "batch_size" in unknown else {}
    frozen = "parameters" in unknown
    folder = recorded(tmp_path, epochs=8, lr=0.0 if frozen else 1e-3, unknown=unknown, truth=data(), **known)
    assert not frozen or not list(folder.glob("parameters-*"))
    setting = Transcript(folder).setting
    found = refusals(setting)
    for name in able:
        assert found[name] is None, found[name]
        assert attacked(folder, tmp_path / name, name).share_exact > 0.3
        assert not set(unknown) & set(vfl.load(tmp_path / name).result.attack.used)
    for name, lacking in unable.items():
        with pytest.raises(UserError, match=f"attack {name} cannot run here: it needs {lacking}.*does not know them"):
            start_attack(PluginSection(name=name), setting)


def test_numbers_on_a_recorded_run_are_those_of_the_same_run_made_by_this_project(tmp_path):
    config = {
        "data": {"name": "digits", "samples": 16},
        "federation": {"workers": 2, "batch_size": 4, "epochs": 2},
        "model": {"name": "mlp", "hidden": [128, 64]},
        "training": {"optimizer": "adam", "lr": 0.001},
        "attack": {"name": "exact"},
        "transcript": True,
    }
    seen = []
    ours = vfl.simulate(config, out=tmp_path / "ours", on_round=seen.append)
    held = load_data(parse_config(config, "the test"))
    model = known_model(ours.setting, seen[0].parameters)
    with vfl.record(
        tmp_path / "theirs", list(model.bottoms), model.top, sample_shape=held.sample_shape, classes=10, samples=16,
        truth=(held.x, held.y), training=config["training"],
    ) as recorder:  # fmt: skip
        slices = [box.cut(held.x) for box in ours.setting.boxes]
        optimiser = torch.optim.Adam(model.parameters(), lr=0.001)
        for one in seen:
            optimiser.zero_grad()
            logits = model([part[one.indices] for part in slices])
            nn.functional.cross_entropy(logits, held.y[one.indices]).backward()
            recorder.round(one.indices)
            optimiser.step()
    theirs = list(Transcript(recorder.transcript))
    for a, b in zip(theirs, seen, strict=True):
        for left, right in zip(a.gradients.bottoms, b.gradients.bottoms, strict=True):
            assert all(torch.allclose(left[name], right[name], atol=1e-6) for name in right)
    found = attacked(recorder.transcript, tmp_path / "out", "exact")
    expected = ours.result.attack
    assert found.share_30db == expected.share_30db > 0.5
    assert found.certified == expected.certified
    assert abs(found.psnr_mean - expected.psnr_mean) < 1.0


@pytest.mark.parametrize("edges", [(0, 12, 20), (0, 20)], ids=["two parties", "one party"])
@pytest.mark.parametrize(
    ("training", "classes"),
    [({"loss": "binary"}, 2), ({"loss": "squared"}, 1), ({"class_weights": [1, 5, 1, 1]}, 4)],
    ids=["one logit", "a number", "class weights"],
)
def test_targets_as_people_have_them_are_recorded_and_recovered(training, classes, edges, tmp_path):
    x, y = data()
    target = x[:, 3] * 2 + 0.1 * x[:, 15] if classes == 1 else y % classes
    parts = list(pairwise(edges))
    torch.manual_seed(2)
    bottoms, top = [Own(stop - start) for start, stop in parts], nn.Linear(8 * len(parts), 4 if classes == 4 else 1)
    weights = torch.tensor(training.get("class_weights", [1.0] * 4))
    losses = {
        1: lambda logits, rows: nn.functional.mse_loss(logits[:, 0], target[rows]),
        2: lambda logits, rows: nn.functional.binary_cross_entropy_with_logits(logits[:, 0], target[rows].float()),
        4: lambda logits, rows: nn.functional.cross_entropy(logits, target[rows], weight=weights.float()),
    }
    about = {"classes": classes, "training": training, "truth": (x, target), "slices": [f"{a}:{b}" for a, b in parts]}
    with recording(tmp_path, bottoms, top, **about) as recorder:
        optimiser = torch.optim.Adam([p for m in (*bottoms, top) for p in m.parameters()], lr=1e-3)
        for _ in range(3):
            for rows in torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(3)).split(4):
                outputs = [own(x[rows, start:stop]) for own, (start, stop) in zip(bottoms, parts, strict=True)]
                optimiser.zero_grad()
                losses[classes](top(torch.cat(outputs, dim=1)), rows).backward()
                recorder.round(rows)
                optimiser.step()
    score = attacked(recorder.transcript, tmp_path / "out", "exact")
    assert score.share_exact == 1.0
    assert score.labels.right > 0.9 > score.labels.guess
    assert score.certified > 0.9 * SAMPLES


def test_a_number_needs_a_loss_for_numbers(tmp_path):
    with pytest.raises(UserError, match=r"vfl.record: .*the loss squared is for numbers"):
        recorded(tmp_path, epochs=1, training={"loss": "squared"})


def test_a_loop_that_is_interrupted_leaves_a_transcript_of_what_was_done(tmp_path):
    bottoms, top = networks()
    recorder = recording(tmp_path, bottoms, top)
    with contextlib.suppress(KeyboardInterrupt), recorder:
        train(recorder, bottoms, top, epochs=1)
        raise KeyboardInterrupt
    assert Transcript(recorder.transcript).rounds == 6


class Skips(nn.Module):
    """A network that no chain of layers is."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 12)

    def forward(self, x):
        return x + self.fc(x)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"bottoms": [Skips(), nn.Linear(8, 8)]}, r"bottoms\[0\]: it is not a chain of layers"),
        ({"bottoms": [nn.Sequential(nn.BatchNorm1d(12)), nn.Linear(8, 8)]}, "batch norm"),
        ({"top": None}, "give top, the network behind the parties' outputs"),
        ({"slices": ("0:12", "13:20")}, "federation.slices"),
        ({"unknown": ("labels",)}, "unknown can name indices, parameters, batch_size, and names labels"),
        ({"unknown": ("batch_size",)}, "though indices tell it"),
        ({"samples": 3}, "the largest batch has 3"),
        ({"truth": (torch.zeros(3, 2), torch.zeros(3))}, "truth has samples of shape"),
        ({"epochs": 3}, "unexpected keyword argument 'epochs'"),
    ],
)
def test_what_cannot_be_recorded_is_a_sentence(change, sentence, tmp_path):
    bottoms, top = networks()
    change = dict(change)
    bottoms, top = change.pop("bottoms", bottoms), change.pop("top", top)
    with pytest.raises(UserError, match=sentence), recording(tmp_path, bottoms, top, **change) as recorder:
        train(recorder, bottoms, top, epochs=1)


def test_gradients_as_they_are_uploaded_are_recorded_in_place_of_the_networks_own(tmp_path):
    bottoms, top = networks()

    def say(recorder, rows):
        given = [{name: p.grad.sign() for name, p in one.named_parameters()} for one in bottoms]
        recorder.round(rows, gradients=given)

    with recording(tmp_path, bottoms, top) as recorder:
        train(recorder, bottoms, top, epochs=1, say=say)
    first = next(iter(Transcript(recorder.transcript)))
    assert set(first.gradients.bottoms[0]["fc1.bias"].unique().tolist()) <= {-1.0, 0.0, 1.0}
    with pytest.raises(UserError, match=r"bottoms\[0\] has for fc1.weight a gradient of shape None"):
        recording(tmp_path / "b", bottoms, top).round([1, 2], gradients=[{}, {}])
    assert Transcript(recorder.transcript).setting.samples == SAMPLES
