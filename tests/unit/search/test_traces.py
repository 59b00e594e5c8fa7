"""traces.jsonl, read again or refused by its line; names and translations of systems."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from nmtgrid.analysis.systems import named_files, read_systems
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.search.api import Hypothesis, Translation
from nmtgrid.search.traces import Trace, read_traces


def translation() -> Translation:
    shares = torch.tensor([[0.123456, 0.8, 0.076544], [0.0, 0.25, 0.75]])
    best = Hypothesis([7], [-0.5, -0.125], -0.625, -0.3125, shares)
    return Translation(12, ["a@@", "b"], [best], ["X\u2028y"], "X\u2028y", ["X\u2028y"])


def test_a_record_survives_the_file(tmp_path: Path) -> None:
    empty = Trace.of(Translation(13, [], [], [], "", []))
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f"{t.to_line()}\n" for t in (Trace.of(translation()), empty)))
    first, second = read_traces(path)
    assert (first.line, first.source, first.target) == (12, ["a@@", "b"], ["X\u2028y"])
    assert first.log_probabilities == [-0.5, -0.125]
    assert (first.log_probability, first.score, first.text) == (-0.625, -0.3125, "X\u2028y")
    assert first.alignment is not None
    expected = [[0.1235, 0.8, 0.0765], [0.0, 0.25, 0.75]]
    assert numpy.allclose(first.alignment, expected, atol=1e-7)
    assert second == empty
    assert second.alignment is None
    values = json.loads(Trace.of(translation()).to_line())
    assert values["alignment"][0] == [0.1235, 0.8, 0.0765], "shares have four digits"


def test_the_number_of_blocks_is_kept(tmp_path: Path) -> None:
    """Of a decoder of four blocks, none of which is the last; records of old do not have it."""
    scores = torch.full((2, 4), 0.5)
    best = Hypothesis([7], [-1.0, -1.0], -2.0, -1.0, None, None, [1, 2], scores, 4)
    line = Trace.of(Translation(1, ["a"], [best], ["x"], "x", ["x"])).to_line()
    path = tmp_path / "t.jsonl"
    path.write_text(f"{line}\n")
    (trace,) = read_traces(path)
    assert (trace.exits, trace.num_exits) == ([1, 2], 4)
    values = json.loads(line)
    old = {name: value for name, value in values.items() if name not in ("num_exits", "check")}
    path.write_text(f"{json.dumps(old)}\n")
    assert [trace.num_exits for trace in read_traces(path)] == [None]


def test_fields_that_records_of_others_lack(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    values = json.loads(Trace.of(translation()).to_line())
    del values["check"]
    for name, default in {"text": "", "alignment": None, "kind": "weights"}.items():
        path.write_text(json.dumps({key: v for key, v in values.items() if key != name}))
        (trace,) = read_traces(path)
        assert getattr(trace, name) == default
        assert (trace.line, trace.log_probability) == (12, -0.625)


def _without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {key: value for key, value in values.items() if key != name}


def _with(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {**values, **changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("source"), "`source` is missing"),
        (_without("score"), "`score` is missing"),
        (_with(line=0), "`line` must be at least 1, but is `0`"),
        (_with(line=True), "`line` must be a whole number, but is `true`"),
        (_with(target=[1]), r"`target\[0\]` must be text, but is `1`"),
        (_with(score="high"), "`score` must be a number"),
        (_with(score=float("nan")), "`score` must be a number, but is `NaN`"),
        (_with(log_probabilities=[-1.0]), "1 numbers where 2 belong"),
        (_with(alignment=[[1.0, 0.0, 0.0]]), "not 2 x 3"),
        (_with(alignment=[[1.0, 0.0], [0.0, 1.0]]), "not 2 x 3"),
        (_with(alignment=[[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]]), "below 0"),
        (_with(alignment=[["x"]]), "not a table"),
        (_with(source_end=0), "`source_end` must be true or false"),
        (_with(source_end=False), "not 2 x 2"),
        (_with(exits=[1, 3], num_exits=2), "`num_exits` is less than"),
        (_with(exits=[1, 2], num_exits=2.0), "`num_exits` must be a whole number"),
        (_with(exits=[1, 1], num_exits=3, exit_scores=[[0.5, None]] * 2), "not a table"),
    ],
)
def test_faulty_records_are_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    good = Trace.of(translation()).to_line()
    path = tmp_path / "t.jsonl"
    path.write_text(f"{good}\n{json.dumps(change(json.loads(good)))}\n")
    with pytest.raises(InputError, match=f"t.jsonl:2: .*{message}"):
        list(read_traces(path))


@pytest.mark.parametrize(
    ("text", "words"), [("not json", "not JSON"), ("[1]", "must be an object")]
)
def test_what_is_not_json_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"{text}\n")
    with pytest.raises(InputError, match=rf"t.jsonl:1: .*{words}"):
        list(read_traces(path))


def _trace(line: int, text: str) -> str:
    return json.dumps({
        "line": line, "source": [], "target": [], "text": text, "log_probabilities": [],
        "log_probability": 0.0, "score": 0.0,
    })  # fmt: skip


def test_names_are_those_of_the_files() -> None:
    files = named_files(["a=x/test.txt", "x/wait.3.traces.jsonl.gz", "newstest.en"])
    assert files == {
        "a": Path("x/test.txt"),
        "wait.3": Path("x/wait.3.traces.jsonl.gz"),
        "newstest.en": Path("newstest.en"),
    }
    assert list(named_files(["one/test.txt", "two/test.txt", "test=three.txt"])) == [
        "one/test", "two/test", "test",
    ]  # fmt: skip
    # As few folders as tell them apart, of each as many as it takes.
    assert list(named_files(["a/x/out.qb", "b/x/out.qb", "b/y/out.qb", "out.en"])) == [
        "a/x/out.qb", "b/x/out.qb", "y/out.qb", "out.en",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="Two systems have the name `a`"):
        named_files(["a=x", "a=y"])
    again = "`test`: one/test.txt and one/test.jsonl.*another, as in `other=one/test.jsonl`."
    with pytest.raises(ConfigError, match=f"Two systems have the name {again}"):
        named_files(["one/test.txt", "one/test.jsonl"])


def test_the_working_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert list(named_files(["."])) == ["model"]
    assert list(named_files(["out.en", "more/out.en"])) == ["model/out.en", "more/out.en"]


def test_text_and_traces_read_alike(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("eins\n\ndrei\n", encoding="utf-8")
    lines = [_trace(1, "eins"), _trace(2, ""), _trace(3, "drei")]
    (tmp_path / "held.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    files = [str(tmp_path / name) for name in ("plain.txt", "held.jsonl.gz")]
    plain, traced = read_systems(files, {tmp_path / "reference": 3})
    assert plain.lines == traced.lines == ["eins", "", "drei"]
    assert (plain.name, traced.name) == ("plain", "held")


def test_a_missing_trace_and_unlike_lengths_are_told(tmp_path: Path) -> None:
    torn = tmp_path / "torn.jsonl"
    torn.write_text(_trace(1, "a") + "\n" + _trace(3, "c") + "\n")
    with pytest.raises(InputError, match="trace of line 3 is in the place of line 2"):
        read_systems([str(torn)], {})
    for name, count in (("two", 2), ("three", 3)):
        (tmp_path / name).write_text("x\n" * count)
    with pytest.raises(InputError, match=r"it has 3 lines, but .*two has 2"):
        read_systems([str(tmp_path / "two"), str(tmp_path / "three")], {})
    with pytest.raises(InputError, match=r"reference:3: it has 4 lines, but .*two has 2"):
        read_systems([str(tmp_path / "two")], {tmp_path / "reference": 4})
