"""Configurations: overrides, faults told at once, and the way to JSON and back."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import pytest

from nmtgrid.base.config import check, describe, from_json, override, to_json
from nmtgrid.base.errors import ConfigError, nearest


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    sizes: tuple[int, ...] = (1, 2)
    kind: Literal["one", "two"] = "one"

    def faults(self) -> list[str]:
        return [] if self.rate >= 0 else [f"`inner.rate` must not be negative, but is {self.rate}."]


@dataclasses.dataclass(frozen=True)
class Outer:
    depth: int = 3
    name: str | None = None
    flag: bool = False
    inner: Inner = Inner()


def test_overrides_are_read_as_their_settings_want_them() -> None:
    changed = override(
        Outer(),
        [
            "depth=5",
            "name=deep",
            "flag=true",
            "inner.rate=1",
            "inner.sizes=[3,4]",
            "inner.kind=two",
        ],
    )
    assert changed == Outer(5, "deep", True, Inner(1.0, (3, 4), "two"))
    assert isinstance(changed.inner.rate, float)
    assert override(changed, ["name=none"]).name is None


@dataclasses.dataclass(frozen=True)
class Empty:
    kind: Literal["none", "some"] = "some"
    size: int | None = 3


def test_none_is_a_choice_where_it_is_one_of_them() -> None:
    assert override(Empty(), ["kind=none", "size=none"]) == Empty("none", None)
    with pytest.raises(ConfigError, match="must be one of"):
        override(Outer(), ["inner.kind=none"])


def test_json_and_back() -> None:
    config = Outer(7, "x", True, Inner(0.5, (9,), "two"))
    assert from_json(Outer, to_json(config)) == config


def test_all_faults_are_told_at_once_with_the_nearest_names() -> None:
    changes = ["detph=5", "inner.rat=1", "flag=7", "inner.kind=tow", "inner=3", "depth", "depth=x"]
    with pytest.raises(ConfigError) as caught:
        override(Outer(), changes)
    faults = "\n".join(caught.value.faults)
    assert len(caught.value.faults) == 7
    assert "`--set detph`" in faults and "Did you mean `depth`?" in faults
    assert "`--set inner.rat`" in faults and "Did you mean `inner.rate`?" in faults
    assert "must be true or false, but is `7`" in faults
    assert "Did you mean `two`?" in faults
    assert "name a setting in it" in faults
    assert "`--set depth` is not of the form name=value" in faults
    assert "must be a whole number, but is `x`" in faults


def test_abbreviations_and_other_groups_are_near() -> None:
    known = ["training.learning_rate", "training.shard", "model.dropout", "batches.max_tokens"]
    assert "`training.learning_rate`" in nearest("training.lr", known)
    assert "`model.dropout`" in nearest("dropout", known)
    assert "`batches.max_tokens`" in nearest("training.max_tokens", known)
    assert "`training.shard`" in nearest("training.shart", known)


def test_values_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="must not be negative, but is -1"):
        override(Outer(), {"inner.rate": -1})
    with pytest.raises(ConfigError, match="must not be negative"):
        check(Outer(inner=Inner(-2.0)))


def test_wrong_names_and_wrong_values_are_told_together() -> None:
    with pytest.raises(ConfigError) as caught:
        override(Outer(), {"inner.rate": -1, "detph": 3, "depth.more": 1})
    assert len(caught.value.faults) == 3


def test_whole_numbers_are_not_booleans_and_numbers_not_texts() -> None:
    for bad in ({"depth": True}, {"depth": 1.5}, {"inner.rate": "fast"}, {"name": 3}):
        with pytest.raises(ConfigError):
            override(Outer(), bad)


def test_endless_numbers_and_missing_settings_are_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Needy:
        size: int
        rate: float = 1.0

    for bad in (math.inf, math.nan, 10**400):
        with pytest.raises(ConfigError, match="must be a finite number"):
            from_json(Inner, {"rate": bad})
    with pytest.raises(ConfigError, match=r"`group\.size` is missing"):
        from_json(Needy, {"rate": 2}, "group.")


def test_describe_lists_every_setting() -> None:
    assert dict(describe(Outer))["inner.kind"] == "one | two"
    assert [name for name, _ in describe(Outer)] == [
        "depth", "name", "flag", "inner.rate", "inner.sizes", "inner.kind",
    ]  # fmt: skip
