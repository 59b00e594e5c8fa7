"""Configurations, faults told at once, and tables for people."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest

from nmtgrid.base import console
from nmtgrid.base.config import (
    FROM_1,
    CheckedSettings,
    Range,
    between,
    check,
    describe,
    from_json,
    json_schema,
    override,
    to_json,
)
from nmtgrid.base.errors import ConfigError, listed, nearest


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
    changes = ["depth=5", "name=deep", "flag=true", "inner.rate=1", "inner.sizes=[3,4]"]
    changed = override(Outer(), [*changes, "inner.kind=two"])
    assert changed == Outer(5, "deep", True, Inner(1.0, (3, 4), "two"))
    assert isinstance(changed.inner.rate, float)
    assert override(changed, ["name=none"]).name is None
    # As people write numbers that are none in JSON.
    assert override(Outer(), ["depth=+5", "inner.rate=.5"]) == Outer(5, inner=Inner(0.5))
    assert override(Outer(), ["inner.rate=1.", "name=inf"]) == Outer(3, "inf", inner=Inner(1.0))
    assert override(Empty(), ["kind=none", "size=none"]) == Empty("none", None)
    with pytest.raises(ConfigError, match="must be one of"):
        override(Outer(), ["inner.kind=none"])
    config = Outer(7, "x", True, Inner(0.5, (9,), "two"))
    assert from_json(Outer, to_json(config)) == config
    assert dict(describe(Outer))["inner.kind"] == "one | two"
    names = ["depth", "name", "flag", "inner.rate", "inner.sizes", "inner.kind"]
    assert [name for name, _ in describe(Outer)] == names


@dataclasses.dataclass(frozen=True)
class Empty:
    kind: Literal["none", "some"] = "some"
    size: int | None = 3


def test_all_faults_are_told_at_once_with_the_nearest_names() -> None:
    changes = ["detph=5", "inner.rat=1", "flag=7", "inner.kind=tow", "inner=3", "depth", "depth=x"]
    with pytest.raises(ConfigError) as caught:
        override(Outer(), changes)
    faults = "\n".join(caught.value.faults)
    assert len(caught.value.faults) == 7
    assert "`--set detph`" in faults and "Did you mean `depth`?" in faults
    assert "`--set inner.rat`" in faults and "Did you mean `inner.rate`?" in faults
    assert "must be true or false, but is `7`" in faults and "Did you mean `two`?" in faults
    assert "name a setting in it" in faults
    assert "`--set depth` is not of the form name=value" in faults
    assert "must be a whole number, but is `x`" in faults
    with pytest.raises(ConfigError, match=r'but is `"0\.1"`, a text: leave out the quotation'):
        from_json(Outer, {"inner": {"rate": "0.1"}})
    with pytest.raises(ConfigError, match=r'but is `"true"`, a text: leave out the quotation'):
        from_json(Outer, {"flag": "true"})
    known = ["training.learning_rate", "training.shard", "model.dropout", "batches.max_tokens"]
    assert "`training.learning_rate`" in nearest("training.lr", known)
    assert "`model.dropout`" in nearest("dropout", known)
    assert "`batches.max_tokens`" in nearest("training.max_tokens", known)
    assert "`training.shard`" in nearest("training.shart", known)


def test_long_lists_say_how_many_names_they_leave_out() -> None:
    assert listed([7, 8, 9], 3) == "7, 8, 9"
    assert listed(range(1, 1237), 2, "; ") == "1; 2 and 1,234 more"
    names = "abcdefghijklmnopq"
    assert nearest("zzzz", names[:15]).endswith(", `o`.")
    assert nearest("zzzz", names).endswith(", `o` and 2 more.")


def test_values_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="must not be negative, but is -1"):
        override(Outer(), {"inner.rate": -1})
    with pytest.raises(ConfigError, match="must not be negative"):
        check(Outer(inner=Inner(-2.0)))
    with pytest.raises(ConfigError) as caught:
        override(Outer(), {"inner.rate": -1, "detph": 3, "depth.more": 1})
    assert len(caught.value.faults) == 3
    for bad in ({"depth": True}, {"depth": 1.5}, {"inner.rate": "fast"}, {"name": 3}):
        with pytest.raises(ConfigError):
            override(Outer(), bad)


@dataclasses.dataclass(frozen=True)
class Sized(CheckedSettings):
    group = "sized"

    size: Annotated[int | None, FROM_1] = None
    share: Annotated[float, between(0.5, 1_000)] = 1.0
    other: Annotated[int, "no range"] = 0


@dataclasses.dataclass(frozen=True)
class SizedMore(Sized):
    depth: Annotated[int, Range("even", lambda n: n % 2 == 0, lambda n: f": take {n + 1}")] = 2

    def called(self, name: str) -> str:
        return f"{super().called(name)} (`--{name}`)"


def test_ranges_of_types_are_checked_at_once() -> None:
    assert Sized().faults() == SizedMore(share=0.5).faults() == SizedMore(share=1000).faults() == []
    assert Sized(size=0).faults() == ["`sized.size` must be at least 1, but is 0."]
    assert SizedMore(0, math.nan, -1, 3).faults() == [
        "`sized.size` (`--size`) must be at least 1, but is 0.",
        "`sized.share` (`--share`) must be from 0.5 to 1,000, but is nan.",
        "`sized.depth` (`--depth`) must be even, but is 3: take 4.",
    ]
    with pytest.raises(ConfigError, match=r"must be from 0\.5 to 1,000, but is 0\.4"):
        override(SizedMore(), ["share=0.4"])
    assert override(SizedMore(), ["size=none", "depth=4"]) == SizedMore(depth=4)
    assert describe(Sized)[:2] == [("size", "a whole number or none"), ("share", "a number")]
    assert json_schema(Sized)["properties"]["share"]["type"] == "number"


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


TITLE = "runs/[b]old[/b]: " + "a title longer than its table, " * 4 + "in whole"


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """Words of corpora such as `[Applause]`, and folders: rich would swallow or refuse them."""
    console.table("[/u] of [red]", ["word[s]", "[b]"], [["[Applause]", 1.5], ["[/music]", 2]])
    shown = capsys.readouterr().err
    for part in ("[/u] of [red]", "word[s]", "[b]", "[Applause]", "1.50", "[/music]"):
        assert part in shown


@pytest.mark.parametrize("width", [None, "60"])
def test_titles_are_whole_lines(project: Path, width: str | None) -> None:
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    env |= {"PYTHONPATH": str(project)} | ({} if width is None else {"COLUMNS": width})
    code = f"from nmtgrid.base import console; console.table({TITLE!r}, ['a', 'b'], [['x', 1]])"
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.returncode == 0 and run.stderr.splitlines()[0] == TITLE


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_standard_error_may_be_closed(project: Path, tmp_path: Path, closed: str) -> None:
    """A progress bar asks whether it is a terminal; the work is done all the same."""
    command = f"{sys.executable} -m nmtgrid preprocess --toy 5 --out {tmp_path / 'data'} {closed}"
    env = {**os.environ, "PYTHONPATH": str(project)}
    run = subprocess.run(["sh", "-c", command], env=env, stdout=subprocess.PIPE)
    assert run.returncode == 0 and (tmp_path / "data" / "manifest.json").is_file()
