"""Tables of things that have names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from nmtgrid.base.errors import ConfigError, nearest

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Things under names; an unknown name is answered with the nearest known one.

    They come in the order of their names, whichever of them was entered first: that hangs on which
    module was imported first.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, Thing] = {}

    def add(self, name: str, thing: Thing) -> Thing:
        """Enter `thing` under `name`."""
        if name in self._things:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._things[name] = thing
        return thing

    def get(self, name: str) -> Thing:
        """Return the thing under `name`. Raises ConfigError naming the nearest known name."""
        if name not in self._things:
            raise ConfigError(f"There is no {self.kind} `{name}`.", nearest(name, self._things))
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._things))

    def __contains__(self, name: object) -> bool:
        return name in self._things
