"""The plan of a conversion: the configuration from fairseq's options, and a recipe per tensor."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from nmtgrid.base.errors import ModelError, list_names
from nmtgrid.convert.from_fairseq.checkpoint import Checkpoint, Inert, Namespace
from nmtgrid.models.config_checks import LARGEST_DEPTH

_GROUPS = ("common", "dataset", "task", "criterion", "model")
_PARTS = ("encoder", "decoder", "quant_noise")
# Maximum characters of an option's text, and items of the list that it denotes.
_LONGEST = 1000
# A count of features, far more than any model has: torch can still count the parameters.
LARGEST_COUNT = 1 << 18
# The k of attn2d's wait-k that reads the whole source.
_READ_ALL = 1024


class Options:
    """The options of a checkpoint; unsupported ones are added to `faults`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.faults: list[str] = []

    def get(self, name: str, default: Any = None) -> Any:
        """Return the option's value, or `default`.

        It is a short text, a number, or a short list of these, all of which can be printed and
        compared; anything else that is not empty becomes `...`, which means a switch that is on.
        """
        value = self.values.get(name)
        if value is None or isinstance(value, Inert):
            return default
        if _is_plain(value):
            return value
        if isinstance(value, str):
            return value[:_LONGEST] + "..."
        return "..." if value else ""

    def is_set(self, name: str) -> bool:
        """Return whether a switch is on; texts such as "False" and "0" are off."""
        value = self.get(name, False)
        if isinstance(value, str):
            return value.strip().lower() not in ("", "0", "false", "no", "none")
        return bool(value)

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number of at least 1; record an error otherwise."""
        value = self.get(name, default)
        largest = LARGEST_DEPTH if name.endswith("layers") else LARGEST_COUNT
        if type(value) is int and 1 <= value <= largest:
            return value
        problem = "is missing from its options" if value is None else f"is `{str(value)[:100]}`"
        self.faults.append(
            f"`{option_name(name)}` {problem}: it must be a whole number from 1 to {largest:,}."
        )
        return 1

    def rate(self, name: str, default: float) -> float:
        """Return a share of 0 to 1, such as a dropout rate."""
        value = self.get(name, default)
        if isinstance(value, (int, float)) and 0.0 <= value < 1.0:
            return float(value)
        self.faults.append(
            f"`{option_name(name)} {str(value)[:100]}` is not a rate from 0 to below 1."
        )
        return default

    def refuse(self, name: str, why: str) -> None:
        """Add a fault that names the option and its value."""
        value = self.get(name, "")
        option = option_name(name)
        typed = option if value is True or value == "" else f"{option} {value}"
        self.faults.append(f"`{typed[:100]}`: {why}")

    def must_be_off(self, names: Mapping[str, str]) -> None:
        """Refuse each of the switches (or amounts) that is on, with the reason given for it."""
        for name, why in names.items():
            if self.is_set(name):
                self.refuse(name, why)

    def must_be(self, name: str, value: Any, why: str) -> None:
        """Refuse the option unless it is `value` or left out."""
        if self.get(name, value) != value:
            self.refuse(name, why)

    def must_agree(self, first: str, second: str, why: str) -> None:
        """Refuse two options with different values."""
        # A switch that is missing on one side equals one that is off on the other.
        if self.get(first, False) != self.get(second, False):
            self.faults.append(
                f"`{option_name(first)}` is {str(self.get(first))[:100]}, "
                f"`{option_name(second)}` {str(self.get(second))[:100]}: {why}"
            )

    def listed(self, name: str) -> list[Any]:
        """Return the list that an option's text denotes, such as `[(256, 3)] * 4`."""
        text = self.get(name)
        if not isinstance(text, str):
            return list(text) if isinstance(text, (list, tuple)) else []
        try:
            # fairseq evaluates this text; here it is only parsed, up to a limited length.
            if len(text) > _LONGEST:
                raise ValueError
            value = _value(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            self.refuse(name, "this is not a readable list of numbers.")
            return []
        return list(value) if isinstance(value, (list, tuple)) else [value]


def option_name(name: str) -> str:
    """Return an option as it is typed on the command line."""
    return "--" + name.replace("_", "-")


def read_options(checkpoint: Checkpoint) -> Options:
    """Return the options in a checkpoint: older ones keep `args`, newer ones a table `cfg`.

    Raises ModelError if there are none that can be read.
    """
    args, table = (checkpoint.content.get(name) for name in ("args", "cfg"))
    if isinstance(args, Namespace):
        return Options(args.values)
    if isinstance(table, Namespace):
        table = table.values
    if isinstance(table, dict):
        values: dict[str, Any] = {}
        # Later groups win, and only the model's `_name` is that of the architecture.
        for name in _GROUPS:
            group = table.get(name)
            group = group.values if isinstance(group, Namespace) else group
            if isinstance(group, dict):
                values |= _flatten(group)
                if name != "model":
                    values.pop("_name", None)
                if name == "criterion" and "_name" in group:
                    values["criterion"] = group["_name"]
        return Options(values)
    kind = next((value.name for value in (args, table) if isinstance(value, Inert)), "nothing")
    raise ModelError(
        f"{checkpoint.path} has no readable options (`args` or `cfg`; there is {kind[:80]}).",
        "Load and save it once with a version of fairseq that stores `cfg` as plain values.",
    )


def _is_plain(value: Any, longest: int = _LONGEST) -> bool:
    """Return whether a value is a number, a short text, or a short list of these or of lists."""
    if isinstance(value, (list, tuple)):
        # Inner lists must be ever shorter, which limits the nesting whatever a list contains.
        return len(value) <= longest and all(_is_plain(item, longest // 100) for item in value)
    if isinstance(value, str):
        return len(value) <= _LONGEST
    return value is None or isinstance(value, (bool, int, float))


def _flatten(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those of an encoder, decoder or kind of noise under their long names."""
    values: dict[str, Any] = {}
    for name, value in group.items():
        if name in _PARTS and isinstance(value, dict):
            values |= {f"{name}_{inner}": option for inner, option in value.items()}
        else:
            values[name] = value
    return values


def _value(node: ast.AST) -> Any:
    """Return the value of an expression of numbers, lists, sums and repetitions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, bool)):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_value(item) for item in node.elts]
        return tuple(items) if isinstance(node, ast.Tuple) else items
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _value(node.left), _value(node.right)
        # Bounded before the product is built: `[(1, 1)] * 10**9` must not take memory.
        sizes = [len(side) if isinstance(side, (list, tuple)) else side for side in (left, right)]
        if isinstance(node.op, ast.Mult) and not all(0 <= size <= _LONGEST for size in sizes):
            raise ValueError
        value = left + right if isinstance(node.op, ast.Add) else left * right
        if isinstance(value, (list, tuple)) and len(value) > _LONGEST:
            raise ValueError
        return value
    raise ValueError


class HasShape(Protocol):
    """The facts about a tensor that are known before it is read."""

    @property
    def shape(self) -> Sequence[int]: ...


class CheckpointTensors(Protocol):
    """An open file of weights, with fairseq's names of tensors."""

    @property
    def path(self) -> Path: ...
    @property
    def views(self) -> Mapping[str, HasShape]:
        """The tensors by name."""

    @property
    def max_bytes(self) -> int:
        """Maximum memory of a model made from it, as fp32."""

    def load(self, name: str) -> Tensor:
        """Return a tensor as fp32, in its own memory."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How one tensor is computed: `fn` of the other program's tensors `names`."""

    names: tuple[str, ...]
    fn: Callable[..., Tensor]


Recipes = dict[str, Recipe]


@dataclasses.dataclass
class Plan:
    """The plan of a conversion: the configuration, and a recipe for each tensor.

    `copies` are names of the other program's tensors that must equal other ones.
    """

    arch: str
    config: Any
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    """Endings of names of tensors without learned values."""
    recipes: Recipes = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    objective: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """`objective_name` and `objective` as stored by `train`, if reading policies need them."""

    def trained_along(self, k: int) -> None:
        """Record that the model was trained along the wait-k path."""
        # attn2d's default stands for the whole source.
        if k < _READ_ALL:
            self.objective = {"objective_name": "wait-k", "objective": {"k": k}}
            self.notes.append(
                f"trained with wait-{k}, the default of `decode --stream` and `online-eval` (`--k` "
                "changes it)"
            )

    def trained_for_every_k(self, objective_name: str, **objective: int) -> None:
        """Record that the model was trained for many k, from `k` on or for all."""
        self.objective = {"objective_name": objective_name, "objective": objective}
        self.notes.append("trained with wait-k for many k: choose one with `--k`")


def copied(name: str) -> Recipe:
    """Return the recipe of a tensor that is copied unchanged."""
    return Recipe((name,), lambda tensor: tensor)


def computed(fn: Callable[..., Tensor], *names: str) -> Recipe:
    """Return the recipe `fn` of the tensors `names`."""
    return Recipe(names, fn)


def linear(prefix: str, key: str) -> Recipes:
    """Return the recipes of a weight and a bias that are copied unchanged."""
    return {f"{prefix}.{kind}": copied(f"{key}.{kind}") for kind in ("weight", "bias")}


def concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """Return the concatenated rows of all tensors."""
    first = tensors[0]
    if not first.is_meta:
        return torch.cat(list(tensors))
    # On the meta device `torch.cat`, like some others, would load sympy first, for two seconds.
    if any(tensor.shape[1:] != first.shape[1:] for tensor in tensors):
        raise ValueError("their rows differ in size")
    return first.new_empty(sum(map(len, tensors)), *first.shape[1:])


def identity(size: int) -> Tensor:
    """Return an identity matrix (`torch.eye` would load sympy too)."""
    matrix = torch.zeros(size, size)
    matrix.view(-1)[:: size + 1] = 1.0
    return matrix


def unmatched_tensors(plan: Plan, checkpoint: CheckpointTensors) -> list[str]:
    """Return a fault for tensors that the plan lacks or leaves unused, and for unequal copies."""
    names = set(checkpoint.views)
    used = {name for recipe in plan.recipes.values() for name in recipe.names}
    unused = sorted(names - used - set(plan.copies))
    left = [name for name in unused if not name.endswith(plan.ignored)]
    faults = []
    if missing := [name[:80] for name in sorted(used - names)]:
        faults.append(f"The checkpoint lacks {list_names(missing)}, for a model of these options.")
    if left:
        listed = list_names([name[:80] for name in left])
        faults.append(f"The checkpoint has {listed}, which `{plan.arch}` does not have.")
    # Options may claim tying where weights differ: one shared matrix would change the model.
    for copy, original in plan.copies.items():
        if copy in names and original in names:
            views = checkpoint.views[copy], checkpoint.views[original]
            if views[0] != views[1] and (
                views[0].shape != views[1].shape
                or not checkpoint.load(copy).equal(checkpoint.load(original))
            ):
                faults.append(
                    f"`{copy}` and `{original}` should be shared according to the options, but "
                    "differ."
                )
    return faults


def mismatched_shapes(
    plan: Plan, checkpoint: CheckpointTensors, parameters: Mapping[str, Tensor]
) -> list[str]:
    """Return a fault for each tensor that would not have the shape of `parameters`.

    The recipes run on the meta device, which has shapes without values: whatever options and
    shapes a file claims, no memory is taken for it.
    """
    faults: list[str] = []
    for name, recipe in plan.recipes.items():
        sources = " and ".join(f"`{source}`" for source in recipe.names[:3])
        try:
            with torch.device("meta"):
                shapes = [checkpoint.views[source].shape for source in recipe.names]
                tensors = [torch.empty(tuple(shape)) for shape in shapes]
                shape = list(recipe.fn(*tensors).shape)
        except (RuntimeError, IndexError, TypeError, ValueError) as fault:
            faults.append(f"{sources} have shapes that do not fit together ({str(fault)[:80]}).")
            continue
        expected = list(parameters[name].shape)
        if shape != expected:
            faults.append(f"{sources} give {shape}, but the options require {expected}.")
    return faults
