"""Every seat in real processes: its transcript is what it saw and nothing else, and its attack is its own."""

import json

import numpy as np
import pytest
import torch

from tests.integration.command_support import cafe
from tests.integration.federation_support import Federation
from tests.seats_support import seated, seen_from, tensors_of
from tests.support import small_config
from vfl.config import load_config
from vfl.datasets.slices import boxes_of, load_data
from vfl.errors import UserError
from vfl.folder.transcript import Transcript
from vfl.local.launch import run_federation
from vfl.local.simulation import simulate
from vfl.maths.metrics import psnr
from vfl.observation import Setting
from vfl.referee import score_run
from vfl.ui.watch import Watch

CONFIG = """
seed: 3
data: {name: digits, samples: 60, test_samples: 20}
federation: {workers: 3, batch_size: 20, epochs: 1, join_timeout: 60, round_timeout: 60}
model: {name: mlp, hidden: [16]}
training: {optimizer: adam, lr: 0.001}
adversary: {worker: 2}
attack: {name: label_clusters}
"""
ALL = ("coordinator", "label_holder", {"worker": 2})


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """One run in which three parties look on, the coordinator among them."""
    out = tmp_path_factory.mktemp("together")
    config = small_config(adversary=ALL, training={"lr": 0.1}, attack={"name": "label_clusters"})
    data = load_data(config)
    run_federation(config, data, out)
    score_run(out, config, data)
    return config, out


@pytest.mark.parametrize("place", range(3))
def test_a_seats_transcript_has_what_autograd_says_that_it_saw_and_nothing_else(together, place):
    config, out = together
    data, seat = load_data(config), config.seats[place]
    whole = Setting.of(config, boxes_of(data, config), data.classes, len(data.x))
    recorded = Transcript(out / seat.slug / "transcript")
    expected = list(seen_from(seated(whole, (seat,), data.x, data.y), data.x, data.y, config.training))
    assert recorded.rounds == len(expected) == 4
    for found, right in zip(recorded, expected, strict=True):
        assert type(found) is type(right)
        here, there = tensors_of(found), tensors_of(right)
        assert here.keys() == there.keys()
        for where, tensor in there.items():
            assert torch.allclose(here[where], tensor, rtol=1e-4, atol=1e-6), where


def test_what_a_party_holds_is_in_its_own_transcript_alone(together):
    config, out = together
    data = load_data(config)
    boxes = boxes_of(data, config)
    settings = [Transcript(out / seat.slug / "transcript").setting for seat in config.seats]
    assert [list(one.held.slices) for one in settings] == [[], [0], [2]]
    assert torch.equal(settings[1].held.slices[0], boxes[0].cut(data.x))
    assert torch.equal(settings[2].held.slices[2], boxes[2].cut(data.x))
    assert [one.labels is not None for one in settings] == [False, True, False]
    files = [{path.name for path in (out / seat.slug / "transcript").glob("*")} for seat in config.seats]
    assert "held.safetensors" not in files[0]


def test_a_coalitions_attack_is_in_the_runs_summary(together):
    summary = json.loads((together[1] / "summary.json").read_text())
    assert summary["attack"]["adversary"] == list(ALL)
    assert summary["attack"]["labels"]["right"] > summary["attack"]["labels"]["guess"]
    assert summary["train"]["loss_first"] > 0
    assert summary["bytes"]["up"] > 0


