"""The options that a checkpoint was trained with, asked for by name, all faults gathered."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from nmtgrid.base.errors import ModelError
from nmtgrid.convert.from_fairseq.constructors import Inert, Namespace

_GROUPS = ("common", "dataset", "task", "criterion", "model")
_PARTS = ("encoder", "decoder", "quant_noise")
_LONGEST = 1000
"""Characters of an option's expression, and items of the list that it stands for."""


class Options:
    """The options of a checkpoint; what cannot be expressed here is entered into `faults`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.faults: list[str] = []

    def get(self, name: str, default: Any = None) -> Any:
        """Return the option's value, `default` where there is none."""
        found = self.values.get(name)
        return default if found is None else found

    def is_set(self, name: str) -> bool:
        """Return whether a switch is on; texts such as "False" and "0" are off."""
        found = self.get(name, False)
        if isinstance(found, str):
            return found.strip().lower() not in ("", "0", "false", "no", "none")
        return bool(found)

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number of at least 1; a fault where there is none."""
        found = self.get(name, default)
        if type(found) is int and found >= 1:
            return found
        said = "is missing from its options" if found is None else f"is `{found}`"
        self.faults.append(f"`{flag(name)}` {said}: a whole number of at least 1 is wanted.")
        return 1

    def rate(self, name: str, default: float) -> float:
        """Return a share of 0 to 1, such as a dropout rate."""
        found = self.get(name, default)
        if isinstance(found, (int, float)) and 0.0 <= found < 1.0:
            return float(found)
        self.faults.append(f"`{flag(name)} {found}` is no rate from 0 up to 1.")
        return default

    def refuse(self, name: str, why: str) -> None:
        """Enter a fault that names the option and its value."""
        found = self.get(name, "")
        said = flag(name) if found is True or found == "" else f"{flag(name)} {found}"
        self.faults.append(f"`{said[:100]}`: {why}")

    def must_be_off(self, names: Mapping[str, str]) -> None:
        """Refuse each of the switches (or amounts) that is on, with the reason beside it."""
        for name, why in names.items():
            if self.is_set(name):
                self.refuse(name, why)

    def must_be(self, name: str, wanted: Sequence[Any], why: str) -> None:
        """Refuse the option where it is there and none of the values `wanted`."""
        found = self.get(name)
        if found is not None and found not in wanted:
            self.refuse(name, why)

    def must_agree(self, first: str, second: str, why: str) -> None:
        """Refuse two options that are not the same."""
        if self.get(first, False) != self.get(second, False):
            values = f"`{flag(first)}` is {self.get(first)}, `{flag(second)}` {self.get(second)}"
            self.faults.append(f"{values}: {why}")

    def listed(self, name: str) -> list[Any]:
        """Return the list that an option is written as, such as `[(256, 3)] * 4`."""
        found = self.get(name)
        if not isinstance(found, str):
            return list(found) if isinstance(found, (list, tuple)) else []
        try:
            if len(found) > _LONGEST:
                raise ValueError
            value = _value(ast.parse(found.strip(), mode="eval").body)
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            self.refuse(name, "this is no list of numbers that can be read.")
            return []
        return list(value) if isinstance(value, (list, tuple)) else [value]


def flag(name: str) -> str:
    """Return an option as it is typed."""
    return "--" + name.replace("_", "-")


def options_of(content: Mapping[str, Any]) -> Options:
    """Return the options in a checkpoint: older ones keep `args`, newer ones a table `cfg`.

    Raises ModelError where there are none that can be read.
    """
    args, table = content.get("args"), content.get("cfg")
    if isinstance(args, Namespace):
        return Options(_plain(args.values))
    if isinstance(table, Namespace):
        table = table.values
    if isinstance(table, dict):
        found: dict[str, Any] = {}
        for group in _GROUPS:
            held = table.get(group)
            held = held.values if isinstance(held, Namespace) else held
            if isinstance(held, dict):
                found |= _flat(held)
                if group != "model":
                    found.pop("_name", None)
                if group == "criterion" and "_name" in held:
                    found["criterion"] = held["_name"]
        return Options(_plain(found))
    kind = next((one.name for one in (args, table) if isinstance(one, Inert)), "nothing")
    raise ModelError(
        f"The checkpoint holds no options that can be read (`args` or `cfg`; there is {kind}).",
        "Load and save it once with a version of fairseq that keeps `cfg` as plain values.",
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in values.items() if not isinstance(value, Inert)}


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those of an encoder, decoder or kind of noise under their long names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in _PARTS and isinstance(value, dict):
            found |= {f"{name}_{inner}": held for inner, held in value.items()}
        else:
            found[str(name)] = value
    return found


def _value(node: ast.AST) -> Any:
    """Return the value of an expression of numbers, lists, sums and repetitions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, bool)):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_value(item) for item in node.elts]
        return tuple(items) if isinstance(node, ast.Tuple) else items
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return _bounded(left + right)
        sizes = [len(one) if isinstance(one, (list, tuple)) else one for one in (left, right)]
        if not all(0 <= size <= _LONGEST for size in sizes):
            raise ValueError
        return _bounded(left * right)
    raise ValueError


def _bounded(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and len(value) > _LONGEST:
        raise ValueError
    return value
