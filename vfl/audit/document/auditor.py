"""An audit in the words that auditors use: NIST AI 100-2, the EDPB's Opinion 28/2024, and the risks of WP 216."""

from vfl.audit.findings import WHOLE
from vfl.audit.judgement import ORDER, who
from vfl.audit.schema import Audit, Finding

LEAD = (
    "The adversary's goals, knowledge and capability in the terms of NIST AI 100-2 E2025 (Adversarial Machine "
    "Learning: A Taxonomy and Terminology of Attacks and Mitigations), and the three risks by which data are judged "
    "anonymous or not (WP29 Opinion 05/2014, to which EDPB Opinion 28/2024 refers)."
)
NEGATIVE = (
    "Held says that the named attack, from the named seat, with its default options, on this data, this model and "
    "these rounds, found no more than a guess does. A better attack, more rounds or more knowledge may find more.",
    "An attack that was refused lacked something that it needs, one that ran out of time was stopped, one that failed "
    "ended with an error. None of the three has shown anything.",
    "Every score stands beside that of the best guess without the wire: the most frequent label or category, the "
    "number that is nearest to most, the mean image. A score at the guess's level is no leak, however high it is.",
    "Gradients, outputs and answers that are kept can be attacked years later by methods that do not exist today.",
)
_KNOWLEDGE = {
    "the coordinator": "white box: the model's architecture and parameters in every round, the optimiser, the "
    "batches' indices; each worker's parameter gradients; no data and no labels",
    "the label holder": "its own columns and the labels, the top model, every worker's outputs for every sample; not "
    "the other workers' parameters",
    "worker": "its own columns and its own model, the batches' rows, the gradient of each of its outputs; neither "
    "labels nor the other workers' parameters",
}


def knowledge(seat: str, audit: Audit) -> tuple[str, str]:
    """Return what a seat knows, and what it can do."""
    parts = [text for name, text in _KNOWLEDGE.items() if name in seat.replace("malicious ", "")]
    passive = "passive (honest but curious): it follows the protocol and reads what it is sent"
    if "malicious" in seat:
        passive = "active (malicious): it also orders, answers or uploads what its attack proposes"
    many = [one for one in audit.attempts if who(one.adversary) == seat and isinstance(one.adversary, list | tuple)]
    together = "; they put together what they see (collusion)" if many else ""
    return " – and: ".join(parts) or "what it records itself", passive + together


def terms(audit: Audit) -> tuple[tuple[str, str], ...]:
    """Return what the audit is in these terms."""
    worst = [one for one in audit.findings if one.state != "guess"]
    tried = sorted({one.attack for one in audit.attempts if one.outcome == "done"})
    return (
        ("class of system", "predictive AI, trained in a vertical or horizontal federation"),
        ("stage of learning", "training time: the adversary takes part in training, and reads what it is sent"),
        ("data modality", _modality(audit)),
        (
            "adversary's goal",
            "a privacy attack: data reconstruction (features), and inference of labels. Not tried: membership "
            "inference, property inference, model extraction",
        ),
        ("means tried", f"{len(tried)} attacks that anybody can run: {', '.join(tried) or 'none'}"),
        (
            "means reasonably likely to be used",
            "EDPB Opinion 28/2024 takes an AI model for anonymous only where it is insignificantly likely that "
            "personal data of those whose data trained it are extracted from it, or obtained by queries, by all means "
            "reasonably likely to be used, by the controller or another person. This audit puts that question to what "
            "parties are sent while they train; the finished model, and queries to it, were not tested. The means here "
            f"are public code, one machine and the seat's own traffic; the whole audit took {audit.seconds:.0f} s. "
            + (
                "By them personal data were extracted."
                if worst
                else "By them nothing beyond a guess was extracted here."
            ),
        ),
    )


def _shows(risk: str, finding: Finding, whats: tuple[str, ...]) -> bool:
    """Tell whether a finding is about a risk: where all values of a party are known, so are its people's records."""
    return finding.what in whats or (risk == "singling out" and finding.what == "columns" and finding.leaked >= WHOLE)


def _modality(audit: Audit) -> str:
    kinds = {one.what for one in audit.findings}
    named = [name for name, whats in (("images", {"images"}), ("tabular", {"columns", "rows"})) if kinds & whats]
    return ", ".join(named) or "not known: no attack's result on features was scored"


def risks(audit: Audit) -> list[tuple[str, str, str, str]]:
    """Return singling out, linkage and inference: what is shown of each, its state, and by what."""
    kinds = {
        "singling out": ("rows", "images"),
        "linkage": ("columns", "rows"),
        "inference": ("labels", "columns", "representations"),
    }
    means = {
        "singling out": "a person's whole record is isolated",
        "linkage": "a party's values are joined to the sample numbers that all parties share",
        "inference": "an attribute or label is deduced with more than a guess's probability",
    }
    found = []
    for name, whats in kinds.items():
        own = [one for one in audit.findings if _shows(name, one, whats) and one.defence == audit.base]
        worst = min(own, key=lambda one: (ORDER.index(one.state), -one.beyond), default=None)
        if worst is None:
            found.append((name, "not tested", "open", means[name]))
        else:
            shown = {"leaked": "shown", "partly": "shown in part", "guess": "not shown"}[worst.state]
            found.append((name, shown, worst.state, f"{means[name]}: {worst.sentence} (by {worst.attack})"))
    return found
