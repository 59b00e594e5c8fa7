"""traces.jsonl: what is written is read again, and what is no trace is refused by its line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from nmtgrid.base.errors import InputError
from nmtgrid.search.api import Hypothesis
from nmtgrid.search.postprocess import Translation
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


def test_the_number_of_blocks_is_kept(tmp_path: Path) -> None:
    """Of a decoder of four blocks, none of which is the last; records of old do not have it."""
    scores = torch.full((2, 4), 0.5)
    best = Hypothesis([7], [-1.0, -1.0], -2.0, -1.0, None, None, [1, 2], scores, 4)
    line = Trace.of(Translation(1, ["a"], [best], ["x"], "x", ["x"])).to_line()
    path = tmp_path / "t.jsonl"
    path.write_text(f"{line}\n")
    (found,) = read_traces(path)
    assert (found.exits, found.num_exits) == ([1, 2], 4)
    values = json.loads(line)
    old = {name: held for name, held in values.items() if name not in ("num_exits", "check")}
    path.write_text(f"{json.dumps(old)}\n")
    assert [trace.num_exits for trace in read_traces(path)] == [None]


def test_shares_have_four_digits() -> None:
    values = json.loads(Trace.of(translation()).to_line())
    assert values["alignment"][0] == [0.1235, 0.8, 0.0765]


def _without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {key: value for key, value in values.items() if key != name}


def _with(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {**values, **changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("source"), "`source` is missing"),
        (_without("score"), "`score` is missing"),
        (_with(line=0), "`line` makes no sense"),
        (_with(line=True), "`line` makes no sense"),
        (_with(target=[1]), "`target` makes no sense"),
        (_with(score="high"), "`score` makes no sense"),
        (_with(score=float("nan")), "`score` makes no sense"),
        (_with(log_probabilities=[-1.0]), "1 numbers where 2 belong"),
        (_with(alignment=[[1.0, 0.0, 0.0]]), "not 2 x 3"),
        (_with(alignment=[[1.0, 0.0], [0.0, 1.0]]), "not 2 x 3"),
        (_with(alignment=[[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]]), "negative"),
        (_with(alignment=[["x"]]), "not a table"),
        (_with(source_end=0), "neither true nor false"),
        (_with(source_end=False), "not 2 x 2"),
        (_with(exits=[1, 3], num_exits=2), "no number of blocks"),
        (_with(exits=[1, 2], num_exits=2.0), "no number of blocks"),
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


def test_what_is_not_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("not json\n")
    with pytest.raises(InputError, match=r"t.jsonl:1: .*not JSON"):
        list(read_traces(path))
    path.write_text("[1]\n")
    with pytest.raises(InputError, match="not an object"):
        list(read_traces(path))