def test_a_worker_attacks_beside_the_run_and_again_on_its_transcript(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    done = cafe("run", tmp_path / "run.yaml", "--out", tmp_path / "out", "--set", "transcript=true")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["attack"]["adversary"] == {"worker": 2}
    assert summary["attack"]["used"] == ["indices", "answers"]
    assert summary["attack"]["ledger"]["sentence"].startswith("answers of 3 of 3 rounds (1 to 3), no parameters")
    right = round(summary["attack"]["label_accuracy"] * 60)
    words = f"Worker 2 knows the labels of {right} of 60 samples after 3 rounds"
    assert words in done.stdout
    assert words in (tmp_path / "out" / "report.html").read_text()
    again = cafe("attack", tmp_path / "out" / "transcript", "--json", "--out", tmp_path / "again")
    assert json.loads(again.stdout)["attack"]["label_accuracy"] == summary["attack"]["label_accuracy"]
    here = simulate(
        small_config(), load_data(small_config()), tmp_path / "simulated"
    )  # the seat does not disturb others
    assert here.setting.seats[0].kind == "coordinator"


def test_one_process_gives_the_same_labels(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "run.yaml")
    run_federation(config, load_data(config), tmp_path / "run")
    alone = simulate(config, load_data(config), tmp_path / "alone")
    found = np.load(tmp_path / "run" / "recovered.npz")["labels"]
    assert found.tolist() == alone.recovery.labels.tolist()


KNOWN = "{0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9}"
BY_HAND = {
    "Worker 2 is curious: it": [],
    "The label holder is curious: it": [
        "adversary=label_holder", "auxiliary=20", "attack={name: inverse_network, steps: 20}",
    ],
    "Malicious worker 2 uploads what its attack proposes, and": [
        "adversary={worker: 2, malicious: true}", f"attack={{name: active_completion, known: {KNOWN}, steps: 2}}",
    ],
    "The malicious label holder answers what its attack proposes, and": [
        "adversary={label_holder: malicious}", "auxiliary=20", "federation.checks={answers: false}",
        "attack={name: fsha, hidden: 16, warm_up: 5, steps: 1}",
    ],
}  # fmt: skip


@pytest.mark.parametrize("who", BY_HAND)
def test_a_curious_party_by_hand_attacks_in_its_own_folder(who, tmp_path):
    (tmp_path / "seats.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "seats.yaml", BY_HAND[who])
    (tmp_path / "run.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    (seat,) = config.seats
    federation = Federation(tmp_path / "run.yaml", tmp_path / "coordinator")
    try:
        for worker in {0, 1, 2} - {seat.worker}:
            federation.worker(worker)
        page = ("--ui", "--ui-listen", "127.0.0.1:0")
        curious = federation.worker(seat.worker, "--out", tmp_path / "mine", "--referee", *page)
        theirs = federation.finished()
        assert curious.wait(120) == 0
    finally:
        federation.close()
    mine = json.loads((tmp_path / "mine" / "summary.json").read_text())
    assert mine["attack"]["adversary"] == config.model_dump(mode="json")["adversary"]
    if seat.kind == "label_holder":
        assert mine["attack"]["told"] == 20
        assert mine["attack"]["psnr_mean"] > 0
    else:
        assert mine["attack"]["labels"]["right"] > (0.2 if seat.malicious else 0.9)
    assert mine["rounds"] == 3
    assert theirs["attack"]["used"] == []
    assert theirs["attack"]["elsewhere"] is True
    assert not (tmp_path / "coordinator" / "recovered.npz").exists()
    assert (tmp_path / "mine" / "report.html").exists()
    watch = Watch(tmp_path / "mine")  # what its live page shows
    watch.refresh()
    assert (watch.view.round, watch.view.rounds, watch.view.state) == (3, 3, "ended")
    assert [worker.state for worker in watch.view.workers] == ["joined"] * 3
    (sentence,) = watch.view.run["curious"]["sentences"]
    assert sentence.startswith(f"{who} sees ")


@pytest.mark.parametrize("who", [who for who in BY_HAND if "alicious" in who])
def test_a_malicious_partys_transcript_has_what_it_saw_and_nothing_else(who, tmp_path):
    """Until its first proposal is played the rounds are the honest ones; later ones have the same tensors."""
    (tmp_path / "run.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "run.yaml", [*BY_HAND[who], "transcript=true"])
    data, (seat,) = load_data(config), config.seats
    run_federation(config, data, tmp_path / "out")
    recorded, boxes = Transcript(tmp_path / "out" / "transcript"), boxes_of(data, config)
    rounds = list(recorded)
    whole = Setting.of(config, boxes, data.classes, len(data.x))
    expected = list(seen_from(seated(whole, (seat,), data.x, data.y), data.x, data.y, config.training))
    for found, right in zip(rounds, expected, strict=True):
        assert tensors_of(found).keys() == tensors_of(right).keys()
    first, right = tensors_of(rounds[0]), tensors_of(expected[0])
    assert all(torch.allclose(first[where], tensor, rtol=1e-4, atol=1e-6) for where, tensor in right.items())
    held = recorded.setting.held
    assert list(held.slices) == [seat.worker]
    assert torch.equal(held.slices[seat.worker], boxes[seat.worker].cut(data.x))
    assert held.auxiliary is None if seat.kind == "worker" else torch.equal(held.auxiliary, data.x[:20])
    assert (recorded.setting.labels is None) == (seat.kind == "worker")


@pytest.mark.parametrize(
    ("changes", "refuses", "words"),
    [
        (
            ["attack.name=exact"],
            2,
            "exact cannot run here: it needs the coordinator's seat, and the adversary is worker 2",
        ),
        (
            ["attack.name=inverse_network", "adversary=[coordinator, {worker: 2}]"],
            None,
            "inverse_network cannot run here: it needs the label holder's seat, and the adversary is the coordinator",
        ),
    ],
    ids=["worker", "coalition"],
)
def test_by_hand_all_parties_hear_of_an_attack_of_another_seat_before_the_first_round(
    changes, refuses, words, tmp_path
):
    (tmp_path / "seats.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "seats.yaml", changes)
    (tmp_path / "run.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    federation = Federation(tmp_path / "run.yaml", tmp_path / "coordinator")
    try:
        parties = {number: federation.worker(number) for number in (0, 1)}
        parties[2] = federation.worker(2, "--out", tmp_path / "mine")
        parties[None] = federation.server
        codes = {number: party.wait(120) for number, party in parties.items()}
        assert codes == {number: 2 if number == refuses else 1 for number in parties}
        assert all(words in parties[number].stderr.read() for number in (0, 1, 2))
        assert any(words in line for line in federation.said)
    finally:
        federation.close()
    assert not [*tmp_path.rglob("round-*"), *tmp_path.rglob("model.pt")]


def test_an_attack_of_another_seat_ends_before_the_first_round(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "run.yaml", ["attack.name=exact"])
    with pytest.raises(UserError, match="exact cannot run here: it needs the coordinator's seat, and the adversary is"):
        run_federation(config, load_data(config), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_transcripts_of_different_parties_are_not_taken_for_each_others(together, tmp_path):
    out = together[1]
    done = cafe(
        "attack", out / "coordinator" / "transcript", "--out", tmp_path / "x", "--set", "adversary=label_holder"
    )
    assert done.returncode == 2
    assert "holds what the coordinator saw" in done.stderr


def test_what_the_adversary_knows_from_elsewhere_is_in_its_own_transcript_and_not_scored(tmp_path):
    """The label holder knows ten samples whole; its transcript has them, and the score is of the others."""
    (tmp_path / "run.yaml").write_text(CONFIG)
    changes = ["adversary=label_holder", "auxiliary=20", "attack={name: inverse_network, steps: 20}", "transcript=true"]
    config = load_config(tmp_path / "run.yaml", changes)
    data, out = load_data(config), tmp_path / "out"
    run_federation(config, data, out)
    recorded = Transcript(out / "transcript")
    assert torch.equal(recorded.setting.held.auxiliary, data.x[:20])
    summary = score_run(out, config, data)
    assert summary.attack.told == 20
    found = np.load(out / "recovered.npz")
    assert found["told"].tolist() == [True] * 20 + [False] * 40
    others = torch.cat([box.cut(torch.tensor(found["x"]))[20:].flatten(1) for box in boxes_of(data, config)[1:]], dim=1)
    truth = torch.cat([box.cut(data.x)[20:].flatten(1) for box in boxes_of(data, config)[1:]], dim=1)
    assert summary.attack.psnr_mean == pytest.approx(float(psnr(others, truth).mean()))
    again = cafe("attack", out / "transcript", "--json", "--out", tmp_path / "again")
    assert json.loads(again.stdout)["attack"]["psnr_mean"] == pytest.approx(summary.attack.psnr_mean, abs=1e-3)


def test_samples_known_from_elsewhere_are_for_a_party_that_holds_some_itself(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    with pytest.raises(UserError, match="auxiliary: samples that a curious worker or label holder knows"):
        load_config(tmp_path / "run.yaml", ["adversary=coordinator", "auxiliary=20", "attack.name=exact"])
    config = load_config(tmp_path / "run.yaml", ["auxiliary=60"])
    with pytest.raises(UserError, match="auxiliary: 60 of 60 samples leave none"):
        run_federation(config, load_data(config), tmp_path / "out")
