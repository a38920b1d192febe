"""Which defences are tried, which is recommended, and what is said where none holds."""

import itertools
import threading
import time
from pathlib import Path

import pytest

from tests.vfl.audit.made import attempt, finding, made_audit
from vfl.audit.budget import Budget
from vfl.audit.course import Run, Wanted
from vfl.audit.defending import trials
from vfl.audit.defending.advice import recommend
from vfl.audit.defending.attackers import Defending, attackers_above, worst_attackers
from vfl.audit.defending.defences import (
    all_candidates,
    named_candidate,
    place_of,
    together,
    told_attackers,
    with_candidate,
)
from vfl.audit.document import chapters, texts
from vfl.audit.document.page import audit_page
from vfl.audit.plan import Planned, all_seats, plan_attacks
from vfl.audit.recording import played_config
from vfl.audit.schema import Training, Trial
from vfl.config import parse_config
from vfl.config.places import PLACES
from vfl.observation import Setting
from vfl.partition import partition
from vfl.registry import PluginSection
from vfl.seats import COORDINATOR, Seat
from worker.defences import defences

WORKER = Seat("worker", 0)
CONFIG = {
    "data": {"name": "breast_cancer"},
    "federation": {"workers": 2, "batch_size": 8, "epochs": 2, "label_holder": 1},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"optimizer": "adam", "lr": 0.001},
}
ATTACKERS = {
    "uploads": [Planned((COORDINATOR,), PluginSection(name="exact"))],
    "answers": [Planned((WORKER,), PluginSection(name="label_clusters"))],
}


def config(**changes):
    return parse_config(CONFIG | changes, "the test's config")


def setting(of):
    return Setting.of(of, partition((30,), 2), 2, 100)


def run_of(*attempts, trials=()):
    audit = made_audit(*attempts, trials=list(trials), training={"rounds": 6, "accuracy": 0.95, "bytes": 100})
    return Run(Path("nowhere"), audit, Budget(60.0), Wanted(60.0), stop=threading.Event())


def trial(name, accuracy, held=(), broken=(), undecided=()):
    worst = 0.9 if broken else 0.01
    training = Training(rounds=6, accuracy=accuracy, bytes=110)
    lists = {"held_against": list(held), "broken_by": list(broken), "undecided": list(undecided)}
    return Trial(defence=name, outcome="done", training=training, worst=worst, **lists)


BOTH = [one.name for own in ATTACKERS.values() for one in own]
PLANS = [one for own in ATTACKERS.values() for one in own] + [
    Planned((WORKER,), PluginSection(name=name)) for name in ("label_batch", "label_norm")
]
OTHERS = [one.name for one in PLANS[2:]]


def undefended(*names, seconds=1.0):
    """What attackers learned without a defence, the worst and these others."""
    worst = (attempt(finding(beyond=0.9)), about_labels("label_clusters", 1.0))
    return [*worst, *(about_labels(name, 0.9, seconds=seconds) for name in names)]


def about_labels(name, beyond, **changes):
    worker = changes.pop("seat", {"worker": 0})
    defence = changes.get("defence", "none")
    state = "leaked" if beyond > 0.1 else "guess"
    found = finding(adversary=worker, attack=name, beyond=beyond, state=state, defence=defence)
    return attempt(found, adversary=worker, attack=name, **changes)


def with_these(candidates=()):
    return Defending(config(), list(PLANS), ATTACKERS, 6, candidates)


def recommended(*trials, attempts=()):
    return recommend(run_of(*attempts, trials=trials), with_these())


def test_the_cheapest_defence_that_holds_against_all_is_recommended_with_its_price():
    found = recommended(
        trial("a", 0.7, BOTH), trial("b", 0.9, BOTH), trial("c", 0.94, BOTH[:1]), trial("d", 0.95, BOTH[:1], BOTH[1:])
    )
    assert found.defence == "b"
    assert "accuracy 90.0% instead of 95.0%" in found.sentence
    assert "+10% on the wire" in found.sentence
    assert found.held_against == BOTH


