"""Configurations: frozen dataclasses, read from and written to JSON, changed by `--set a.b=c`.

Also registries: tables of the named objects that configurations refer to.

All faults are collected and raised together; an error for an unknown key names the nearest one.
A dataclass may define `faults(self) -> list[str]`, which returns what is wrong with its values; a
subclass of `CheckedSettings` writes the range of a setting into its type.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.base.other_names import setting_hint
from nmtgrid.base.spans import real_number, shortened, whole_number

Config = TypeVar("Config")
Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """Named objects; for an unknown name the error suggests the nearest one.

    Iteration is in alphabetical order.
    """

    def __init__(self, kind: str, advice: str = "") -> None:
        """`advice` follows the nearest name in the error for an unknown name."""
        self.kind, self.advice = kind, advice
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, entry: Entry) -> None:
        """Register `entry` under `name`."""
        if name in self._entries:
            raise ValueError(
                f"{self.kind} {name!r} is registered twice: rename one of them or, to redefine "
                "it, restart Python (in a notebook: the kernel)"
            )
        self._entries[name] = entry

    def get(self, name: str) -> Entry:
        """Return the entry under `name`. Raises ConfigError naming the nearest known name."""
        if name not in self._entries:
            advice = f"{nearest(name, self._entries)} {self.advice}".strip()
            raise ConfigError(f"There is no {self.kind} `{name}`.", advice)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))


@dataclasses.dataclass(frozen=True)
class Range:
    """The allowed values of a number, as part of a setting's type: `Annotated[int, FROM_1]`."""

    text: str
    contains: Callable[[Any], bool]
    advice: Callable[[Any], str] = lambda value: ""
    """Returns what a message adds about a value outside the range."""

    def faults(self, called: str, value: Any) -> list[str]:
        """Return one fault if the `value` of a setting is outside; `called` is its name."""
        if value is None or self.contains(value):  # None means no value
            return []
        shown = repr(value) if isinstance(value, str) else value
        return [f"{called} must be {self.text}, but is {shown}{self.advice(value)}."]


def between(least: float, most: float) -> Range:
    """Return the range from `least` to `most`, both included."""
    return Range(f"from {least:,} to {most:,}", lambda value: least <= value <= most)


# Comparisons with NaN are false, so it is outside every range.
ABOVE_0 = Range("a number above 0", lambda value: 0 < value < math.inf)
FROM_0 = Range("a number from 0 on", lambda value: 0 <= value < math.inf)
FROM_1 = Range("at least 1", lambda value: value >= 1)
WHOLE_FROM_0 = Range("a whole number from 0 on", lambda value: value >= 0 and value % 1 == 0)
WHOLE_FROM_1 = Range("a whole number from 1 on", lambda value: value >= 1 and value % 1 == 0)
SHARE = between(0, 1)
BELOW_1 = Range("at least 0 and below 1", lambda value: 0 <= value < 1)
POSITIVE = Range("a number above 0", lambda value: value > 0)
"""Includes infinity."""
INSIDE_0_1 = Range("above 0 and below 1", lambda value: 0 < value < 1)
SEED = Range("from 0 to 2^63 - 1", lambda value: 0 <= value < 2**63)


Condition = tuple[str, tuple[Any, ...] | Range]
"""The name of a setting (of the same group, or the full name of another one) and its values for
which a dependent setting has an effect."""


def holds(value: Any, values: tuple[Any, ...] | Range) -> bool:
    """Return whether a setting's value is one of `values`, or in that range."""
    return values.contains(value) if isinstance(values, Range) else value in values


class CheckedSettings:
    """Settings whose values must lie in the ranges of their types; messages name the group."""

    group: ClassVar[str] = ""
    only_with: ClassVar[Mapping[str, Condition]] = {}
    """Settings that have an effect only for certain values of another setting."""

    def called(self, name: str) -> str:
        """Return the name of a setting in messages."""
        return f"`{self.group}.{name}`" if self.group else f"`{name}`"

    def ineffective(self, names: Iterable[str]) -> list[str]:
        """Return the settings that have no effect because of another one of this group."""
        conditions = {name: self.only_with[name] for name in names if name in self.only_with}
        return [
            name
            for name, (other, values) in conditions.items()
            if "." not in other and not holds(getattr(self, other), values)
        ]

    def faults(self) -> list[str]:
        """Return what is wrong with the values, one sentence each."""
        kind: Any = type(self)
        return [
            fault
            for name, span in _ranges(kind).items()
            for fault in span.faults(self.called(name), getattr(self, name))
        ]


# Annotations are strings, which are slow to evaluate.
@functools.cache
def _ranges(kind: type[Any]) -> dict[str, Range]:
    hints = typing.get_type_hints(kind, include_extras=True).items()
    marks = ((name, mark) for name, hint in hints for mark in getattr(hint, "__metadata__", ()))
    return {name: mark for name, mark in marks if isinstance(mark, Range)}


