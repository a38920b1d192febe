"""What an audit says of attempts: who learns what, who held against whom, and what shows nothing."""

import time

import pytest

from tests.vfl.audit.made import attempt, finding, made_audit
from vfl.audit.budget import Budget, seconds_of
from vfl.audit.conditions import Condition
from vfl.audit.document import auditor, chapters, holdings, texts
from vfl.audit.document.page import audit_page
from vfl.audit.judgement import conclude
from vfl.errors import UserError
from vfl.folder.words import amount
from vfl.seats import COORDINATOR, Seat

SEATS = [(COORDINATOR,), (Seat("worker", 0),)]


def test_a_seat_that_learned_no_more_than_a_guess_names_the_attacks_it_held_against():
    held = attempt(finding(state="guess", beyond=0.0), adversary={"worker": 0}, attack="label_norm")
    found = conclude(made_audit(attempt(finding()), held), SEATS)
    assert found.sentences[1].startswith("Worker 0: no more than a guess. Held against label_norm,")
    assert found.verdict == "leaked"
    assert found.headline.startswith("The coordinator: 90 of 100 labels of worker 1")


@pytest.mark.parametrize("outcome", ["refused", "out of time", "failed", "not run"])
def test_an_attack_without_a_result_is_never_called_held(outcome):
    silent = attempt(outcome=outcome, sentence="It says nothing about safety.")
    found = conclude(made_audit(silent), SEATS)
    assert found.verdict == "open"
    assert "this audit shows nothing" in found.headline
    assert all("eld against" not in sentence for sentence in found.sentences)
    assert found.untested[0].what == "exact, from the coordinator"
    said = [text for chapter in chapters(found) if chapter.key == "matrix" for text in texts(chapter.blocks)]
    assert outcome in said
    assert 'href="#untested"' in audit_page(found)
    assert not any(text.startswith("held") for text in said)


def test_of_equal_attacks_the_first_is_named_and_chance_hides_no_leak():
    first = attempt(finding(beyond=0.99), attack="exact", folder="attempts/coordinator_exact", rounds=5)
    equal = attempt(finding(beyond=1.0, attack="theory", evidence="x"), attack="theory", folder="x")
    found = conclude(made_audit(first, equal), SEATS[:1])
    assert found.sentences == [
        "The coordinator: 90 of 100 labels of worker 1 (a guess has 50); after 5 of 6 rounds, by exact."
    ]
    doubtful = attempt(finding(state="guess", beyond=0.3), attack="theory")
    known = attempt(finding(state="partly", beyond=0.2))
    assert conclude(made_audit(doubtful, known), SEATS[:1]).sentences[0].endswith("by exact.")


def test_whole_rows_stand_for_their_columns_in_the_sentence():
    rows = finding(what="rows", learned="all 9 whole rows of worker 0", target="worker 0", beyond=1.0)
    columns = finding(what="columns", learned="all 4 columns of worker 0", target="worker 0")
    other = finding(what="columns", learned="one column of worker 1", beyond=0.6)
    found = conclude(made_audit(attempt(rows, columns, other)), SEATS[:1])
    said = "The coordinator: all 9 whole rows of worker 0; {}after 6 rounds, by exact."
    assert found.sentences == [said.format("one column of worker 1; ")]
    few = finding(what="rows", learned="2 of 9 whole rows of all", target="workers 0 and 1", beyond=0.2, state="partly")
    found = conclude(made_audit(attempt(rows, columns, few)), SEATS[:1])
    assert found.sentences == [said.format("2 of 9 whole rows of all; ")]
    whole = finding(what="rows", learned="all 9 whole rows", target="workers 0 and 1", beyond=1.0)
    found = conclude(made_audit(attempt(rows, columns, other, whole)), SEATS[:1])
    assert found.sentences == ["The coordinator: all 9 whole rows; after 6 rounds, by exact."]