@pytest.mark.parametrize("broken", [True, False])
def test_where_none_holds_against_all_the_audit_says_so(broken):
    other = {"broken": BOTH[1:]} if broken else {"undecided": BOTH[1:]}
    found = recommended(trial("a", 0.9, BOTH[:1], **other))
    assert found.defence is None
    said = "The one defence that was tried does not keep every seat below the limit of 0.1."
    assert found.sentence.startswith(said)
    held = "held by a, which worker 0, label_clusters broke." if broken else "held by a."
    assert f"The coordinator, exact: {held}" in found.sentence
    assert "more came to no result" not in found.sentence
    late = recommended(trial("a", 0.9, BOTH[:1], **other), Trial(defence="b"))
    assert late.sentence.startswith(said)
    assert late.sentence.endswith("1 more came to no result: nothing is known of it.")


def test_only_attackers_above_the_limit_are_met_and_each_seat_s_worst():
    attempts = [
        attempt(finding(beyond=0.9)),
        attempt(finding(beyond=1.0, defence="noise"), attack="theory", defence="noise"),
        attempt(finding(beyond=0.3, state="partly"), attack="theory"),
        attempt(
            finding(adversary={"worker": 0}, beyond=0.05, state="partly"), adversary={"worker": 0}, attack="label_norm"
        ),
    ]
    plans = [Planned((COORDINATOR,), PluginSection(name=name)) for name in ("exact", "theory")]
    plans.append(Planned((WORKER,), PluginSection(name="label_norm")))
    run = run_of(*attempts)
    assert worst_attackers(run, plans) == {"uploads": plans[:1]}
    assert attackers_above(run, plans) == plans[:2]


def test_every_defence_is_tried_where_it_can_act_and_a_seat_learned_too_much():
    every = all_candidates(PLACES)
    tried = {(place, one.section[place]["name"]) for one in every for place in one.places}
    able = {(place, name) for name in defences.names() if name != "none" for place in defences.find(name).places}
    assert tried == able
    for one in every:
        config(defence=with_candidate(config(), one))
    assert {one.places for one in all_candidates(["answers"])} == {("answers",)}


def test_defences_of_several_places_are_put_together_beside_the_config_s_own():
    both = together([named_candidate("noise"), named_candidate({"answers": {"name": "marvell"}})])
    assert both.label == "noise on uploads and marvell on answers"
    own = config(defence={"outputs": {"name": "clip"}})
    assert list(with_candidate(own, both)) == ["outputs", "uploads", "answers"]
    worst = ATTACKERS | {"outputs": [Planned((COORDINATOR,), PluginSection(name="x"))]}
    against = Defending(own, PLANS, worst, 6)
    assert [one.name for one in against.against(both)] == BOTH


@pytest.mark.parametrize(("strong", "tried"), [("noise", 3), ("nothing", 3), ("prune", 1)])
def test_where_defences_are_broken_together_the_next_cheapest_takes_the_place_of_the_one_that_gave_way(
    monkeypatch, strong, tried
):
    """On uploads only one of three holds beside marvell, or none."""
    uploads = [named_candidate(name) for name in ("noise", "quantize", "prune")]
    answers = [named_candidate({"answers": {"name": name}}) for name in ("marvell", "max_norm")]
    accuracies = {"noise": 0.7, "quantize": 0.8, "prune": 0.9}
    alone = [trial(one.label, accuracies[one.section["uploads"]["name"]], BOTH[:1]) for one in uploads]
    alone += [trial(one.label, 0.9, BOTH[1:]) for one in answers]
    run = run_of(*undefended(), trials=alone)

    def carry_out(run, _tried, candidate, _watch, **_):
        holds = candidate.section["uploads"]["name"] == strong
        made = trial(candidate.label, 0.6, BOTH if holds else BOTH[1:], () if holds else BOTH[:1])
        run.audit.trials.append(made)
        return made

    monkeypatch.setattr(trials, "_try", carry_out)
    trials._try_together(run, with_these([*uploads, *answers]), None, until=1.0)
    together = [one.defence for one in run.audit.trials[len(alone) :]]
    names = [f"{name} on uploads and marvell on answers" for name in ("prune", "quantize", "noise")]
    assert together == names[:tried]
    assert recommend(run, with_these()).defence == (None if strong == "nothing" else names[tried - 1])


