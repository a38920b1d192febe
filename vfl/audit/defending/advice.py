"""Which defence an audit recommends, on what that rests, and what it costs."""

from collections.abc import Sequence

from vfl.audit.course import Run
from vfl.audit.defending.attackers import Defending, attackers_above
from vfl.audit.judgement import attacker
from vfl.audit.plan import NOT_SHOWN
from vfl.audit.schema import Recommendation, Training, Trial


def holds(trial: Trial) -> bool:
    """Tell whether a defence kept all attackers below the limit that it was tried with, and each came to a result."""
    return may_hold(trial) and not trial.unclear


def may_hold(trial: Trial) -> bool:
    """Tell whether no attacker was clearly above the limit; what chance may explain is no promise, and is named."""
    came = trial.held_against or trial.unclear
    return trial.outcome == "done" and bool(came) and not trial.broken_by and not trial.undecided


def price(trial: Trial) -> tuple[float, float, float]:
    """Return what a defence costs, to be compared: accuracy first, or loss where nothing was tested; then time."""
    training = trial.training
    return (
        -(training.accuracy or 0.0),
        training.loss if training.loss is not None else float("inf"),
        training.seconds or 0.0,
    )


def in_question(run: Run, tried: Defending) -> list[Trial]:
    """Return the defences that the worst attackers of every place did not break, the cheapest first."""
    worst = set(tried.names)
    met = [one for one in run.audit.trials if may_hold(one) and worst <= {*one.held_against, *one.unclear}]
    return sorted(met, key=price)


def unmet(run: Run, tried: Defending, trial: Trial) -> list[str]:
    """Name the attackers above the limit without a defence that came to no result on it, and why."""
    came = {attacker(one): one.outcome for one in run.audit.attempts if one.defence == trial.defence}
    names = [one.name for one in attackers_above(run, tried.planned)]
    left = [name for name in names if name not in (*trial.held_against, *trial.broken_by, *trial.unclear)]
    return [f"{name} ({came.get(name, 'not run')})" for name in left]


def recommend(run: Run, tried: Defending) -> Recommendation:
    """Return the cheapest of the defences that keep every seat below the limit, or the sentence that none does."""
    audit = run.audit
    for one in audit.trials:
        one.unmet = unmet(run, tried, one)
    whole = in_question(run, tried)
    limit = f"the limit of {audit.limit:g}"
    if whole:
        # of equals the first, the cheapest
        best = min(whole, key=lambda one: len(one.unmet) + len(one.unclear))
        return _advice(run, tried, best)
    done = [one for one in audit.trials if one.outcome == "done" and one.worst is not None]
    if not done:
        return Recommendation(sentence=f"No defence came to a result within the budget: {NOT_SHOWN}.")
    names = sorted({*tried.names, *(name for one in done for name in one.broken_by)})
    parts = [_nearest(name, done) for name in names]
    many = f"None of the {len(done)} defences that were tried" if len(done) > 1 else "The one defence that was tried"
    verb = "keeps" if len(done) > 1 else "does not keep"
    left = len(audit.trials) - len(done)
    parts.append(f"{left} more came to no result: nothing is known of {'them' if left > 1 else 'it'}." if left else "")
    return Recommendation(sentence=" ".join([f"{many} {verb} every seat below {limit}.", *filter(None, parts)]))


def _advice(run: Run, tried: Defending, best: Trial) -> Recommendation:
    """Recommend a defence, and say on how many attackers that rests, and on which it does not."""
    audit = run.audit
    above = {one.name for one in attackers_above(run, tried.planned)}
    held, told = ([name for name in best.held_against if (name in above) is known] for known in (True, False))
    all_of_them = f"all {len(above)} attackers that know" if len(above) > 1 else "the one attacker that knows"
    words = f"{best.defence} keeps every seat below the limit of {audit.limit:g}. It held against {all_of_them} more"
    words += " without it."
    if best.unmet or best.unclear:
        words = f"{best.defence} kept {len(held)} of {len(above)} attackers below the limit of {audit.limit:g}."
    parts = [
        f"{words[:1].upper()}{words[1:]}",
        f"Price: {price_words(best.training, audit.training)}.",
        f"Not clear, as chance may explain what they found ({best.worst or 0:.2f} at most): {'; '.join(best.unclear)}."
        if best.unclear
        else "",
        _not_met(best.unmet),
        f"It held against {' and '.join(told)} too, which knows of it." if told else "",
        f"But {best.told}." if best.told else "",
    ]
    return Recommendation(
        defence=best.defence,
        section=best.section,
        sentence=" ".join(filter(None, parts)),
        held_against=best.held_against,
        unclear=best.unclear,
        unmet=best.unmet,
    )


def _not_met(left: Sequence[str]) -> str:
    """Say on which attackers a recommendation does not rest."""
    if not left:
        return ""
    late = any(one.endswith(("(not run)", "(out of time)")) for one in left)
    why = "The budget ended before it had met all that know more without it" if late else "Not all came to a result"
    more = " With --resume the audit goes on with them." if late else ""
    return f"{why}: nothing is known of {'; '.join(left)}.{more}"


def _nearest(name: str, done: Sequence[Trial]) -> str:
    """Say of one attacker which defences kept it below the limit, the cheapest first."""
    holding = [one for one in done if name in one.held_against]
    holding.sort(key=lambda one: (bool(one.broken_by), price(one)))
    named = name[:1].upper() + name[1:]
    if holding:
        broken = f", which {' and '.join(holding[0].broken_by)} broke" if holding[0].broken_by else ""
        return f"{named}: held by {holding[0].defence}{broken}."
    return f"{named}: held by none." if any(name in one.broken_by for one in done) else ""


def price_words(after: Training, before: Training) -> str:
    """Say what a defence costs: accuracy, loss, time and bytes beside those without it."""
    parts = []
    if after.accuracy is not None and before.accuracy is not None:
        parts.append(f"accuracy {after.accuracy:.1%} instead of {before.accuracy:.1%}")
    if after.loss is not None and before.loss is not None:
        parts.append(f"loss {after.loss:.3g} instead of {before.loss:.3g}")
    if after.seconds is not None and before.seconds is not None:
        parts.append(f"{after.seconds:.1f} s instead of {before.seconds:.1f} s")
    if before.bytes:
        parts.append(f"{after.bytes / before.bytes - 1:+.0%} on the wire")
    return ", ".join(parts)


def nothing_to_stop(run: Run) -> str:
    """Say that no attack knows too much, if any came to a result."""
    if any(one.findings for one in run.audit.attempts):
        return f"No attack knows more than the limit of {run.audit.limit:g}, so that no defence was tried."
    return ""
