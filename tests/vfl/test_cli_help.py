"""`cafe --help`: every command stands below a heading, and its help ends with an example that the command takes."""

import platform
import shlex
from importlib.metadata import version

import click
import pytest
import typer
from typer.testing import CliRunner

from tests.integration.command_support import cafe
from vfl.cli.app import app

COMMANDS: dict[str, click.Command] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_heading_and_an_example_that_it_takes(name):
    command = COMMANDS[name]
    assert getattr(command, "rich_help_panel", None), "add it with vfl.cli.app.add"
    program, called, *arguments = shlex.split(str(command.epilog).removeprefix("Example: "))
    assert (program, called) == ("cafe", name)
    with command.make_context(name, arguments) as context:
        assert context.params


def test_help_shows_the_headings_and_the_shells_completion_can_be_had():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).output
    for heading in ("Start here", "Run a federation and attack it", "Look at what came of it"):
        assert heading in shown
    assert "--install-completion" in shown


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("cafe ex", ["export", "explain"]),
        ("cafe explain E2", ["E20", "E21", "E22"]),
        ("cafe list d", ["defences", "datasets"]),
        ("cafe bench tr", ["training"]),
        ("cafe init --ad", ["--adversary"]),
        ("cafe init --adversary l", ["label_holder"]),
        ("cafe init --defence so", ["soteria"]),
        ("cafe attack runs/demo/transcript --attack least", ["least_squares"]),
    ],
)
def test_the_shell_completes_commands_options_and_what_they_take(typed, completed):
    words = str(len(typed.split()) - 1)
    asked = {"_CAFE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": words}
    shown = CliRunner().invoke(app, [], env=asked, prog_name="cafe").output
    assert shown.split() == completed


def test_the_version_is_that_of_the_package_and_alone_the_command_shows_its_help():
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0
    assert shown.output.startswith(f"cafe-vfl {version('cafe-vfl')}, python {platform.python_version()}, torch ")
    alone = cafe()
    assert (alone.returncode, alone.stderr) == (2, "")
    assert "Start here" in alone.stdout