@pytest.fixture
def replays(monkeypatch):
    """Replays on recordings that are not there: what each attacker knows under a defence, by both names."""
    known, met, left = {}, [], []

    def attempt_these(run, bench, planned, _watch, *, until, later=0):
        met.append([one.section.name for one in planned])
        left.append(later)
        made = []
        for one in planned:
            no_time = "not run" if run.budget.left(until) < 15 else 0.0
            beyond = known.get((bench.defence, one.section.name), no_time)
            if isinstance(beyond, str):
                made.append(attempt(adversary=one.adversary, attack=one.section.name, outcome=beyond))
            else:
                made.append(about_labels(one.section.name, beyond, defence=bench.defence, seat=one.adversary))
        run.audit.attempts.extend(one.model_copy(update={"defence": bench.defence}) for one in made)
        return made

    monkeypatch.setattr(trials, "attempt_all", attempt_these)
    monkeypatch.setattr(trials, "_recording", lambda *_args, **_: "a recording")
    monkeypatch.setattr(Run, "save", lambda _run: None)
    return known, met, left


def test_the_first_that_breaks_defences_together_ends_their_trial_the_quickest_attackers_come_first(replays):
    known, met, left = replays
    names = ("exact", "theory", "rgap", "cafe")
    plans = [Planned((COORDINATOR,), PluginSection(name=name)) for name in names]
    seconds = (30.0, 1.0, 5.0, 20.0)
    took = dict(zip(names, seconds, strict=True))
    run = run_of(*(attempt(finding(beyond=0.9), attack=name, seconds=took[name]) for name in names))
    known["noise", "rgap"] = 0.5
    bench = trials.Bench(None, Path("nowhere"), "noise")
    trials._until_broken(run, bench, trials._quickest_first(run, plans), None, until=1.0)
    assert list(itertools.chain(*met)) == ["theory", "rgap"]
    assert left[-1] == 2  # the others keep their share of the time


def test_before_a_defence_is_recommended_all_attackers_above_the_limit_have_met_it(replays):
    """One attacker that reads every label, and was not the worst of its seat, breaks the cheapest."""
    known, met, _ = replays
    cheap, dear = trial("cheap", 0.9, BOTH), trial("dear", 0.8, BOTH)
    run = run_of(*undefended("label_batch", "label_norm"), trials=[cheap, dear])
    known["cheap", "label_batch"] = 0.95
    trials.settle(run, with_these(), None, until=1.0)
    assert run.audit.recommendation.defence == "dear"
    assert set(run.audit.recommendation.held_against) == {*BOTH, *OTHERS}
    assert run.audit.recommendation.unmet == []
    assert "It held against all 4 attackers that know more without it" in run.audit.recommendation.sentence
    assert cheap.broken_by == ["worker 0, label_batch"]
    assert cheap.worst == 0.95
    assert not any(name in chosen for chosen in met for name in ("exact", "label_clusters"))  # they have met it


def test_where_an_attacker_that_was_not_the_worst_breaks_every_defence_none_is_recommended(replays):
    known, _, _ = replays
    run = run_of(*undefended("label_batch"), trials=[trial("a", 0.9, BOTH), trial("b", 0.8, BOTH)])
    known |= {("a", "label_batch"): 0.9, ("b", "label_batch"): 0.2}
    trials.settle(run, with_these(), None, until=1.0)
    assert run.audit.recommendation.defence is None
    assert "Worker 0, label_batch: held by none." in run.audit.recommendation.sentence


@pytest.mark.parametrize("outcome", ["out of time", "failed"])
def test_an_attacker_that_came_to_no_result_is_named_beside_the_recommendation(replays, outcome):
    known, _, _ = replays
    run = run_of(*undefended("label_batch", "label_norm"), trials=[trial("a", 0.9, BOTH)])
    known["a", "label_norm"] = outcome
    trials.settle(run, with_these(), None, until=1.0)
    found = run.audit.recommendation
    assert (found.defence, found.unmet) == ("a", [f"worker 0, label_norm ({outcome})"])
    assert "keeps every seat" not in found.sentence
    assert "A kept 3 of 4 attackers below the limit of 0.1." in found.sentence
    assert ("The budget ended before" in found.sentence) is (outcome == "out of time")
    assert f"nothing is known of worker 0, label_norm ({outcome})" in found.sentence
    for said in (page_of(run), *(list(texts(one.blocks)) for one in chapters(run.audit) if one.key == "defence")):
        assert any(f"worker 0, label_norm ({outcome})" in text for text in said)


def page_of(run):
    return [audit_page(run.audit)]


