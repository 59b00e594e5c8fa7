"""What an import is made of: our settings, and a recipe for each of our tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from nmtgrid.convert.from_fairseq.checkpoint import Checkpoint


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


def same(name: str) -> Recipe:
    """Return the recipe of a tensor that is theirs as it stands."""
    return Recipe((name,), lambda tensor: tensor)


def of(make: Callable[..., Tensor], *names: str) -> Recipe:
    """Return the recipe `make` of the tensors `names`."""
    return Recipe(names, make)


def affine(ours: str, theirs: str) -> Recipes:
    """Return the recipes of a weight and a bias that are theirs as they stand."""
    return {f"{ours}.{part}": same(f"{theirs}.{part}") for part in ("weight", "bias")}


def faults_of(plan: Plan, checkpoint: Checkpoint) -> list[str]:
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


def cook(
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
