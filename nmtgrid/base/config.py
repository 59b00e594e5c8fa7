"""Configurations: frozen dataclasses, read from and written to JSON, changed by `--set a.b=c`.

All faults are collected and raised together; for an unknown key the nearest known one is named.
A dataclass may define `faults(self) -> list[str]`, which returns what is wrong with its values.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from nmtgrid.base.errors import ConfigError, nearest

Config = TypeVar("Config")


def to_json(config: Any) -> Any:
    """Return `config` (a dataclass, nested) as plain JSON values."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, (list, tuple)):
        return [to_json(item) for item in config]
    if isinstance(config, dict):
        return {str(name): to_json(item) for name, item in config.items()}
    return config


def from_json(kind: type[Config], values: Mapping[str, Any], where: str = "") -> Config:
    """Return a `kind` made of `values`; missing keys take their defaults.

    Raises ConfigError with every unknown key, wrong type and value that `faults` refuses.
    """
    faults: list[str] = []
    config = _read(kind, values, where, faults)
    if faults:
        raise ConfigError(faults)
    check(config)
    return typing.cast(Config, config)


def check(config: Any) -> None:
    """Raise ConfigError with all that `faults` finds in `config` and below it."""
    faults = _faults(config)
    if faults:
        raise ConfigError(faults)


def override(
    config: Config, changes: Mapping[str, Any] | Sequence[str], option: str = "--set"
) -> Config:
    """Return `config` with `changes` ("a.b=c" strings, or a mapping from "a.b" to values).

    Raises ConfigError with every fault in the changes at once.
    """
    faults: list[str] = []
    pairs = changes if isinstance(changes, Mapping) else _parse(changes, option, faults)
    # Through JSON, so that changed values are checked like those of a file.
    values = to_json(config)
    for path, value in pairs.items():
        _assign(type(config), values, path, value, option, faults)
    try:
        changed = from_json(type(config), values)
    except ConfigError as fault:
        faults += fault.faults
    if faults:
        raise ConfigError(faults)
    return changed


def describe(kind: type[Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return (dotted name, type) for each setting of `kind`."""
    rows: list[tuple[str, str]] = []
    for name, hint in _hints(typing.cast(Any, kind)).items():
        if dataclasses.is_dataclass(hint):
            rows += describe(typing.cast(Any, hint), f"{prefix}{name}.")
        else:
            rows.append((prefix + name, _type_name(hint)))
    return rows


def meanings(kind: type[Any], prefix: str = "") -> dict[str, str]:
    """Return what stands below each setting of `kind` in its source, by dotted name."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            texts |= {prefix + name: text for name, text in _field_docstrings(base).items()}
    for name, hint in _hints(typing.cast(Any, kind)).items():
        if dataclasses.is_dataclass(hint):
            texts |= meanings(typing.cast(Any, hint), f"{prefix}{name}.")
    return texts


def _field_docstrings(kind: type[Any]) -> dict[str, str]:
    # Python keeps no docstring of a field: the help texts of settings come from the source.
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # a type that was made while running has none
        return {}
    # A class within a function is indented, which the parser refuses.
    body = ast.parse(inspect.cleandoc("\n" + source)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _parse(assignments: Iterable[str], option: str, faults: list[str]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name:
            faults.append(f"`{option} {text}` is not of the form name=value.")
            continue
        try:
            pairs[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):  # a word, or too long a number, too deep a list
            constants = {"true": True, "false": False, "none": None}
            pairs[name.strip()] = constants.get(value.strip().lower(), value)
    return pairs


def _assign(
    kind: type[Any], values: Any, path: str, value: Any, option: str, faults: list[str]
) -> None:
    """Set the setting `path` of `values`, the JSON of a `kind`, or enter a fault."""
    *groups, last = path.split(".")
    hint: Any = kind
    for name in groups:
        hint = _member(hint, name)
        values = values[name] if hint is not None else None
    hint = _member(hint, last)
    if hint is None:
        known = [name for name, _ in describe(kind)]
        faults.append(f"`{option} {path}`: there is no such setting. {nearest(path, known)}")
        return
    if dataclasses.is_dataclass(hint):
        faults.append(f"`{option} {path}`: this is a group; name a setting in it.")
        return
    before = len(faults)
    converted = _convert(hint, value, f"{option} {path}", faults)
    if len(faults) == before:
        values[last] = to_json(converted)


def _member(hint: Any, name: str) -> Any:
    """Return the type of the setting or group `name` in a group, or None if there is none."""
    is_group = isinstance(hint, type) and dataclasses.is_dataclass(hint)
    return _hints(hint).get(name) if is_group else None


# Annotations are strings here, and evaluating them takes longer than reading a configuration.
@functools.cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _read(kind: Any, values: Any, where: str, faults: list[str]) -> Any:
    if not isinstance(values, Mapping):
        faults.append(f"{where.rstrip('.') or 'the configuration'} must be a group of settings.")
        return None
    hints = _hints(kind)
    for name in values:
        if name not in hints:
            faults.append(f"There is no setting `{where}{name}`. {nearest(str(name), hints)}")
    settings = {
        name: _convert(hint, values[name], where + name, faults)
        for name, hint in hints.items()
        if name in values
    }
    for field in dataclasses.fields(kind):
        has_default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if field.name not in values and not has_default:
            faults.append(f"The setting `{where}{field.name}` is missing.")
    return None if faults else kind(**settings)


def _convert(hint: Any, value: Any, where: str, faults: list[str]) -> Any:
    """Return `value` converted to the type `hint`, or enter a fault."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _read(hint, value, where + ".", faults)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _convert(next(a for a in arguments if a is not type(None)), value, where, faults)
    if origin is typing.Literal:
        if value is None and "none" in arguments:
            return "none"  # `--set name=none` reads as no value where a setting may have none.
        # True equals 1, which a choice between numbers would accept.
        if value in arguments and not isinstance(value, bool):
            return value
        choices = [str(choice) for choice in arguments]
        names = ", ".join(f"`{choice}`" for choice in choices)
        close = nearest(str(value), choices)
        advice = f" {close}" if close.startswith("Did") else ""
        faults.append(f"`{where}` must be one of {names}, but is `{value}`.{advice}")
        return None
    if origin is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(_convert(arguments[0], item, where, faults) for item in value)
        faults.append(f"`{where}` must be a list such as [1, 2], but is `{value}`.")
        return None
    if hint is float:
        # JSON has no NaN and infinities, but Python's reader lets them through.
        if type(value) in (int, float) and abs(value) <= sys.float_info.max:
            return float(value)
        faults.append(f"`{where}` must be a finite number, but is `{value}`.")
        return None
    # By type: True is an instance of int.
    if hint in (int, float, str, bool) and type(value) is hint:
        return value
    faults.append(f"`{where}` must be {_type_name(hint)}, but is `{value}`.")
    return None


def _type_name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if hint in names:
        return names[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(str(choice) for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("none" if a is type(None) else _type_name(a) for a in arguments)
    if origin is tuple:
        return f"a list of {_type_name(arguments[0])}"
    return str(hint)


def _faults(config: Any) -> list[str]:
    faults = list(config.faults()) if hasattr(config, "faults") else []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            faults += _faults(value)
    return faults