def test_a_slow_attack_that_breaks_the_recommended_defences_has_the_next_ones_tried(replays, monkeypatch):
    """It came to its result after they were recommended, as it was tried last; who broke them comes first then."""
    known, met, _ = replays
    uploads = [named_candidate(name) for name in ("prune", "noise")]
    alone = [trial(one.label, 0.9 - 0.1 * number, BOTH[:1]) for number, one in enumerate(uploads)]
    answers = named_candidate({"answers": {"name": "marvell"}})
    run = run_of(*undefended("label_batch"), trials=[*alone, trial(answers.label, 0.9, BOTH[1:])])
    tried = with_these([*uploads, answers])
    tried.planned.append(slow := Planned((COORDINATOR,), PluginSection(name="dlg")))

    def carry_out(run, _tried, candidate, _watch, **_):
        run.audit.trials.append(trial(candidate.label, 0.6, BOTH))
        return run.audit.trials[-1]

    monkeypatch.setattr(trials, "_try", carry_out)
    trials.settle(run, tried, None, until=1.0)
    first = f"{uploads[0].label} and {answers.label}"
    assert (run.audit.recommendation.defence, run.audit.recommendation.unmet) == (first, [])
    run.audit.attempts.append(attempt(finding(beyond=0.5, attack="dlg"), attack="dlg", seconds=100.0))
    known[first, "dlg"] = 0.4
    trials.settle(run, tried, None, until=1.0)
    assert run.audit.recommendation.defence == f"{uploads[1].label} and {answers.label}"
    assert slow.name in run.audit.recommendation.held_against
    assert met[-1][0] == "dlg"


@pytest.mark.usefixtures("replays")
def test_when_the_budget_is_used_up_the_recommendation_says_so():
    run = run_of(*undefended("label_batch"), trials=[trial("a", 0.9, BOTH), trial("b", 0.8, BOTH)])
    run.budget = Budget(60.0, began=time.monotonic() - 59.0)
    trials.settle(run, with_these(), None, until=1.0)
    assert run.audit.recommendation.defence == "a"
    assert run.audit.recommendation.unmet == ["worker 0, label_batch (not run)"]
    assert "The budget ended before it had met all" in run.audit.recommendation.sentence


def test_what_chance_may_explain_breaks_no_defence_and_is_no_promise(replays, monkeypatch):
    """With many attackers and few samples one is above the limit by chance: a clear defence comes first."""
    known, _, _ = replays
    judge_as(monkeypatch, "guess")
    run = run_of(*undefended("label_batch"), trials=[trial("cheap", 0.9, BOTH), trial("dear", 0.8, BOTH)])
    known["cheap", "label_batch"] = 0.2
    trials.settle(run, with_these(), None, until=1.0)
    assert run.audit.recommendation.defence == "dear"
    known["dear", "label_batch"] = 0.15
    run = run_of(*undefended("label_batch"), trials=[trial("cheap", 0.9, BOTH), trial("dear", 0.8, BOTH)])
    trials.settle(run, with_these(), None, until=1.0)
    found = run.audit.recommendation
    assert (found.defence, found.unclear, found.unmet) == ("cheap", ["worker 0, label_batch"], [])
    assert found.sentence.startswith("Cheap kept 2 of 3 attackers below the limit of 0.1.")
    assert "Not clear, as chance may explain what they found (0.20 at most): worker 0, label_batch." in found.sentence
    assert "worker 0, label_batch" not in run.audit.trials[0].held_against + run.audit.trials[0].broken_by
    assert "Not clear, as chance may explain it: worker 0, label_batch" in page_of(run)[0]


def judge_as(monkeypatch, state):
    """Let chance explain, or not, all that attackers find in replays."""
    made = about_labels

    def doubtful(name, beyond, **changes):
        found = made(name, beyond, **changes)
        if changes.get("defence", "none") == "none":
            return found
        return found.model_copy(update={"findings": [found.findings[0].model_copy(update={"state": state})]})

    monkeypatch.setitem(globals(), "about_labels", doubtful)


def test_a_defence_that_met_all_comes_before_a_cheaper_one_that_did_not(replays):
    known, _, _ = replays
    run = run_of(*undefended("label_batch"), trials=[trial("cheap", 0.9, BOTH), trial("dear", 0.8, BOTH)])
    known["cheap", "label_batch"] = "failed"
    trials.settle(run, with_these(), None, until=1.0)
    assert run.audit.recommendation.defence == "dear"