def test_records_that_are_whole_at_one_party_single_people_out():
    rows = finding(what="rows", target="worker 0", sentence="The coordinator knows 8 whole rows of worker 0.")
    none = finding(what="rows", target="workers 0 and 1", state="guess", leaked=0.0, beyond=0.95)
    found = conclude(made_audit(attempt(rows, none)), SEATS)
    risk = {name: (here, why) for name, here, _, why in auditor.risks(found)}
    assert risk["singling out"][0] == "shown"
    assert "8 whole rows of worker 0" in risk["singling out"][1]


def test_the_matrix_begins_with_what_leaked_most_and_counts_nothing_that_chance_may_explain():
    doubtful = attempt(finding(beyond=0.1, state="partly"), finding(beyond=0.6, state="guess"), attack="dlg")
    audit = conclude(made_audit(doubtful, attempt(finding(beyond=0.7), attack="rgap"), attempt(finding())), SEATS)
    (matrix,) = (one.blocks[0] for one in chapters(audit) if one.key == "matrix")
    said = [tuple(entry.text for entry in line) for line in matrix.lines]
    assert [text for _, text in said] == ["leaked 0.80", "leaked 0.70", "partly leaked 0.10"]


def test_the_worst_finding_comes_first_and_those_under_defences_last():
    weak, strong = finding(state="partly", beyond=0.2), finding(beyond=0.9)
    defended = finding(beyond=1.0, defence="noise")
    found = conclude(made_audit(attempt(weak), attempt(strong), attempt(defended, defence="noise")), SEATS)
    assert [one.beyond for one in found.findings] == [0.9, 0.2, 1.0]


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("labels > 0.6", True),
        ("labels > 0.95", False),
        ("labels.beyond >= 0.8", True),
        ("anything > 0.85", False),
        ("columns > 0.1", True),  # nothing was shown of columns: that is no pass
    ],
)
def test_a_pipeline_s_condition(text, fails):
    found = conclude(made_audit(attempt(finding(), finding(beyond=1.0, leaked=1.0, defence="noise"))), SEATS)
    assert bool(Condition.read(text).failure(found)) is fails


@pytest.mark.parametrize("text", ["labels", "labels < 0.6", "faces > 0.5", "labels > much"])
def test_a_condition_that_cannot_be_read_ends_with_a_sentence(text):
    with pytest.raises(UserError, match=r"--fail-if .*expected such as"):
        Condition.read(text)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("1h30m", 5400), ("0.5h", 1800)])
def test_a_budget_is_read(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "soon", "-3m", "0s"])
def test_a_budget_that_is_none_ends_with_a_sentence(text):
    with pytest.raises(UserError, match="--budget"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("off", "said"),
    [
        (0.0, "0"),
        (3e-9, "less than 0.000001"),
        (8.49e-5, "0.000085"),
        (0.25, "0.25"),
        (14.31, "14.3"),
        (999.7, "1000"),
        (12345.6, "12346"),
    ],
)
def test_how_far_a_number_is_off_is_written_without_powers_of_ten(off, said):
    assert amount(off) == said


def test_the_verdict_says_how_near_whole_columns_are_in_their_own_units():
    whole = {"name": "income €", "holder": "worker 0", "right": 1.0, "guess": 0.1, "error": 8.49e-5}
    audit = made_audit(attempt(finding()), columns=[whole, whole | {"name": "visits", "right": 0.2, "error": 3.0}])
    (verdict,) = (one for one in chapters(conclude(audit, SEATS)) if one.key == "verdict")
    near = "In their own units half of the rebuilt numbers are off by no more than: income € 0.000085."
    assert list(texts(verdict.blocks))[-1] == near


def gone(seconds, used):
    """A budget of which so much is used."""
    return Budget(seconds, began=time.monotonic() - used)


def test_an_audit_that_is_resumed_has_its_whole_budget_again():
    budget = Budget(100.0, spent=900.0)
    assert budget.left(0.5) == pytest.approx(50.0, abs=0.1)
    assert budget.used == pytest.approx(900.0, abs=0.1)


