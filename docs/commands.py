"""The reference of commands, read from the signatures of the functions that they are."""

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
        "Generated from the command line; `nmtgrid COMMAND --help` shows the same. Three options "
        "may stand anywhere on the line of every command: `--import FILE` (may be repeated; the "
        "environment variable `NMTGRID_IMPORT` names files too, with colons between) runs a Python "
        "file first, so that the architectures, objectives, reading policies and latency metrics "
        "that it defines are known; `--quiet` leaves only warnings, errors and what goes to "
        "standard output; `--debug` shows the traceback of an error. Exit codes: 0 done, "
        "2 something to mend (it is said what), 1 a fault of the program's, 130 interrupted.\n",
    ]
    for name, place in app.COMMANDS.items():
        module = importlib.import_module(place)
        group = getattr(module, "app", None)
        if group is None:
            parts.append(_command(f"nmtgrid {name}", module.command, 2))
            continue
        said = group.info.help if isinstance(group.info.help, str) else module.__doc__
        parts.append(f"## `nmtgrid {name}`\n\n{_text(said)}\n")
        for held in group.registered_commands:
            inner = held.name or held.callback.__name__.replace("_", "-")
            parts.append(_command(f"nmtgrid {name} {inner}", held.callback, 3))
    return "\n".join(parts)


def _command(name: str, function: Callable[..., Any], level: int) -> str:
    """Return the section of one command."""
    hints = typing.get_type_hints(function, include_extras=True)
    arguments: list[tuple[str, str, str]] = []
    panels: dict[str, list[tuple[str, str, str]]] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if not hasattr(hint, "__metadata__"):
            continue  # the command's own context, which nobody gives
        info = next(one for one in hint.__metadata__ if hasattr(one, "param_decls"))
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
    """Return the type that is annotated, without its metadata and without None."""
    held = typing.get_args(hint)[0]
    if typing.get_origin(held) in (typing.Union, types.UnionType):
        held = next(one for one in typing.get_args(held) if one is not type(None))
    return typing.get_args(held)[0] if typing.get_origin(held) is list else held


def _option(name: str, info: Any, kind: Any) -> str:
    """Return an option's names, and what stands behind them."""
    bare = "--" + name.replace("_", "-")
    # In an annotation Typer keeps the first name as the default.
    words = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str)]
    names = [part for word in words for part in word.split("/")]
    if not names:
        names = [bare, bare.replace("--", "--no-", 1)] if kind is bool else [bare]
    shown = " ".join(code(one) for one in names)
    if kind is bool:
        return shown
    if typing.get_origin(kind) is typing.Literal and not info.metavar:
        return f"{shown} {code(', '.join(map(str, typing.get_args(kind))))}"
    return f"{shown} {code(info.metavar or _TYPES.get(kind, 'PATH'))}"


def _default(value: Any, info: Any, kind: Any) -> str:
    """Return the default as `--help` shows it; nothing where there is none."""
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(info.show_default, str):
        return info.show_default
    if value is None or value is False or value == []:
        return ""
    return "yes" if value is True else code(str(value))