def test_every_place_where_an_attacker_looked_has_a_worst():
    """Of one seat two attacks learn the same of the same data, from different things: each place needs a defence."""
    attempts = [
        attempt(finding(beyond=1.0), used=["gradients"]),
        attempt(finding(beyond=0.9, attack="theory"), attack="theory", used=["outputs"]),
    ]
    plans = [Planned((COORDINATOR,), PluginSection(name=name)) for name in ("exact", "theory")]
    assert worst_attackers(run_of(*attempts), plans) == {"uploads": plans[:1], "outputs": plans[1:]}


def test_a_defence_must_act_where_an_attack_looked():
    coalition = (COORDINATOR, Seat("label_holder", 1))
    assert place_of(coalition, ["indices", "outputs", "parameters"]) == "outputs"
    assert place_of((COORDINATOR,), ["gradients"]) == "uploads"
    assert place_of((WORKER,), ["in its own words"]) == "answers"
    assert place_of((WORKER,), ["gradients"]) == "answers"  # of its own model: no upload of others is in them


def test_an_attacker_that_knows_of_the_defence_is_among_them_or_it_is_said_why_not():
    still = config(training={"lr": 0.0}, federation=CONFIG["federation"] | {"epochs": 40})
    planned, why = told_attackers(named_candidate({"name": "prune", "keep": 0.1}), seats_of(still))
    assert [one.section.options for one in planned] == [{"told": {"name": "prune"}}]
    assert why == ""
    planned, why = told_attackers(named_candidate("prune"), seats_of(config()))
    assert planned == []
    assert "averaging (told: prune), cannot run here: it needs frozen parameters" in why


@pytest.mark.parametrize(("name", "classes"), [("marvell", 2), ("marvell", 3), ("discretise", 2)])
def test_a_worker_is_told_of_noise_on_answers_where_it_can_be(name, classes):
    both = together([named_candidate({"answers": {"name": name}}), named_candidate("soteria")])
    planned, why = told_attackers(both, seats_of(config(), classes), ATTACKERS["answers"])
    able = (name, classes) == ("marvell", 2)
    assert [one.name for one in planned] == ["worker 0, label_direction (told: true)"] * able
    assert all(one.told and one.seats == (WORKER,) for one in planned)
    none = "" if able else f"no attack here can be told of {name} on answers; "
    if classes == 3:
        none = "the attacker that is told of it, label_direction (told: true), cannot run here: it needs two classes"
    assert why.startswith(none)
    assert why.endswith("no attack here can be told of soteria on uploads")


def test_every_attack_is_planned_from_every_seat_that_it_can_be_played_from():
    own = config()
    seats = all_seats(own.topology)
    assert seats == (COORDINATOR, WORKER, Seat("label_holder", 1))
    known = setting(own)
    settings = {seat: known if seat == COORDINATOR else _at(seat, known, own) for seat in seats}
    planned = plan_attacks(settings, own)
    assert planned[0].name == "the coordinator, exact"
    names = {one.name for one in planned}
    assert {"worker 0, label_clusters", "the coordinator and the label holder, output_inversion"} <= names
    assert not any("none" in name for name in names)
    refused = next(one for one in planned if one.section.name == "least_squares")
    assert "frozen parameters" in refused.refusal


def test_where_the_federation_runs_a_party_that_breaks_the_protocol_has_a_seat():
    known = seats_of(config(model={"name": "mlp", "hidden": [64]}))
    names = {one.name: one for one in plan_attacks(known, config(), runs=True)}
    isolate = names["the malicious coordinator, isolate"]
    assert isolate.adversary == {"coordinator": "malicious"}
    assert "which follows the protocol" not in isolate.refusal
    assert not names["the coordinator, exact"].seats[0].malicious
    replayed = {one.name: one for one in plan_attacks(known, config())}
    assert "which follows the protocol" in replayed["the coordinator, isolate"].refusal
    played = played_config(config(auxiliary=5, adversary="label_holder"), isolate.adversary, isolate.section)
    assert (played.adversary.coordinator, played.attack.name, played.auxiliary) == ("malicious", "isolate", 0)


def seats_of(own, classes=2):
    """What the coordinator and a worker know at the start."""
    known = Setting.of(own, partition((30,), 2), classes, 100)
    return {COORDINATOR: known, WORKER: _at(WORKER, known, own, classes)}


def _at(seat, known, own, classes=2):
    return Setting.at(own, seat, known.boxes[seat.worker], classes, samples=100)
