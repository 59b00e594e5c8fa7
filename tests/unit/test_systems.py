"""Names of systems, and their translations from text and traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from nmtgrid.analysis.systems import named_files, read_systems
from nmtgrid.base.errors import ConfigError, InputError


def _trace(line: int, text: str) -> str:
    return json.dumps({
        "line": line, "source": [], "target": [], "text": text, "log_probabilities": [],
        "log_probability": 0.0, "score": 0.0,
    })  # fmt: skip


def test_names_are_those_of_the_files() -> None:
    found = named_files(["a=x/test.txt", "x/wait.3.traces.jsonl.gz", "newstest.en"])
    assert found == {
        "a": Path("x/test.txt"),
        "wait.3": Path("x/wait.3.traces.jsonl.gz"),
        "newstest.en": Path("newstest.en"),
    }
    assert list(named_files(["one/test.txt", "two/test.txt", "test=three.txt"])) == [
        "one/test", "two/test", "test",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="Two systems are called `a`"):
        named_files(["a=x", "a=y"])
    with pytest.raises(ConfigError, match="Two systems are called `test`"):
        named_files(["one/test.txt", "one/test.jsonl"])


def test_text_and_traces_read_alike(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("eins\n\ndrei\n", encoding="utf-8")
    lines = [_trace(1, "eins"), _trace(2, ""), _trace(3, "drei")]
    (tmp_path / "held.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    files = [str(tmp_path / name) for name in ("plain.txt", "held.jsonl.gz")]
    plain, held = read_systems(files, {tmp_path / "reference": 3})
    assert plain.lines == held.lines == ["eins", "", "drei"]
    assert (plain.name, held.name) == ("plain", "held")


def test_a_missing_trace_and_unlike_lengths_are_told(tmp_path: Path) -> None:
    torn = tmp_path / "torn.jsonl"
    torn.write_text(_trace(1, "a") + "\n" + _trace(3, "c") + "\n")
    with pytest.raises(InputError, match="trace of line 3 stands where that of line 2"):
        read_systems([str(torn)])
    for name, count in (("two", 2), ("three", 3)):
        (tmp_path / name).write_text("x\n" * count)
    with pytest.raises(InputError, match=r"it has 3 lines, but .*two has 2"):
        read_systems([str(tmp_path / "two"), str(tmp_path / "three")])
    with pytest.raises(InputError, match=r"reference:3: it has 4 lines, but .*two has 2"):
        read_systems([str(tmp_path / "two")], {tmp_path / "reference": 4})
