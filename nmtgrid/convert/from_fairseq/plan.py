"""What an import is made of: our settings, and a recipe for each of our tensors."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from nmtgrid.base.errors import ModelError
from nmtgrid.convert.from_fairseq.checkpoint import Checkpoint, Inert, Namespace

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
        self.faults.append(f"`{option_name(name)}` {said}: a whole number of at least 1 is wanted.")
        return 1

    def rate(self, name: str, default: float) -> float:
        """Return a share of 0 to 1, such as a dropout rate."""
        found = self.get(name, default)
        if isinstance(found, (int, float)) and 0.0 <= found < 1.0:
            return float(found)
        self.faults.append(f"`{option_name(name)} {found}` is no rate from 0 up to 1.")
        return default

    def refuse(self, name: str, why: str) -> None:
        """Enter a fault that names the option and its value."""
        found = self.get(name, "")
        said = option_name(name) if found is True or found == "" else f"{option_name(name)} {found}"
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
            values = f"`{option_name(first)}` is {self.get(first)}, `{option_name(second)}` {self.get(second)}"
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


def option_name(name: str) -> str:
    """Return an option as it is typed."""
    return "--" + name.replace("_", "-")


def read_options(content: Mapping[str, Any]) -> Options:
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


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How one of our tensors is made: of which of theirs, and what is done to them."""

    names: tuple[str, ...]
    make: Callable[..., Tensor]


Recipes = dict[str, Recipe]


@dataclasses.dataclass
class Plan:
    """A model of ours: `copies` are names of theirs that must equal other names of theirs."""

    arch: str
    config: Any
    recipes: Recipes
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    """Endings of names that hold nothing learnt."""
    notes: list[str] = dataclasses.field(default_factory=list)


def copied(name: str) -> Recipe:
    """Return the recipe of a tensor that is theirs as it stands."""
    return Recipe((name,), lambda tensor: tensor)


def computed(make: Callable[..., Tensor], *names: str) -> Recipe:
    """Return the recipe `make` of the tensors `names`."""
    return Recipe(names, make)


def linear(ours: str, theirs: str) -> Recipes:
    """Return the recipes of a weight and a bias that are theirs as they stand."""
    return {f"{ours}.{part}": copied(f"{theirs}.{part}") for part in ("weight", "bias")}


def unmatched_tensors(plan: Plan, checkpoint: Checkpoint) -> list[str]:
    """Return what is missing of the plan's tensors, and what the plan leaves unused."""
    held = set(checkpoint.views)
    used = {name for recipe in plan.recipes.values() for name in recipe.names}
    missing = sorted(used - held)
    left = [
        name
        for name in sorted(held - used - set(plan.copies))
        if not name.endswith(plan.ignored or ("\0",))
    ]
    faults = _named("The checkpoint lacks", missing, "for a model of these options.")
    faults += _named("The checkpoint has", left, f"which `{plan.arch}` has no place for.")
    for copy, original in plan.copies.items():
        if copy in held and original in held:
            shapes = checkpoint.views[copy].shape, checkpoint.views[original].shape
            if shapes[0] != shapes[1] or not checkpoint.load(copy).equal(checkpoint.load(original)):
                faults.append(
                    f"`{copy}` and `{original}` should be one matrix by the options, but differ."
                )
    return faults


def convert_tensors(
    plan: Plan, checkpoint: Checkpoint, wanted: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return our tensors, and what does not fit the shapes `wanted`."""
    found: dict[str, Tensor] = {}
    faults: list[str] = []
    for ours, recipe in plan.recipes.items():
        said = " and ".join(f"`{name}`" for name in recipe.names[:3])
        try:
            found[ours] = recipe.make(*(checkpoint.load(name) for name in recipe.names))
        except (RuntimeError, IndexError, ValueError) as fault:
            faults.append(f"{said} have shapes that do not fit together ({str(fault)[:80]}).")
            continue
        shapes = list(found[ours].shape), list(wanted[ours].shape)
        if shapes[0] != shapes[1]:
            faults.append(f"{said} give {shapes[0]} where the options want {shapes[1]}.")
    return found, faults


def _named(before: str, names: Iterable[str], after: str) -> list[str]:
    names = list(names)
    if not names:
        return []
    shown = ", ".join(f"`{name[:80]}`" for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return [f"{before} {shown}{more}, {after}"]