def to_json(config: Any) -> Any:
    """Return `config` (a dataclass, nested) as plain JSON values."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, (list, tuple)):
        return [to_json(item) for item in config]
    if isinstance(config, dict):
        return {str(name): to_json(item) for name, item in config.items()}
    return config


def from_attributes(kind: type[Config], source: Any, **changed: Any) -> Config:
    """Return a `kind` with the fields in `changed`, and the others from attributes of `source`."""
    names = (field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]
    return kind(**{n: changed[n] if n in changed else getattr(source, n) for n in names})


def from_json(kind: type[Config], values: Mapping[str, Any], where: str = "") -> Config:
    """Return a `kind` built from `values`; missing keys take their defaults.

    Raises ConfigError with every unknown key, wrong type and value that `faults` rejects.
    """
    faults: list[str] = []
    config = _read(kind, values, where, faults)
    if faults:
        raise ConfigError(faults)
    check(config)
    return typing.cast(Config, config)


def check(config: Any) -> None:
    """Raise ConfigError with all faults of `config` and its nested groups, if there are any."""
    faults = _faults(config)
    if faults:
        raise ConfigError(faults)


Changes = Mapping[str, Any] | Sequence[str]
"""A mapping from "a.b" to values, or "a.b=c" strings."""


def override(config: Config, changes: Changes) -> Config:
    """Return `config` with `changes`. Raises ConfigError with every fault in them at once."""
    return override_all(config, [(set_option, changes)])


def set_option(name: str) -> str:
    """Return the name in messages of a setting changed by `--set`."""
    return f"--set {name}"


def override_all(
    config: Config, layers: Iterable[tuple[Callable[[str], str], Changes]]
) -> Config:
    """Return `config` with several layers of changes; the last change to a setting wins.

    Each layer is (function from a setting's name to its name in messages, changes). Raises
    ConfigError with every fault at once.
    """
    faults: list[str] = []
    # Through JSON, so that changed values are checked like those of a file.
    values = to_json(config)
    for called, changes in layers:
        for path, value in _pairs(changes, faults).items():
            _assign(type(config), values, path, value, called, faults)
    try:
        changed = from_json(type(config), values)
    except ConfigError as fault:
        faults += fault.faults
    if faults:
        raise ConfigError(faults)
    return changed


def _pairs(changes: Changes, faults: list[str]) -> Mapping[str, Any]:
    """Return the values that `changes` set, by dotted name."""
    if isinstance(changes, Mapping):
        return changes
    pairs: dict[str, Any] = {}
    for text in changes:
        name, equals, value = text.partition("=")
        if not equals or not name:
            faults.append(f"`--set {shortened(text)}` is not of the form name=value.")
            continue
        try:
            pairs[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):  # a word, too long a number or too deep a list
            pairs[name.strip()] = _word(value)
    return pairs


def _word(text: str) -> Any:
    """Return the value of a text that is not JSON: a constant, a number such as `.5`, or itself."""
    constants = {"true": True, "false": False, "none": None}
    if text.strip().lower() in constants:
        return constants[text.strip().lower()]
    if any(map(str.isdigit, text)):  # neither inf nor nan
        for read in (whole_number, real_number):
            with contextlib.suppress(ValueError):
                return read(text)
    return text


def flatten(
    kind: type[Any],
    values: Mapping[str, Any],
    faults: list[str],
    known: Iterable[str] = (),
    prefix: str = "",
) -> dict[str, Any]:
    """Return the settings of a `kind` in nested tables `values`, by dotted name.

    Unknown names become faults; `known` are further names to suggest.
    """
    settings: dict[str, Any] = {}
    hints = _hints(typing.cast(Any, kind))
    for name, value in values.items():
        path = prefix + name
        if name not in hints:
            names = [prefix + dotted for dotted, _ in describe(kind)]
            what = "setting"
            if isinstance(value, Mapping):
                names, what = [prefix + key for key in hints if _is_group(hints[key])], "table"
            close = nearest(shortened(path), [*names, *known])
            if path in names:  # "training.seed" is one key, training.seed a key in a table
                close = "Leave out the quotation marks."
            faults.append(f"`{shortened(path)}`: there is no such {what}. {close}".strip())
        elif not _is_group(hints[name]):
            settings[path] = value
        elif isinstance(value, Mapping):
            settings |= flatten(hints[name], value, faults, prefix=path + ".")
        else:
            faults.append(f"`{path}` must be a table of settings, but is `{_shown(value)}`.")
    return settings


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
    """Return the docstring below each setting of `kind`, by dotted name."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            texts |= {prefix + name: text for name, text in _field_docstrings(base).items()}
    for name, hint in _hints(typing.cast(Any, kind)).items():
        if dataclasses.is_dataclass(hint):
            texts |= meanings(typing.cast(Any, hint), f"{prefix}{name}.")
    return texts


def json_schema(kind: type[Any], name: str = "") -> dict[str, Any]:
    """Return the JSON Schema of a table of settings of a `kind`; `name` is its dotted name."""
    properties, texts = {}, meanings(kind)
    for field in dataclasses.fields(kind):
        hint = _hints(typing.cast(Any, kind))[field.name]
        if _is_group(hint):
            properties[field.name] = json_schema(hint, f"{name}.{field.name}".lstrip("."))
        else:
            properties[field.name] = {
                **value_schema(hint), "description": texts.get(field.name, ""),
                **({} if field.default is dataclasses.MISSING else {"default": field.default}),
            }  # fmt: skip
    title = {"title": f"[{name}]"} if name else {}
    return {"type": "object", **title, "properties": properties, "additionalProperties": False}


def value_schema(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema of a setting's value; "none" means no value, as in TOML."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = next(a for a in arguments if a is not type(None))
        return {"anyOf": [value_schema(inner), {"const": "none"}]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (tuple, list):
        return {"type": "array", "items": value_schema(arguments[0])}
    names = {int: "integer", float: "number", bool: "boolean"}
    return {"type": names.get(hint, "string")}


@functools.cache
def _field_docstrings(kind: type[Any]) -> dict[str, str]:
    # Python keeps no docstrings of fields: the help texts of settings are parsed from the source.
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # a type created at run time has no source
        return {}
    # A class within a function is indented, which the parser rejects.
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


def _assign(
    kind: type[Any],
    values: Any,
    path: str,
    value: Any,
    called: Callable[[str], str],
    faults: list[str],
) -> None:
    """Set the setting `path` in `values`, the JSON of a `kind`, or append to `faults`."""
    hint: Any = kind
    group, below = {}, values
    for name in path.split("."):
        hint = _hints(hint).get(name) if _is_group(hint) else None
        if hint is None:
            known = [name for name, _ in describe(kind)]
            close = setting_hint(path, known) or nearest(shortened(path), known)
            faults.append(f"`{called(shortened(path))}`: there is no such setting. {close}")
            return
        group, below = below, below[name]
    if dataclasses.is_dataclass(hint):
        faults.append(f"`{called(path)}`: this is a group; name a setting in it.")
        return
    before = len(faults)
    converted = convert(hint, value, called(path), faults)
    if len(faults) == before:
        group[name] = to_json(converted)


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


# Annotations are strings, and evaluating them takes longer than reading a configuration.
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
        name: convert(hint, values[name], where + name, faults)
        for name, hint in hints.items()
        if name in values
    }
    for field in dataclasses.fields(kind):
        has_default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if field.name not in values and not has_default:
            faults.append(f"The setting `{where}{field.name}` is missing.")
    return None if faults else kind(**settings)


def convert(hint: Any, value: Any, where: str, faults: list[str]) -> Any:
    """Return `value` converted to the type `hint`, or append to `faults`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hasattr(value, "item") and not getattr(value, "shape", ()):
        value = value.item()  # a scalar of NumPy or torch becomes a Python number
    if dataclasses.is_dataclass(hint):
        return _read(hint, value, where + ".", faults)
    if origin in (typing.Union, types.UnionType):
        # TOML has no null: there "none" stands for it.
        if value in (None, "none") and type(None) in arguments:
            return None
        return convert(next(a for a in arguments if a is not type(None)), value, where, faults)
    if origin is typing.Literal:
        if value is None and "none" in arguments:
            return "none"  # `--set name=none` was parsed as None, but here it is a choice.
        # True equals 1, so a choice between numbers would accept it.
        if value in arguments and not isinstance(value, bool):
            return value
        choices = [str(choice) for choice in arguments]
        names = ", ".join(f"`{choice}`" for choice in choices)
        close = nearest(_shown(value), choices)
        advice = f" {close}" if close.startswith("Did") else ""
        faults.append(f"`{where}` must be one of {names}, but is `{_shown(value)}`.{advice}")
        return None
    if origin is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(convert(arguments[0], item, where, faults) for item in value)
        faults.append(f"`{where}` must be a list such as [1, 2], but is `{_shown(value)}`.")
        return None
    if hint is float:
        # JSON has no NaN and infinities, but Python's reader lets them through.
        if type(value) in (int, float) and abs(value) <= sys.float_info.max:
            return float(value)
        faults.append(f"`{where}` must be a finite number, but is {_format_value(value)}.")
        return None
    # By type: True is an instance of int.
    if hint is int and type(value) is int and not -(2**63) <= value < 2**63:
        faults.append(f"`{where}` must be a whole number from -2^63 to 2^63 - 1.")
        return None
    if hint in (int, float, str, bool) and type(value) is hint:
        return value
    faults.append(f"`{where}` must be {_type_name(hint)}, but is {_format_value(value)}.")
    return None


def _format_value(value: Any) -> str:
    """Return a value of the wrong type for a message that tells the text "5" from the number 5."""
    if isinstance(value, str) and _word(value) is None:
        return f'`"{_shown(value)}"`, which stands for no value'
    if isinstance(value, str) and not isinstance(_word(value), str):
        return f'`"{_shown(value)}"`, a text: leave out the quotation marks'
    return f"`{_shown(value)}`"


def _shown(value: Any) -> str:
    """Return a value for a message, shortened if it is long."""
    try:
        return shortened(str(value).lower() if isinstance(value, bool) else str(value))
    except ValueError:  # Python refuses to write integers of more than 4,300 digits
        return "a very long number"


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
