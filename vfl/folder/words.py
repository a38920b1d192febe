"""A run's numbers in words, each with its name."""

from collections.abc import Iterator
from typing import Any

from vfl.folder.measured import certified_and_wrong
from vfl.folder.scores import Right
from vfl.folder.summary import Attack, Defence, Summary, Tables, Train
from vfl.folder.verdict import adversary_words, leaks, listed

Line = tuple[str, str]


def numbers_in_words(summary: Summary) -> list[Line]:
    """Return the numbers of a summary in words, each with its name."""
    setting = ", ".join(setting_words(summary))
    wire, defence = summary.bytes, defence_lines(summary.defence)
    sent = f"{size(wire.up)} up, {size(wire.down)} down, {size(wire.peer)} between workers"
    return [
        ("federation", f"{setting}, {summary.seconds.federation:.1f} s" if summary.seconds.federation else setting),
        *_rows_read(summary.tables),
        *((("on the wire", sent),) if wire.up else ()),  # a curious worker's own folder does not have it
        *_training(summary.train, summary),
        *_course(summary.attack, summary),
        *_scores(summary.attack),
        *_without_truth(summary.attack, summary),
        *(() if summary.complete else (("ended", str(summary.ended)),)),
        *(("defence", line) for line in defence),
    ]


def step_words(name: str) -> str:
    """Say what an attack is at, by its own name for the step; docs/exact.md explains the paper's names."""
    return {"observing": "reading rounds", "steps I and II": "taking apart", "step III": "rebuilding"}.get(name, name)


def setting_words(summary: Summary) -> list[str]:
    """Say how many took part, and in what."""
    horizontal, each = (" (horizontal)", " each") if summary.shares else ("", "")
    samples = [] if summary.samples is None else [f"{summary.samples} samples"]
    rounds = f"{summary.rounds} rounds of {summary.batch_size}{each}"
    return [f"{summary.workers} workers{horizontal}", *samples, rounds]


def _rows_read(tables: Tables | None) -> Iterator[Line]:
    """Say how many rows came of files that were joined, or of a file that lost some."""
    files = tables.files if tables else []
    each = ", ".join(file.in_words for file in files)
    if tables and len(files) > 1:
        yield "joined by id", f"{tables.rows} rows are in all files; {each}"
    elif any(file.unlabelled or file.incomplete for file in files):
        yield "rows", each
    yield from (("doubtful", doubt) for doubt in (tables.doubts if tables else ()))


def _training(train: Train, summary: Summary) -> Iterator[Line]:
    if train.loss_first is not None:
        last = "" if train.loss_last is None else f", {train.loss_last:.4f} in the last"
        tested = "" if train.test_loss is None else f", test loss {train.test_loss:.4f}"
        accuracy = tested if train.test_accuracy is None else f", test accuracy {train.test_accuracy:.1%}"
        yield "loss", f"{train.loss_first:.4f} in the first round{last}{accuracy}"
    if train.stopped_early:
        settings = summary.config.training
        patience = settings.early_stop.patience if settings and settings.early_stop else "?"
        yield "stopped early", f"the test loss did not improve in the last {patience} evaluations"


def _course(attack: Attack, summary: Summary) -> Iterator[Line]:
    """Say what the attack used, and how it kept up."""
    if attack.used:
        yield "attack", f"{attack.name}, by {_who(summary)}, {summary.seconds.attack or 0.0:.1f} s"
        yield "it used", used_words(attack)
    if attack.queue.spilled:
        waited = f"{attack.queue.spilled} of which waited on disk"
        yield "the attack", f"was up to {attack.queue.longest} rounds behind, {waited}; that changes no result"


def _who(summary: Summary) -> str:
    """Name who was curious, within a sentence."""
    named = adversary_words(summary)
    return named[:1].lower() + named[1:]


def used_words(attack: Attack) -> str:
    """Say what the recovery rests on."""
    return (attack.ledger and attack.ledger.sentence) or ", ".join(map(str, attack.used))


