"""Attempts and audits as they might come out, without a run."""

from typing import Any

from vfl.audit.schema import Attempt, Audit, Finding


def finding(**changes: Any) -> Finding:
    about: dict[str, Any] = {
        "adversary": "coordinator",
        "target": "worker 1",
        "what": "labels",
        "leaked": 0.9,
        "guess": 0.5,
        "beyond": 0.8,
        "state": "leaked",
        "attack": "exact",
        "defence": "none",
        "learned": "90 of 100 labels of worker 1 (a guess has 50)",
        "sentence": "The coordinator knows 90 of 100 labels of worker 1 (a guess has 50), after 6 rounds.",
        "evidence": "attempts/coordinator_exact",
    }
    return Finding.model_validate(about | changes)


def attempt(*findings: Finding, **changes: Any) -> Attempt:
    state = min((one.state for one in findings), key=("leaked", "partly", "guess").index, default="open")
    about: dict[str, Any] = {"adversary": "coordinator", "attack": "exact", "outcome": "done", "state": state}
    return Attempt.model_validate({**about, "findings": list(findings), "ledger": "gradients", **changes})


def made_audit(*attempts: Attempt, **changes: Any) -> Audit:
    about = {"name": "bank", "budget": 60.0, "samples": 100, "attempts": list(attempts), "training": {"rounds": 6}}
    return Audit.model_validate(about | changes)
