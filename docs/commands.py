"""The reference of commands, read from the signatures of their functions."""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import typer

from docs.markdown import code, plain, table
from nmtgrid.cli import app

_TYPES = {int: "N", float: "X", str: "TEXT"}


def commands() -> str:
    """Return the page of all commands, with every argument and option."""
    parts = [
        "# Commands\n",
        "Generated from the command line; `nmtgrid COMMAND --help` shows the same. Every command "
        "also takes these options, anywhere on its line:\n\n"
        "* `--import FILE` first runs a Python file that defines architectures, objectives, "
        "reading policies or latency metrics of your own. It may be repeated; the environment "
        "variable `NMTGRID_IMPORT` lists files too, separated by colons.\n"
        "* `--quiet` prints only warnings, errors and output for standard output.\n"
        "* `--debug` shows the traceback of an error.\n\n"
        "Translations, links, units, the schema of `config-schema`, `train --list` and whatever an "
        "option writes to `-` (such as `--json -` or `--dump-config -`) go to standard output; "
        "tables, progress and messages go to standard error.\n\n"
        "Exit codes: 0, success; 2, wrong input or options (the message says what to do); 1, a bug "
        "of nmtgrid, or the reader of standard output has ended (without a message); 130, "
        "interrupted by Ctrl-C (SIGINT), and 143, by SIGTERM.\n",
    ]
    for name, module_name in app.COMMANDS.items():
        module = importlib.import_module(module_name)
        group = getattr(module, "app", None)
        if group is None:
            parts.append(_command(f"nmtgrid {name}", module.command, 2))
            continue
        summary = group.info.help if isinstance(group.info.help, str) else module.__doc__
        parts.append(f"## `nmtgrid {name}`\n\n{_text(summary)}\n")
        for registered in group.registered_commands:
            inner = registered.name or registered.callback.__name__.replace("_", "-")
            parts.append(_command(f"nmtgrid {name} {inner}", registered.callback, 3))
    return "\n".join(parts)


def _command(name: str, function: Callable[..., Any], level: int) -> str:
    """Return the section of one command."""
    hints = typing.get_type_hints(function, include_extras=True)
    arguments: list[tuple[str, str, str]] = []
    panels: dict[str, list[tuple[str, str, str]]] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if not hasattr(hint, "__metadata__"):
            continue  # Typer's context, not an option
        info = next(item for item in hint.__metadata__ if hasattr(item, "param_decls"))
        if info.hidden:
            continue
        shown = _default(parameter.default, info, _plain_type(hint))
        if isinstance(info, typer.models.ArgumentInfo):
            metavar = info.metavar or parameter.name.upper()
            bare = parameter.default is not inspect.Parameter.empty and metavar[0] != "["
            metavar = f"[{metavar}]" if bare else metavar
            arguments.append((code(metavar), plain(info.help or ""), shown))
        else:
            words = _option(parameter.name, info, _plain_type(hint))
            rows = panels.setdefault(info.rich_help_panel, [])
            rows.append((words, plain(info.help or ""), shown))
    usage = " ".join([name, *(row[0].strip("`") for row in arguments), "[OPTIONS]"])
    parts = [f"{'#' * level} `{name}`\n", f"    {usage}\n", f"{_text(function.__doc__)}\n"]
    for title, rows in (("Arguments", arguments), *panels.items()):
        if rows:
            parts.append(table((title, "meaning", "default"), rows))
    examples = "\n".join(f"    {example}" for example in vars(function)["examples"])
    parts.append(f"For example:\n\n{examples}\n")
    return "\n".join(parts)


def _text(text: str | None) -> str:
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(plain(paragraph) for paragraph in paragraphs)


def _plain_type(hint: Any) -> Any:
    """Return the annotated type, without metadata and None."""
    kind = typing.get_args(hint)[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(member for member in typing.get_args(kind) if member is not type(None))
    return typing.get_args(kind)[0] if typing.get_origin(kind) is list else kind


def _option(name: str, info: Any, kind: Any) -> str:
    """Return the names of an option and the placeholder of its value."""
    bare = "--" + name.replace("_", "-")
    # In an annotation Typer keeps the first name as the default.
    words = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
    names = [part for word in words for part in word.split("/")]
    if not names:
        names = [bare, bare.replace("--", "--no-", 1)] if kind is bool else [bare]
    shown = " ".join(code(name) for name in names)
    if kind is bool:
        return shown
    if typing.get_origin(kind) is typing.Literal and not info.metavar:
        return f"{shown} {code(', '.join(map(str, typing.get_args(kind))))}"
    return f"{shown} {code(info.metavar or _TYPES.get(kind, 'PATH'))}"


def _default(value: Any, info: Any, kind: Any) -> str:
    """Return the default as `--help` shows it, or an empty string."""
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(info.show_default, str):
        return info.show_default
    if value is None or value is False or value == []:
        return ""
    return "yes" if value is True else code(str(value))