def _scores(attack: Attack) -> Iterator[Line]:
    """Say what the referee found."""
    if attack.psnr_mean is not None:
        parts = {"mean": attack.psnr_mean, "median": attack.psnr_median, "worst": attack.psnr_min}
        first, *others = [f"{name} {value:.1f}" for name, value in parts.items() if value is not None]
        guess = "" if attack.psnr_baseline is None else f"; guessing the mean image: {attack.psnr_baseline:.1f}"
        yield "PSNR", ", ".join([f"{first} dB", *others]) + guess
    if attack.mse_mean is not None:
        slices = "" if attack.psnr_slices is None else f"; PSNR of slices, each on its own: {attack.psnr_slices:.1f} dB"
        guess = "" if attack.mse_baseline is None else f"; guessing the mean image: {attack.mse_baseline:.1e}"
        yield "MSE", f"mean {attack.mse_mean:.1e}{guess}{slices}"
    if attack.ssim_mean is not None:
        guess = "" if attack.ssim_baseline is None else f"; guessing the mean image: {attack.ssim_baseline:.4f}"
        yield "SSIM", f"mean {attack.ssim_mean:.4f}{guess}"
    steps = [(step.round, step.r2 if step.psnr_mean is None else step.psnr_mean) for step in attack.over_rounds or []]
    if steps:
        yield "by round", ", ".join(f"{value:.1f} at {number}" for number, value in steps if value is not None)
    if attack.r2 is not None:
        yield "rows", f"{attack.share_exact or 0.0:.1%} exact to 1e-3 of the column's range, R2 {attack.r2:.6f}"
    if attack.range_mse is not None and attack.range_mse_baseline is not None:
        guess = f"; guessing the columns' means: {attack.range_mse_baseline:.1e}"
        yield "MSE", f"{attack.range_mse:.1e} in the columns' ranges{guess}"
    if attack.representation_error is not None:
        error = f"a relative error of {attack.representation_error:.1e} (median)"
        yield "inner layer", f"what enters each worker's first fully connected layer is known to {error}"
    if leaks(attack):
        yield "beyond a guess", listed(leaks(attack))
    if attack.label_accuracy is not None:
        said = right_words(attack.labels) if attack.labels else f"{attack.label_accuracy:.1%} right"
        number = "" if attack.label_r2 is None else f"; as a number: R2 {attack.label_r2:.6f}, guessing the mean 0"
        yield "labels", f"{said}{number}"
    if attack.label_auc is not None:
        yield "labels' AUC", f"{attack.label_auc:.3f}; a guess has 0.5"


def right_words(found: Right) -> str:
    """Say what is right, wrong and unknown, and what a guess has right."""
    right, unknown, guess = (value or 0.0 for value in (found.right, found.unknown, found.guess))
    return f"{right:.1%} right, {1 - right - unknown:.1%} wrong, {unknown:.1%} unknown; a guess has {guess:.1%} right"


def _without_truth(attack: Attack, summary: Summary) -> Iterator[Line]:
    """Say what the attack itself knows of its recovery."""
    if attack.certified is not None:
        alone = f"{attack.certified} of {summary.samples} samples, by their gradients alone"
        yield "certified", alone + (certified_and_wrong(attack.name) if attack.certified else "")
    yield from (("note", str(note)) for note in attack.notes)


def defence_lines(reports: list[Defence]) -> list[str]:
    """Say what the workers' defences did, each different thing once."""
    lines: dict[str, list[Any]] = {}
    for report in reports:
        for shield in report.chain:
            if shield.name != "none":
                numbers = {key: value for key, value in (shield.model_extra or {}).items() if value is not None}
                warning = numbers.pop("warning", None)
                text = ", ".join(f"{key} {_value(value)}" for key, value in numbers.items())
                line = f"{shield.name}: {text}" if text else shield.name
                line += f". WARNING: {warning}" if warning else ""
                lines.setdefault(line, []).append(report.worker)
        if report.warning:
            lines.setdefault(f"WARNING: {report.warning}", []).append(report.worker)
    return [
        ("all workers" if len(workers) == len(reports) else f"worker {', '.join(map(str, workers))}") + f": {line}"
        for line, workers in lines.items()
    ]


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def amount(value: float) -> str:
    """Write how far a number is off, for people: no powers of ten."""
    if 0 < value < 1e-6:
        return "less than 0.000001"
    if 0 < value < 1e-3:
        return f"{value:.6f}".rstrip("0")
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def size(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
