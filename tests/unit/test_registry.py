"""Tables of things that have names."""

from __future__ import annotations

import pytest

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.registry import Registry


def test_the_order_is_that_of_the_names() -> None:
    """What is listed, and the references, cannot hang on which module was imported first."""
    things: Registry[int] = Registry("thing")
    for number, name in enumerate(("middle", "last", "first")):
        things.add(name, number)
    assert list(things) == ["first", "last", "middle"]
    assert [things.get(name) for name in things] == [2, 1, 0]


def test_a_name_is_given_once_and_unknown_ones_are_told() -> None:
    things: Registry[int] = Registry("thing")
    things.add("pervasive", 1)
    with pytest.raises(ValueError, match="thing 'pervasive' is registered twice"):
        things.add("pervasive", 2)
    assert "pervasive" in things and "pervasve" not in things and things.get("pervasive") == 1
    with pytest.raises(ConfigError, match="There is no thing `pervasve`") as told:
        things.get("pervasve")
    assert "`pervasive`" in str(told.value)
