"""Reading JSON: decoding, and checks against the types and ranges of a record.

The only module that imports msgspec. A record is a dataclass, or a `Record` if only its reader
uses it; fields are annotated with the ranges below, and `__post_init__` raises ValueError for
fields that contradict each other. Unknown keys are ignored: later versions may write more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy
from msgspec import Meta
from numpy.typing import NDArray

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.base.io.atomic import (
    LINE_CHECKSUM,
    altered_advice,
    altered_error,
    damaged_error,
    is_altered,
    is_altered_line,
    refuse_stream,
    storage_error,
)

Kind = TypeVar("Kind")

Count = Annotated[int, Meta(ge=0, lt=2**53)]
"""A count; floats are exact below this bound."""
Number = Count | Annotated[float, Meta(ge=0, lt=2**53)]
"""A non-negative number; integers stay integers."""
Positive = Annotated[int, Meta(ge=1, lt=2**53)]
Size = Annotated[int, Meta(ge=1, le=2**24)]
"""A count of things that take memory, such as types of a vocabulary."""
Small = Annotated[int, Meta(ge=1, le=2**16)]
"""A count of layers, exits, features of a region or batches of an update."""
Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]
"""A number that float32 can represent, as it can sums of such numbers."""
NonNegative = Annotated[float, Meta(ge=0, le=1e30)]
Percent = Annotated[float, Meta(ge=0, le=100.001)]
Probability = Annotated[float, Meta(ge=0, le=1)]
LogProbability = Annotated[float, Meta(ge=-1e9, le=1e-3)]
"""At most zero, up to the rounding of sums."""
FileName = Annotated[str, Meta(pattern="^[^/]+$")]
Matrix = NDArray[numpy.float32]


class Record(msgspec.Struct):
    """Base class of records that are read from JSON."""

    def values(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


_DEEPEST = 64
_SHOWN = 40
_TYPES = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false",
    "array": "a list", "object": "an object", "null": "null",
}  # fmt: skip
_BOUNDS = {">=": "at least", "<=": "at most", "<": "below", ">": "above"}


def parse_json(content: bytes | str, *, as_python: bool = False) -> Any:
    """Return the values of a JSON text.

    NaN, infinities and halves of surrogate pairs are not JSON, but Python writes them: `as_python`
    accepts them. Raises ValueError with a readable message if the text is not JSON, is nested too
    deep or has too long a number.
    """
    try:
        values = msgspec.json.decode(content)
        _check_depth(values)
        return values
    except RecursionError as fault:
        raise ValueError("it is not JSON (nested too deep)") from fault
    except UnicodeDecodeError as fault:
        raise ValueError("it is not JSON (bytes that are not UTF-8)") from fault
    except msgspec.DecodeError as fault:
        if as_python and re.search(rb"NaN|Infinity|\\u[dD]", _bytes(content)):
            return _parse_as_python(content)
        raise ValueError(f"it is not JSON ({_syntax_problem(str(fault), content)})") from fault


def convert(values: Any, kind: type[Kind]) -> Kind:
    """Return JSON values as a record. Raises ValueError naming the key that does not fit."""
    try:
        return msgspec.convert(values, kind, dec_hook=_to_array)
    except msgspec.ValidationError as fault:
        raise ValueError(_problem(str(fault), values, kind)) from fault


def fits(value: Any, kind: Any) -> bool:
    """Return whether a JSON value has the type `kind`."""
    try:
        msgspec.convert(value, kind, dec_hook=_to_array)
    except msgspec.ValidationError:
        return False
    return True


def read_json(path: Path, version: int | None = None) -> Any:
    """Return the JSON values in `path`: an object of format `version`, unless that is None.

    Raises StorageError when it is missing, damaged or of another version.
    """
    refuse_stream(path)
    try:
        content = path.read_bytes()
        # File names that are not valid text are written as halves of surrogate pairs.
        values = parse_json(content, as_python=b"\\udc" in content)
    except OSError as fault:
        raise storage_error(path, fault, "read") from fault
    except ValueError as fault:
        raise damaged_error(path, str(fault)) from fault
    if version is not None:
        check_version(path, values, version)
    return values


def check_version(path: Path, values: Any, version: int) -> None:
    """Raise StorageError unless the values of a file are an object of format `version`."""
    if not isinstance(values, dict):
        raise damaged_error(path, "it is not an object")
    # By type: True equals 1.
    present = values.get("format")
    if type(present) is not int or present != version:
        raise StorageError(
            f"{path} has format {_shown(present)[1:-1]}, but this program reads {version}.",
            "Use the version of nmtgrid that wrote it, or make it again.",
        )


def read_record(path: Path, kind: type[Kind], version: int | None = None) -> Kind:
    """Return the record in `path`, whose checksum, if it has one, must match.

    Raises StorageError naming the file, and the key of an invalid value.
    """
    return convert_unaltered(path, read_json(path, version), kind)


def convert_unaltered(path: Path, values: Any, kind: type[Kind]) -> Kind:
    """Return the values of a file as a record, like `read_record`, which raises the same errors."""
    # After the format: another version may compute its checksum differently.
    if isinstance(values, dict) and is_altered(values):
        raise altered_error(path)
    return convert_file(path, values, kind)


def convert_file(path: Path, values: Any, kind: type[Kind]) -> Kind:
    """Return the values of a file as a record. Raises StorageError naming the file and the key."""
    try:
        return convert(values, kind)
    except ValueError as fault:
        raise damaged_error(path, str(fault)) from fault


def parse_record(
    text: str, kind: type[Kind], path: str | Path, line: int, *, name: str, advice: str
) -> Kind:
    """Return the record in a line of JSON; messages call it `name`.

    Raises InputError with the file and the line.
    """
    try:
        values = parse_json(text, as_python=True)
        record = convert(values, kind)
    except ValueError as fault:
        problem = f"this is not {name}: {fault}."
        raise InputError(problem, advice, path=path, line=line) from fault
    if is_altered_line(values):
        raise InputError(
            "this line has been altered (its checksum differs).", altered_advice(LINE_CHECKSUM),
            path=path, line=line,
        )  # fmt: skip
    return record


def _bytes(content: bytes | str) -> bytes:
    return content.encode("utf-8", "replace") if isinstance(content, str) else content


def _check_depth(values: Any) -> None:
    """Raise RecursionError if values are nested too deep to be written or shown again."""
    level, depth = [values] if type(values) in (dict, list) else [], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise RecursionError
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) in (dict, list)
        ]


def _parse_as_python(content: bytes | str) -> Any:
    try:
        values = json.loads(content)
        _check_depth(values)
    except (ValueError, RecursionError) as fault:
        raise ValueError("it is not JSON") from fault
    return values


def _syntax_problem(message: str, content: bytes | str) -> str:
    """Return msgspec's message on invalid JSON, with line and column."""
    if "out of range" in message:
        return "too large a number"
    message = message.removeprefix("JSON is malformed: ").replace("Input data was", "the text is")
    match = re.fullmatch(r"(.*) \(byte (\d+)\)", message)
    if match is None:
        return message
    before = _bytes(content)[: int(match[2])]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return f"{match[1]} at {f'line {line}, ' if line > 1 else ''}column {column}"


