"""Options from a configuration file (`--config`): keys, types and precedence.

Keys are the long names of options, with `-` or `_`. The command line takes precedence.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from nmtgrid.base.config import convert, value_schema
from nmtgrid.base.config_file import ConfigFile, dotted
from nmtgrid.base.errors import InputError, nearest


@dataclasses.dataclass(frozen=True)
class FileOption:
    """An option in a configuration file; `parse` reads and checks a number."""

    field: str
    label: str
    """Its name in messages."""
    kind: Any
    """Its type, as annotated."""
    help: str
    parse: Callable[[str], Any] | None
    is_list: bool
    """Whether its text is a list such as `1,2,3`, for which a file may have an array."""

    @property
    def type(self) -> Any:
        if get_origin(self.kind) in (Union, types.UnionType):
            return next(part for part in get_args(self.kind) if part is not type(None))
        return self.kind

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the option's values."""
        kind = self.type
        is_repeated = get_origin(kind) is list
        item = get_args(kind)[0] if is_repeated else kind
        value = {"type": ["string", "number"]} if item is str else value_schema(item)
        forms = [value]
        if is_repeated or self.is_list:
            forms.append({"type": "array", "items": value})
        if self.label == "--set":
            forms.append({"type": "object"})
        described = {"description": self.help.replace("  [default", " [default")}
        return ({"anyOf": forms} if len(forms) > 1 else value) | described

    def read(self, key: str, value: Any, faults: list[str]) -> Any:
        """Return the option's value; append errors to `faults`."""
        kind = self.type
        if get_origin(kind) is not list:
            return self._read_item(kind, key, value, faults)
        if isinstance(value, Mapping) and self.label == "--set":
            return _changes(value)
        items = value if isinstance(value, list) else [value]
        return [self._read_item(get_args(kind)[0], key, item, faults) for item in items]

    def _read_item(self, kind: Any, key: str, value: Any, faults: list[str]) -> Any:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if kind is str and self.is_list and isinstance(value, list):
            return ",".join(str(item) for item in value)
        if kind is str and is_number:
            return str(value)  # a list such as `1..9` may be a single number
        before = len(faults)
        converted = convert(str if kind is Path else kind, value, key, faults)
        if len(faults) > before:
            return None
        if kind is Path:
            return Path(converted)
        if self.parse is not None:
            try:
                self.parse(str(converted))
            except ValueError as fault:
                faults.append(f"`{key}` {fault}")
        return converted


def _changes(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return a table of settings in the form of `--set`; `search.beam = 4` is a nested table."""
    changes = []
    for name, value in table.items():
        if isinstance(value, Mapping):
            changes += _changes(value, f"{prefix}{name}.")
        else:
            changes.append(f"{prefix}{name}={json.dumps(value, default=str)}")  # TOML has dates
    return changes


def _names_in_messages(option: FileOption, key: str, value: Any) -> dict[str, str]:
    """Return the keys of an option's value, by their names in messages."""
    names = {option.label: key}
    if option.label == "--set" and isinstance(value, Mapping):
        for setting in dotted(value):
            name = setting.removeprefix("search.")
            names |= dict.fromkeys((f"--set {name}", f"search.{name}"), f"{key}.{setting}")
    return names


def _hint(key: str, options: Mapping[str, FileOption]) -> str:
    """Return a hint at the option that an unknown key may mean: an argument, or a similar name."""
    for name, option in options.items():
        if option.label.lower() == key:
            return f"{option.label} is called `{name}` in a file."
    return nearest(key, options)


def with_options(
    values: Mapping[str, Any],
    file: ConfigFile,
    options: Mapping[str, FileOption],
    typed: Collection[str],
    barred: Collection[str],
    settings: Collection[str] | None,
) -> tuple[dict[str, Any], ConfigFile]:
    """Return the arguments completed from `file`, and the file with its other keys and errors.

    `options` are those that a file may set, by key; the fields `typed` were given on the command
    line, which takes precedence. `barred` are the keys of all other options. `settings` are keys
    that stay in the file, as do tables and unknown keys; None: the command has no settings, and an
    unknown key is an error.
    """
    if file.is_model and settings is None:
        raise InputError(
            "this is the `config.json` of a model, which only `train` accepts.",
            "Give a file in TOML.",
            path=file.path,
        )
    faults: list[str] = []
    faulty = set()
    merged, rest = dict(values), {}
    names: dict[str, str] = {}
    spellings: dict[str, str] = {}
    for name, value in file.values.items():
        key = name.replace("-", "_")
        option = options.get(key)
        if (first := spellings.setdefault(key, name)) != name:
            faults.append(f"`{name}` and `{first}` set the same value: give only one.")
        if key in barred:
            faults.append(
                f"`{name}` can only be given on the command line: remove it from the file."
            )
        elif option is None or (
            settings is not None and (key in settings or isinstance(value, Mapping))
        ):
            if settings is None:
                in_set = isinstance(value, Mapping) and "set" in options
                hint = "Settings go into the table `[set]`." if in_set else _hint(key, options)
                faults.append(f"`{name}`: there is no such option. {hint}")
            rest[key if key in options else name] = value
        elif option.field not in typed:
            names |= _names_in_messages(option, name, value)
            before = len(faults)
            read = option.read(name, value, faults)
            if len(faults) == before:
                merged[option.field] = read
            else:
                faulty.add(option.field)
    messages = tuple(file.located(faults, {name: name for name in file.values}))
    return merged, dataclasses.replace(
        file,
        known=tuple(options),
        options=names,
        settings=rest,
        faults=messages,
        faulty_fields=frozenset(faulty),
    )