def test_no_attempt_begins_when_the_budget_is_used_up():
    assert gone(100.0, 95.0).share(3) == 0.0
    assert 15.0 <= Budget(100.0).share(50) <= 20.0


def test_one_defence_does_not_use_up_the_time_of_all_others():
    budget = gone(1000.0, 400.0)
    assert budget.slot(20, until=0.8) == pytest.approx(0.46, abs=0.001)  # three shares of a twentieth of what is left
    assert budget.slot(200, until=0.8) == pytest.approx(0.445, abs=0.001)  # but time enough for one
    assert budget.slot(2, until=0.8) == 0.8


def test_half_of_what_is_left_is_for_what_comes_of_slow_attacks():
    assert gone(1000.0, 600.0).half(until=0.9) == pytest.approx(0.75, abs=0.001)
    assert gone(1000.0, 950.0).half(until=0.9) == pytest.approx(0.95, abs=0.001)


def test_the_page_says_what_the_document_says_and_takes_nothing_for_markup():
    evil = finding(learned="<script>alert(1)</script>")
    page = audit_page(conclude(made_audit(attempt(evil)), SEATS))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "What was not tested, and why" in page


def test_what_chance_may_explain_above_the_limit_is_not_called_held():
    doubtful = attempt(finding(state="guess", beyond=0.3), attack="label_norm")
    found = conclude(made_audit(doubtful), SEATS[:1])
    assert found.sentences == [
        "The coordinator: no more than a guess. Not clear, as chance may explain what it found: label_norm."
    ]
    said = [text for chapter in chapters(found) if chapter.key == "matrix" for text in texts(chapter.blocks)]
    assert "not clear 0.30" in said


def test_the_headline_names_the_worst_two_things_and_the_sentence_all():
    learned = [
        finding(what=what, learned=what, beyond=beyond)
        for what, beyond in zip(("labels", "columns", "images"), (0.9, 0.8, 0.7), strict=True)
    ]
    found = conclude(made_audit(attempt(*learned)), SEATS[:1])
    assert found.headline == "The coordinator: labels; columns; and more; after 6 rounds, by exact."
    assert found.sentences == ["The coordinator: labels; columns; images; after 6 rounds, by exact."]


def test_the_document_says_whose_columns_a_worker_s_are_and_lists_what_leaked_first():
    about = {
        "config": {
            "data": {"files": ["their/bank.csv", "shop.csv"], "label": "pays"},
            "federation": {"workers": 2, "label_holder": 1},
        },
        "columns": [
            {"name": name, "holder": "worker 0", "right": 1.0, "guess": 0.1, "error": None} for name in ("age", "debt")
        ],
        "recommendation": {"defence": "noise", "section": {"uploads": {"name": "noise"}}, "sentence": "Noise does."},
    }
    refused = attempt(attack="averaging", outcome="refused", state="open")
    audit = made_audit(refused, attempt(finding(state="guess"), attack="theory"), attempt(finding()), **about)
    assert holdings(audit) == (
        ("worker 0", "bank.csv; 2 columns (age, debt)"),
        ("worker 1", "shop.csv; the label (pays); it is the label holder"),
    )
    by_key = {one.key: one for one in chapters(audit)}
    (matrix,) = by_key["matrix"].blocks
    assert [line[0].text.rpartition(" ")[2] for line in matrix.lines] == ["exact", "theory", "averaging"]
    assert "defence: {uploads: {name: noise}}" in list(texts(by_key["defence"].blocks))


@pytest.mark.parametrize(("leaked", "shown"), [(1.0, "shown"), (0.6, "not tested")])
def test_who_knows_all_columns_of_a_party_has_singled_out_its_people(leaked, shown):
    columns = attempt(finding(what="columns", leaked=leaked, beyond=leaked))
    said = {name: here for name, here, _, _ in auditor.risks(conclude(made_audit(columns), SEATS))}
    assert said["singling out"] == shown
