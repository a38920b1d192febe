"""A run's result on the terminal: the numbers of summary.json in words."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

FILES = ("report.html", "recovered.png", "photograph_*.png", "rows.csv", "summary.json")
"""What people want to open, in a run's folder."""


def show_summary(summary: dict[str, Any], out: Path) -> None:
    """Print the closing table and the verdict."""
    console = Console(highlight=False, markup=False)
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    for label, value in numbers_in_words(summary):
        table.add_row(label, Text(value))
    console.print(table)
    console.print(verdict(summary), soft_wrap=not console.is_terminal, style="bold")
    if untested(summary):
        console.print(untested(summary), soft_wrap=not console.is_terminal, style="bold red")
    files = [path.name for name in FILES for path in sorted(out.glob(name))]
    console.print(f"Everything is in {out}{': ' if files else ''}{', '.join(files)}", soft_wrap=True)


def verdict(summary: dict[str, Any]) -> str:
    """Say in one sentence what the coordinator learned."""
    attack, samples, rounds = summary["attack"], summary["samples"], summary["rounds"]
    if attack.get("share_30db") is not None:
        count = round(attack["share_30db"] * samples)
        return (
            f"The coordinator rebuilt {count} of {samples} images (30 dB or better) from {rounds} rounds of gradients."
        )
    if attack.get("share_exact") is not None:
        count = round(attack["share_exact"] * samples)
        return f"The coordinator rebuilt {count} of {samples} rows exactly from {rounds} rounds of gradients."
    if attack.get("representation_error") is not None:
        return (
            f"The coordinator knows what enters every worker's first fully connected layer, "
            f"to a relative error of {attack['representation_error']:.1e} (median), from {rounds} rounds of gradients."
        )
    if attack["used"]:
        return "The attack's result is not scored: there is no ground truth here."
    return "No attack was run."


def untested(summary: dict[str, Any]) -> str:
    """Return why the result says nothing of a defence, if that is so."""
    return next((str(report["warning"]) for report in summary.get("defence") or [] if report.get("warning")), "")


def numbers_in_words(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the numbers of a summary in words, each with its name."""
    attack, train, seconds, wire = summary["attack"], summary["train"], summary["seconds"], summary["bytes"]
    horizontal = " (horizontal)" if summary.get("shares") else ""
    lines = [
        (
            "federation",
            f"{summary['workers']} workers{horizontal}, {summary['samples']} samples, {summary['rounds']} rounds of "
            f"{summary['batch_size']}{' each' if horizontal else ''}, {seconds['federation']:.1f} s",
        ),
        *_rows_read(summary.get("tables")),
        ("on the wire", f"{size(wire['up'])} up, {size(wire['down'])} down, {size(wire['peer'])} between workers"),
    ]
    if train["loss_first"] is not None:
        accuracy = "" if train["test_accuracy"] is None else f", test accuracy {train['test_accuracy']:.1%}"
        lines.append(
            ("loss", f"{train['loss_first']:.4f} in the first round, {train['loss_last']:.4f} in the last{accuracy}")
        )
    if train.get("stopped_early"):
        patience = summary["config"]["training"]["early_stop"]["patience"]
        lines.append(("stopped early", f"the test loss did not improve in the last {patience} evaluations"))
    if attack["used"]:
        ledger = attack.get("ledger")
        used = ledger["sentence"] if ledger else ", ".join(attack["used"])
        lines.append(("attack", f"{attack['name']}, {seconds['attack']:.1f} s"))
        lines.append(("it used", used))
    queue = attack.get("queue", {})
    if queue.get("spilled"):
        waited = f"{queue['spilled']} rounds waited for it on disk"
        lines.append(("attack's lag", f"up to {queue['longest']} rounds; {waited}"))
    if attack.get("psnr_mean") is not None:
        lines.append(
            (
                "PSNR",
                f"mean {attack['psnr_mean']:.1f} dB, median {attack['psnr_median']:.1f}, "
                f"worst {attack['psnr_min']:.1f}; guessing the mean image: {attack['psnr_baseline']:.1f}",
            )
        )
        lines.append(("SSIM", f"mean {attack['ssim_mean']:.4f}"))
    if attack.get("over_rounds"):
        steps = [f"{at.get('psnr_mean', at.get('r2')):.1f} at {at['round']}" for at in attack["over_rounds"]]
        lines.append(("by round", ", ".join(steps)))
    if attack.get("r2") is not None:
        lines.append(
            ("rows", f"{attack['share_exact']:.1%} exact to 1e-3 of the column's range, R2 {attack['r2']:.6f}")
        )
    if attack.get("representation_error") is not None:
        lines.append(("inner layer", f"relative error {attack['representation_error']:.1e} (median)"))
    if attack.get("label_accuracy") is not None:
        lines.append(("labels", f"{attack['label_accuracy']:.1%} right"))
    if attack.get("certified") is not None:
        lines.append(
            ("certified", f"{attack['certified']} of {summary['samples']} samples explain all their gradients")
        )
    lines += [("note", note) for note in attack.get("notes", [])]
    if summary.get("ended") not in (None, "complete"):
        lines.append(("ended", summary["ended"]))
    return lines + [("defence", line) for line in defence_lines(summary.get("defence", []))]


def _rows_read(tables: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Say how many rows came of files that were joined, or of a file that lost some."""
    files = tables["files"] if tables else []
    told = ", ".join(map(file_in_words, files))
    if len(files) > 1:
        assert tables
        return [("joined by id", f"{tables['rows']} rows are in all files; {told}")]
    return [("rows", told)] if any(one["unlabelled"] or one["incomplete"] for one in files) else []


def file_in_words(file: dict[str, Any]) -> str:
    """Say how many rows a file has, and which of them are left out."""
    left_out = [
        f"{count} {lacking}"
        for count, lacking in ((file["unlabelled"], "without a label"), (file["incomplete"], "with missing values"))
        if count
    ]
    return f"{file['source']} has {file['rows']} rows" + (f" ({' and '.join(left_out)} left out)" if left_out else "")


def defence_lines(reports: list[dict[str, Any]]) -> list[str]:
    """Say what the workers' defences did, each different thing once."""
    said: dict[str, list[int]] = {}
    for report in reports:
        for shield in report["chain"]:
            if shield["name"] != "none":
                numbers = {k: v for k, v in shield.items() if k not in ("name", "warning")}
                text = ", ".join(f"{key} {_value(value)}" for key, value in numbers.items() if value is not None)
                line = f"{shield['name']}: {text}" if text else shield["name"]
                line += f". WARNING: {shield['warning']}" if shield.get("warning") else ""
                said.setdefault(line, []).append(report["worker"])
        if report.get("warning"):
            said.setdefault(f"WARNING: {report['warning']}", []).append(report["worker"])
    return [
        ("all workers" if len(workers) == len(reports) else f"worker {', '.join(map(str, workers))}") + f": {line}"
        for line, workers in said.items()
    ]


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def size(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
