"""What `make docs` adds to docs/: the pages at the repository's top, and a reference that is made from the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from links import repository  # beside this file, which is where mkdocs looks
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
TOP = ("ARCHITECTURE.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "RESULTS.md", "SECURITY.md")
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
BARE = re.compile(r"\[((?:docs/)?\w+\.md)\]\(([^)\s]*\b\w+\.md(?:#[^)\s]*)?)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lead to the project's repository, where it has an address."""
    config.repo_url = repository()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the top, the reference, and the sources that pages link to."""
    made = {name: (ROOT / name).read_text(encoding="utf-8") for name in TOP}
    made |= {"reference/cli.md": cli_page(), "reference/config.md": config_page(), "reference/python.md": python_page()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    texts = [(ROOT / "docs", path.read_text(encoding="utf-8")) for path in (ROOT / "docs").glob("*.md")]
    texts += [(ROOT, made[name]) for name in TOP]
    linked = {target for folder, text in texts for target in _outside(folder, text)}
    for path in sorted(linked):
        files.append(File.generated(config, f"source/{path.as_posix()}", content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links that are right in the repository be right in the site, and have a page's title where its file stood."""
    name = page.file.src_uri
    if name.startswith("reference/"):
        return BARE.sub(_titled, markdown)
    folder = ROOT if name in TOP else ROOT / "docs"

    def moved(found: re.Match[str]) -> str:
        path = _in_repository(folder, found[2])
        if path is None:
            return found[0]
        if path.parts[0] == "docs":
            return f"{found[1]}{Path(*path.parts[1:]).as_posix()}{found[3]}"
        if path.name == "README.md" and len(path.parts) == 1:
            return f"{found[1]}index.md{found[3]}"
        where = path.as_posix() if path.as_posix() in TOP else f"source/{path.as_posix()}"
        return f"{found[1]}{where}{found[3]}"

    return LINK.sub(moved, BARE.sub(_titled, markdown))


def _titled(found: re.Match[str]) -> str:
    """Return a link whose words are the name of its file with that page's title for words."""
    path = next(path for path in (ROOT / "docs" / Path(found[1]).name, ROOT / Path(found[1]).name) if path.exists())
    title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"[{title}]({found[2]})"


def _outside(folder: Path, text: str) -> Iterator[Path]:
    """Yield the files of the repository that a page links to and that are no pages of the site."""
    for found in LINK.finditer(text):
        path = _in_repository(folder, found[2])
        if path and path.parts[0] != "docs" and path.as_posix() not in (*TOP, "README.md") and (ROOT / path).is_file():
            yield path


def _in_repository(folder: Path, target: str) -> Path | None:
    """Return a link's file, from the repository's top; None of links to other sites and to nowhere."""
    if re.match(r"[a-z]+:", target):
        return None
    path = (folder / target).resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) and path.exists() else None


def cli_page() -> str:
    """Return the page of all commands, from their own help."""
    import click
    import typer

    from vfl.cli.app import app

    group = typer.main.get_command(app)
    context = click.Context(group, info_name="cafe")
    lines = ["# Commands", "", "Every command, as its `--help` says it.", ""]
    panels: dict[str, list[tuple[str, click.Command]]] = {}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        panels.setdefault(str(getattr(command, "rich_help_panel", "")), []).append((name, command))
    for panel, commands in panels.items():
        lines += [f"## {panel}", ""]
        for name, command in commands:
            lines += [f"### cafe {name}", "", str(command.help), "", "```", str(command.epilog), "```", ""]
            lines += ["| option | |", "|---|---|"]
            with click.Context(command, parent=context, info_name=name) as own:
                lines += [_option(one, own) for one in command.params if one.name != "help"]
            lines.append("")
    return "\n".join(lines)


def _option(option: Any, context: Any) -> str:
    names = (
        ", ".join(f"`{one}`" for one in option.opts) if option.param_type_name == "option" else f"`{option.metavar}`"
    )
    default = option.get_default(context)
    shown = " Needed." if option.required else "" if default in (None, False, ()) else f" Default: `{default}`."
    return f"| {names} | {_cell(str(getattr(option, 'help', '') or '') + shown)} |"


def config_page() -> str:
    """Return the page of all keys of a config, and of the options of every plug-in, from the code that checks them."""
    from attacker.interface import attacks
    from vfl.config import DeviceConfig, FederationConfig, ModelSection, RunConfig
    from vfl.datasets import datasets
    from vfl.models import models
    from vfl.optimisers import optimisers
    from vfl.optimisers.training import TrainingConfig
    from worker.defences import defences

    lines = [
        "# Keys of a config",
        "",
        "Made from the code that checks a config. [configuration.md](../configuration.md)",
    ]
    lines += ["says what the keys mean, with examples; an unknown key, or a value that does not fit, is an error.", ""]
    parts = {"": RunConfig, "federation": FederationConfig, "model": ModelSection, "training": TrainingConfig}
    for name, section in (parts | {"device": DeviceConfig}).items():
        lines += [f"## {name or 'A run'}", "", *_keys(section, f"{name}." if name else ""), ""]
    kinds = {
        "attack": attacks,
        "defence": defences,
        "data": datasets,
        "model": models,
        "training.optimizer": optimisers,
    }
    for key, registry in kinds.items():
        lines += [f"## Plug-ins: {key}", ""]
        for name in registry.builtin_names():
            plugin = registry.find(name)
            about = str(plugin.__doc__ or "").strip().splitlines()[0]
            lines += [f"### {key}: {name}", "", about.replace("{", "\\{"), "", *_keys(plugin, ""), ""]
    return "\n".join(lines)


def _keys(section: Any, prefix: str) -> list[str]:
    if not section.model_fields:
        return ["No options."]
    lines = ["| key | type | default | |", "|---|---|---|---|"]
    for key, field in section.model_fields.items():
        kind = re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(field.annotation).removeprefix("<class '").removesuffix("'>"))
        kind = "section" if kind.endswith(("Section", "Config")) else kind
        kind = f"`{_cell(kind.replace('|', 'or'))}`" if len(kind) < 60 else "[several](../configuration.md)"
        bounds = ", ".join(text for one in field.metadata for text in _bounds(one))
        default = "needed" if field.is_required() else f"`{_default(field.get_default(call_default_factory=True))}`"
        about = "; ".join(filter(None, (str(field.description or ""), bounds)))
        lines.append(f"| `{prefix}{key}` | {kind} | {_cell(default)} | {_cell(about)} |")
    return lines


def _bounds(limit: object) -> Iterator[str]:
    """Yield a limit such as `Ge(1)` in words."""
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    for key, word in words.items():
        if hasattr(limit, key):
            yield f"{word} {getattr(limit, key)}"


def _default(value: object) -> str:
    if isinstance(value, BaseModel):
        return f"{{name: {value.name}}}" if hasattr(value, "name") else "{}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value) if isinstance(value, Path | str) else repr(value)
    return text if len(text) < 60 else "…"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def python_page() -> str:
    """Return the page that mkdocstrings fills from the docstrings."""
    named = ("vfl.api", "attacker.interface", "vfl.observation", "vfl.recovery", "vfl.errors")
    return "# Python\n\n[python.md](../python.md) has examples.\n\n" + "\n".join(f"::: {name}\n" for name in named)
