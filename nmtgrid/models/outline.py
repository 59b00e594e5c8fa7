"""Models of shapes alone, to hold what a stranger's settings ask for against what is there.

A model of many gigabytes is asked for in a hundred bytes. Built on torch's `meta` device it takes
no memory; initial values are not drawn either, for torch would load its compiler to draw them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

Made = TypeVar("Made")


class _Undrawn(TorchFunctionMode):
    """Lets functions that change a tensor in place, or measure it, return it as it is."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "norm" or (name.endswith("_") and not name.endswith("__")):
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def outline(make: Callable[[], Made]) -> Made:
    """Return what `make` builds, its tensors being shapes without values."""
    with torch.device("meta"), _Undrawn():
        return make()