def _to_array(kind: Any, value: Any) -> Any:
    """Return a table of numbers as an array; msgspec calls this for types that JSON lacks."""
    if getattr(kind, "__origin__", kind) is not numpy.ndarray:
        raise NotImplementedError
    rows_kind = list[list[Finite]]
    try:
        rows = msgspec.convert(value, rows_kind)
    except msgspec.ValidationError as fault:
        problem = _problem(str(fault), value, rows_kind)
        raise ValueError(f"it is not a table of numbers: {problem}") from fault
    if any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("it is not a table (its rows differ in length)")
    return numpy.array(rows, dtype=numpy.float32)


def _problem(message: str, values: Any, kind: Any) -> str:
    """Return msgspec's error in plain words, with the path of the key."""
    text, _, path = message.partition(" - at `$")
    keys: list[Any] = []
    for name, index in re.findall(r"\.([^.\[`]+)|\[(\d+|\.\.\.)\]", path):
        if index == "...":
            # msgspec does not report keys of tables: find the first that does not fit by itself.
            table = _value_at(values, keys)
            name = next(
                (key for key in table if not _fits_alone(values, keys, key, kind)), index
            )  # fmt: skip
        keys.append(int(index) if index.isdigit() else name)
    return _words(text, keys, _value_at(values, keys))


def _value_at(values: Any, keys: Sequence[Any]) -> Any:
    for key in keys:
        values = values[key]
    return values


def _fits_alone(values: Any, keys: Sequence[Any], key: Any, kind: Any) -> bool:
    """Return whether `values` fit with `key` as the only entry of the table at `keys`."""
    if not keys:
        return fits({key: values[key]}, kind)
    # Copied along the path only.
    reduced = copy = values.copy()
    for parent in keys[:-1]:
        copy[parent] = copy = copy[parent].copy()
    copy[keys[-1]] = {key: copy[keys[-1]][key]}
    return fits(reduced, kind)


def _words(text: str, keys: Sequence[Any], value: Any) -> str:
    location = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    location = location.removeprefix(".")
    name = f"`{location}`" if location else "it"
    if match := re.fullmatch(r"Object missing required field `(.+)`", text):
        return f"`{location}{'.' if location else ''}{match[1]}` is missing"
    if match := re.fullmatch(r"Expected `\w+` of length (>=|<=)? ?(\d+)(?:, got \d+)?", text):
        bound = _BOUNDS[match[1]] + " " if match[1] else ""
        return f"{name} must have {bound}{match[2]} entries, but is {_shown(value)}"
    if match := re.fullmatch(r"Expected `\w+` (>=|<=|>|<) (\S+)", text):
        if value != value:  # NaN, which is within no bound
            return f"{name} must be a number, but is {_shown(value)}"
        limit = match[2] if len(match[2]) > 10 else f"{float(match[2]):g}"
        return f"{name} must be {_BOUNDS[match[1]]} {limit}, but is {_shown(value)}"
    if match := re.fullmatch(r"Expected `(.+)`, got `.+`", text):
        types = " or ".join(
            _TYPES.get(word, word) for word in match[1].replace("int | float", "float").split(" | ")
        )
        return f"{name} must be {types}, but is {_shown(value)}"
    if "out of range" in text:
        return f"{name} is too large a number"
    if text.startswith(("Invalid enum value", "Expected `str` matching")):
        return f"{name} cannot be {_shown(value)}"
    # The message of a record's own check.
    return f"in {name}, {text}" if location else text


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    # Halves of surrogate pairs cannot be printed.
    text = text.encode("utf-8", "backslashreplace").decode()
    return f"`{text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}`"
