"""The code that an error's sentence ends with: what it is about, and what to do; `cafe explain` and docs/errors.md."""

from textwrap import fill
from typing import NamedTuple


class Code(NamedTuple):
    """One kind of error: its title, what it means, what to do, and the modules whose errors are of this kind."""

    title: str
    means: str
    do: str
    modules: tuple[str, ...] = ()


CODES: dict[str, Code] = {
    "E10": Code(
        "the command line",
        "An option or argument is unknown, is missing, or does not fit the others. Nothing was started.",
        "Correct what the sentence names; `cafe COMMAND --help` lists the options and ends with an example.",
        ("vfl.cli", "vfl.api", "vfl.local.label_party", "vfl.shipped"),
    ),
    "E11": Code(
        "a library that is not installed",
        "The base installation is small. What was asked for needs a library that one of the extras brings.",
        "Run the `pip install` that the sentence ends with; docs/install.md lists the extras.",
    ),
    "E12": Code(
        "this machine",
        "The machine or its settings stop the command: a device that is not there, a folder for temporary files whose "
        "name is too long for sockets, a file of yours with the name of one of our packages.",
        "Do what the sentence says, then ask `cafe doctor`.",
        ("vfl.device", "vfl.forkserver", "vfl.packages", "vfl.doctor"),
    ),
    "E20": Code(
        "the config file",
        "The file of the run cannot be read, or one of its keys is unknown or has a value that does not fit.",
        "The sentence begins with the key, as in `federation.workers`. docs/configuration.md lists all keys; "
        "`cafe init` writes a file that runs.",
        ("vfl.config", "vfl.topology", "vfl.seats", "vfl.partition", "vfl.optimisers", "vfl.local.simulation"),
    ),
    "E21": Code(
        "a plug-in",
        "An attack, a defence, a data set, a model or an optimiser that the config names is not there, cannot be "
        "imported, has no such option, or failed in its own code.",
        "`cafe list` shows the names. For a plug-in of yours the sentence has the file and the line; CONTRIBUTING.md "
        "says what each kind must have.",
        ("vfl.registry",),
    ),
    "E22": Code(
        "the model",
        "The network that the config names does not fit the data or the federation: a layer that cannot be split, a "
        "width, a number of outputs.",
        "docs/models.md says what a model must have, and how its options are set.",
        ("vfl.models",),
    ),
    "E30": Code(
        "the data",
        "A data set is not there, cannot be read, or holds something that would be misread: a missing value, a date, "
        "a label that is the id again.",
        "The sentence names file, column and rows. docs/tables.md has what a table may hold, docs/configuration.md "
        "where files are looked for (CAFE_DATA).",
        ("vfl.datasets", "vfl.referee", "vfl.plan"),
    ),
    "E31": Code(
        "joining tables by id",
        "Workers that each bring a table could not find the rows that all of them have.",
        "See that `data.id` is the same thing in all files and that all workers were given the same key; "
        "docs/tables.md, “Each worker its own table”.",
        ("worker.alignment", "vfl.net.alignment", "server.alignment"),
    ),
    "E40": Code(
        "the attack cannot run here",
        "The attack needs something that this run does not give it. The attack has shown nothing: this is no sign "
        "that the data are safe.",
        "`cafe list attacks --for FILE` shows which attacks can run, and what the others lack.",
        ("attacker",),
    ),
    "E41": Code(
        "the attack failed",
        "The attack started and its process ended, or its result was not usable.",
        "Record the run (`transcript: true`) and try again offline: `cafe attack DIR/transcript`.",
        ("attacker.driver",),
    ),
    "E50": Code(
        "the defence",
        "A defence cannot do what the config asks of it.",
        "docs/defences.md has each defence's options, and what it needs to know.",
        ("worker.defences", "worker.keys"),
    ),
    "E60": Code(
        "reaching another party",
        "A coordinator, a worker or a cluster does not answer, or speaks another version.",
        "See that it runs, that the port is open, and that the address is the one to use from here: "
        "`cafe doctor FILE … --wait` on all machines finds out. docs/machines.md.",
        ("vfl.net", "vfl.cluster", "worker.link", "worker.exchange"),
    ),
    "E61": Code(
        "TLS and certificates",
        "A certificate is missing, is not of this federation, is of another role, or one side speaks TLS and the "
        "other does not.",
        "docs/tls.md says which files each party needs; `cafe certs` makes them.",
        ("vfl.net.tls", "vfl.net.certs", "vfl.net.handshake"),
    ),
    "E62": Code(
        "the federation broke off",
        "A worker left and did not come back, a party was refused, or an order or upload was not what was agreed.",
        "The sentence names the party: look at its own last line. docs/faults.md says what a run survives, and how "
        "`--resume` goes on.",
        ("server", "worker", "vfl.local"),
    ),
    "E70": Code(
        "the folder of a run",
        "The folder is in use, is not a run's, or holds files that do not fit each other.",
        "Choose another with `--out`, or let the run go on with `--resume`, or throw it away with `--fresh`.",
        ("vfl.folder", "vfl.files", "vfl.report"),
    ),
    "E71": Code(
        "a damaged file",
        "A file was changed or cut off after it was written: its checksum or its size does not fit.",
        "Copy it again from where it was made, or run again. Do not trust what is left of it.",
    ),
    "E72": Code(
        "going on from a checkpoint",
        "There is no checkpoint, or it is of another config or version.",
        "`--fresh` begins anew; docs/faults.md says what may change between a run and its resumption.",
        ("server.checkpoint",),
    ),
    "E73": Code(
        "recording a training loop of your own",
        "What was given to the recorder does not fit: the model, a round's rows or gradients, or their order.",
        "docs/own_system.md shows the calls; docs/transcript.md has the format.",
        ("vfl.elsewhere",),
    ),
    "E80": Code(
        "a sweep, a benchmark or kept results",
        "The file of a sweep has a key that does not fit, or results that are to be compared are not comparable.",
        "docs/sweeps.md explains the file; the sentence names the cells.",
        ("vfl.sweep", "vfl.bench"),
    ),
    "E81": Code(
        "the live page",
        "The page of a run cannot be served at this address.",
        "Choose another with `--ui-listen HOST:PORT`; port 0 takes a free one. docs/ui.md.",
        ("vfl.ui",),
    ),
    "E82": Code(
        "an audit",
        "An audit was asked for something that it cannot do: a budget or condition that cannot be read, an attack or a "
        "defence that does not apply, a folder with another audit, a submission that does not fit.",
        "`cafe audit --help` has the forms; docs/audit.md explains them.",
        ("vfl.audit",),
    ),
    "E83": Code(
        "a condition of an audit's --fail-if is met",
        "The audit came to its end. What it found is more than --fail-if allows, or nothing showed that it is less. "
        "Its results are written.",
        "Read audit.html: it names who learns what, and which defence stops it. docs/audit.md, “In a build pipeline”.",
    ),
    "E90": Code(
        "an error of ours, or of the disk",
        "Something happened that no sentence was written for: a file could not be read or written, or there is a bug.",
        "If it is not the disk, please report it with the sentence and `cafe doctor`'s output.",
        ("vfl.errors",),
    ),
}


def code_of(module: str) -> str:
    """Return the code of an error that a module raises: that of the longest name that fits; of others' modules E21."""
    fitting = [
        (len(name), code)
        for code, kind in CODES.items()
        for name in kind.modules
        if module == name or module.startswith(f"{name}.")
    ]
    return max(fitting)[1] if fitting else "E21"


def page() -> str:
    """Return docs/errors.md."""
    head = (
        "# Errors\n\nAn error ends the command with one sentence, a code such as `[E20]`, and an exit code: 2 for "
        "input that can be\ncorrected, 1 for a run that failed, 130 for one that you stopped. The code says what the "
        "sentence is about and stays the\nsame from version to version; the words may change. `cafe explain E20` "
        "prints the same on a terminal.\n\nThis page is written by `python -m vfl.error_codes`.\n"
    )
    parts = [
        f"\n## {code}: {one.title}\n\n{fill(one.means, 120)}\n\n{fill(f'**What to do.** {one.do}', 120)}\n"
        for code, one in CODES.items()
    ]
    return head + "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
