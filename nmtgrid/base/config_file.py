"""Configuration files: TOML, with the line of every key for messages, or a model's `config.json`.

Commands read them with `--config`, and `train --dump-config` writes one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.atomic import reason

_LARGEST = 1 << 16
"""Maximum size of a configuration in bytes; a larger file is something else."""
_TABLES = ("model", "training", "batches", "smoothing", "search")


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """The contents of a configuration file, and which keys a command has used."""

    path: str
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    text: str = dataclasses.field(default="", repr=False)
    is_model: bool = False
    """Whether it is the `config.json` of a model, which contains every setting."""
    known: tuple[str, ...] = ()
    """The keys of all options of the command."""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The keys that the command has used as options, by the options' names in messages."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The remaining values, which are settings."""
    faults: tuple[str, ...] = ()
    """Faults of the options."""
    faulty_fields: frozenset[str] = frozenset()
    """The fields of the command's arguments that have wrong values."""

    def located(self, faults: Iterable[str], names: Mapping[str, str]) -> list[str]:
        """Return `faults`, with file and line in front of those about entries of this file.

        `names` maps names in messages to keys in this file.
        """
        messages = []
        for fault in faults:
            quoted = [text for text in re.findall(r"`([^`]*)`", fault) if text.strip()]
            words = [word for text in quoted for word in (text, text.split()[0])]
            keys = [names[word] for word in words if word in names]
            if keys and not fault.startswith(f"{self.path}:"):
                line = self._lines.get(keys[0].replace("-", "_"))
                where = self.path if line is None else f"{self.path}:{line}"
                fault = f"{where}: {fault}"
            messages.append(fault)
        return messages

    @functools.cached_property
    def _lines(self) -> dict[str, int]:
        """The line of each key and table, by dotted name."""
        import tomllib

        lines: dict[str, int] = {}
        table, statement, begin = "", "", 0
        # The parser reports no line numbers. The shortest run of lines that parses by itself is
        # exactly one statement.
        for number, line in enumerate([] if self.is_model else self.text.split("\n"), 1):
            begin = begin if statement else number
            statement += line + "\n"
            try:
                values = tomllib.loads(statement)
            except tomllib.TOMLDecodeError:
                continue
            names = [name.replace("-", "_") for name in dotted(values)]
            if statement.lstrip().startswith("["):
                table = f"{names[-1]}." if names else ""
                lines.setdefault(table[:-1], begin)
            else:
                for name in names:
                    lines.setdefault(table + name, begin)
            statement = ""
        return lines


def dotted(values: Any, prefix: str = "") -> list[str]:
    """Return the dotted names of all keys in nested tables, each table before its own keys."""
    if isinstance(values, list):
        return [name for item in values for name in dotted(item, prefix)]
    if not isinstance(values, dict):
        return []
    names = []
    for key, value in values.items():
        names += [prefix + key, *dotted(value, f"{prefix}{key}.")]
    return names


def read_config(path: str | Path) -> ConfigFile:
    """Return the configuration in a file. Raises InputError naming the line that cannot be read."""
    name = str(path)
    text = _read_text(Path(path))
    if text.lstrip().startswith("{"):
        return ConfigFile(name, _model_values(name, text), text, is_model=True)
    import tomllib

    try:
        values = tomllib.loads(text)
    except RecursionError as fault:
        raise InputError("it nests tables or lists too deeply.", path=name) from fault
    except ValueError as fault:
        message = str(fault)
        match = re.search(r" \(at line (\d+), column (\d+)\)$", message)
        line = int(match[1]) if match else len(text.splitlines())
        message = message.rpartition(" (at ")[0] or message
        problem = _REPEATED.get(message.split("(")[0].strip(), f"this is not TOML: {message}.")
        raise InputError(problem, path=name, line=line) from fault
    return ConfigFile(name, values, text)


_REPEATED = {
    "Cannot overwrite a value": "this key is given twice, or is both a value and a table.",
    "Cannot declare": "this table is given twice: put its settings together.",
}
"""Messages by the beginnings of the parser's messages about duplicate entries."""


def _read_text(path: Path) -> str:
    if path.is_dir():
        advice = "Name a file in TOML."
        if (path / "config.json").is_file():
            advice = f"`{path / 'config.json'}` holds the settings of the model in it."
        raise InputError("it is a folder, not a configuration.", advice, path=path)
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as fault:
        raise InputError(
            f"it cannot be read: {reason(fault)}.",
            "`nmtgrid train --dump-config FILE` writes a configuration to begin with.",
            path=path,
        ) from fault
    if len(content) > _LARGEST:
        raise InputError("it is too long for a configuration.", path=path)
    try:
        # Line ends as the parser normalises them; `utf-8-sig` drops a byte-order mark.
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as fault:
        line = content[: fault.start].count(b"\n") + 1
        message = "this is not UTF-8 text, so it is not a configuration file."
        raise InputError(message, path=path, line=line) from fault


def _model_values(path: str, text: str) -> dict[str, Any]:
    """Return the contents of a model's `config.json` in the form of a TOML file."""
    advice = "Give a TOML file, or the `config.json` of a model that nmtgrid has trained."
    try:
        values = json.loads(text)
    except RecursionError as fault:
        raise InputError("it is nested too deeply.", advice, path=path) from fault
    except ValueError as fault:
        line = getattr(fault, "lineno", 0)
        message = f"it is neither TOML nor JSON: {fault}."
        raise InputError(message, advice, path=path, line=line) from fault
    settings = values.get("settings", {})
    groups = [values.get("model"), settings]
    groups += [settings.get("objective", {})] if isinstance(settings, dict) else []
    # A configuration written as JSON has a table `model` too, but most of it would be ignored.
    is_model = "format" in values and "arch" in values
    if not is_model or not all(isinstance(group, dict) for group in groups):
        raise InputError("it is JSON, but not the `config.json` of a model.", advice, path=path)
    tables = {"model": values["model"], **settings}
    config = {"arch": values.get("arch"), "preset": settings.get("preset")}
    config |= {name: tables[name] for name in _TABLES if name in tables}
    if "objective_name" in settings:
        config["objective"] = {"name": settings["objective_name"], **settings.get("objective", {})}
    return {name: value for name, value in config.items() if value is not None}


def to_toml(values: Mapping[str, Any]) -> str:
    """Return nested JSON values as TOML, with "none" for null; tables follow plain keys."""
    return "".join(_toml_lines(values, "")).lstrip("\n")


def _toml_lines(values: Mapping[str, Any], table: str) -> list[str]:
    plain = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    lines = [f"\n[{table[:-1]}]\n"] if table and (plain or not values) else []
    lines += [f"{name} = {_toml_value(value)}\n" for name, value in plain.items()]
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += _toml_lines(value, f"{table}{name}.")
    return lines


def _toml_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml_value, value))}]"
    if value is None:
        return '"none"'
    # Strings, numbers and booleans are written as in JSON, except for DEL, which TOML escapes.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
