"""`traces.jsonl`: one JSON object for each translated line, read by metrics, plots and tuning.

    {"line": 1, "source": [units], "target": [units], "text": "...", "log_probabilities": [T + 1],
     "log_probability": -1.5, "score": -0.3, "kind": "weights", "alignment": [[S + 1] x (T + 1)],
     "reads": [T + 1], "exits": [T + 1], "exit_scores": [[N] x (T + 1)], "num_exits": N}

The last log-probability and the last row and column of the alignment are the end symbols'. Its
numbers are shares ("weights"), or what each source unit adds to the score ("energies"). An empty
line has empty lists and no alignment; a run without alignments has none anywhere. `reads`, of
online decoding alone, are how many source units had been read when each unit was written, the end
symbols counted on both sides. `exits`, of early exit alone, are the blocks behind which each unit
was predicted, `exit_scores` what was decided from there: chi, or the largest probability, null
where a block did not run or was not scored, and `num_exits` how many blocks there are.
`source_end` is there, and false, where sources are pictures: these have no end symbol, and the
alignment has no column of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.checksums import (
    LINE_CHECKSUM,
    altered_advice,
    is_altered_line,
    with_line_checksum,
)
from nmtgrid.base.io.text import read_lines
from nmtgrid.search.postprocess import Translation

_SHARE_DIGITS, _LOG_DIGITS, _SCORE_DIGITS = 4, 6, 6


@dataclasses.dataclass(frozen=True)
class Trace:
    """The best translation of one line: units of both sides, natural logs, score, alignment.

    `alignment` [T + 1, S + 1] has the end symbols last, or is None; `reads`, `exits` (T + 1) and
    `exit_scores` [T + 1, N], None where there is none, likewise; `num_exits` is N. Where there is
    no `source_end`, with pictures, `alignment` is [T + 1, S].
    """

    line: int
    source: list[str]
    target: list[str]
    text: str
    log_probabilities: list[float]
    log_probability: float
    score: float
    alignment: NDArray[numpy.float32] | None = None
    kind: str = "weights"
    reads: list[int] | None = None
    exits: list[int] | None = None
    exit_scores: list[list[float | None]] | None = None
    num_exits: int | None = None
    source_end: bool = True

    @classmethod
    def of(cls, translation: Translation) -> Trace:
        """Return the record of a translation's best hypothesis."""
        if not translation.hypotheses:
            return cls(translation.line, [], [], "", [], 0.0, 0.0)
        best = translation.hypotheses[0]
        shares, source = None, translation.source
        if best.alignment is not None:
            shares = best.alignment.float().numpy()
            # A source that was cut for its length has more units than the alignment has columns.
            source = source[: shares.shape[1] - translation.source_end]
        return cls(
            translation.line,
            source,
            translation.target,
            translation.text,
            best.log_probabilities,
            best.log_probability,
            best.score,
            shares,
            reads=best.reads,
            exits=best.exits,
            exit_scores=rounded_exit_scores(best.exit_scores),
            num_exits=best.num_exits,
            source_end=translation.source_end,
        )

    def to_line(self) -> str:
        """Return the record as one line of JSON, numbers rounded."""
        # Rounded, since digits that no reader uses are most of the file.
        values = dataclasses.asdict(self)
        values["log_probabilities"] = [round(v, _LOG_DIGITS) for v in self.log_probabilities]
        values["log_probability"] = round(self.log_probability, _LOG_DIGITS)
        values["score"] = round(self.score, _LOG_DIGITS)
        # Last in the line, where it does not hide the rest.
        del values["alignment"]
        for name in ("reads", "exits", "exit_scores", "num_exits"):
            if values[name] is None:
                del values[name]
        if self.source_end:
            del values["source_end"]
        if self.alignment is not None:
            rows = self.alignment.astype(float).tolist()
            values["alignment"] = [[round(v, _SHARE_DIGITS) for v in row] for row in rows]
        return json.dumps(with_line_checksum(values), ensure_ascii=False)


def read_traces(path: str | Path) -> Iterator[Trace]:
    """Yield the records of a traces file.

    Raises InputError with the line number for what is not such a record.
    """
    names = [field.name for field in dataclasses.fields(Trace)]
    for number, text in enumerate(read_lines(path), start=1):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as fault:  # also numbers of thousands of digits
            why = getattr(fault, "msg", "too long a number or too deep a table")
            problem = f"it is not JSON ({why})"
        else:
            problem = _problem(values)
        if problem:
            raise InputError(
                f"this is not a trace: {problem}.",
                "Traces are written by `nmtgrid decode --traces FILE`.",
                path=path, line=number,
            )  # fmt: skip
        # Lines stand alone here, unlike those of metrics.jsonl: any part of a file will do.
        if LINE_CHECKSUM in values and is_altered_line(values):
            raise InputError(
                "this line has been altered (its checksum differs).", altered_advice(LINE_CHECKSUM),
                path=path, line=number,
            )  # fmt: skip
        record = {"text": "", **{name: values[name] for name in names if name in values}}
        for name in ("log_probability", "score"):
            record[name] = float(record[name])
        record["log_probabilities"] = [float(value) for value in record["log_probabilities"]]
        if record.get("alignment") is not None:
            record["alignment"] = numpy.array(record["alignment"], dtype=numpy.float32)
        yield Trace(**record)


def rounded_exit_scores(scores: Tensor | None) -> list[list[float | None]] | None:
    """Return scores [T + 1, N] rounded, None where nothing was computed (NaN)."""
    if scores is None:
        return None
    return [
        [None if math.isnan(value) else round(value, _SCORE_DIGITS) for value in row]
        for row in scores.tolist()
    ]


def _problem(values: Any) -> str:
    """Return what is wrong with a record, or nothing."""
    if not isinstance(values, dict):
        return "it is not an object"
    checks = {
        "line": lambda v: isinstance(v, int) and not isinstance(v, bool) and v > 0,
        "source": _are_texts,
        "target": _are_texts,
        "log_probabilities": _are_numbers,
        "log_probability": _is_number,
        "score": _is_number,
    }
    for name, fits in checks.items():
        if name not in values:
            return f"`{name}` is missing"
        if not fits(values[name]):
            return f"`{name}` makes no sense"
    height, width = len(values["target"]) + 1, len(values["source"]) + 1
    count = len(values["log_probabilities"])
    is_empty = not values["source"] and not values["target"] and count == 0
    # An empty line was not translated: it has not even an end symbol.
    if count != height and not is_empty:
        return f"`log_probabilities` has {count} numbers where {height} belong"
    kind = values.get("kind", "weights")
    if kind not in ("weights", "energies"):
        return f"`kind` is neither weights nor energies, but {kind!r}"
    reads = values.get("reads")
    if reads is not None and not (_are_integers(reads, count) and _never_falls([1, *reads, width])):
        return f"`reads` is not {count} whole numbers from 1 to {width} that never fall"
    has_end = values.get("source_end", True)
    if not isinstance(has_end, bool):
        return "`source_end` is neither true nor false"
    return _exits_problem(values, count) or _alignment_problem(
        values.get("alignment"), height, len(values["source"]) + has_end, kind
    )


def _exits_problem(values: dict[str, Any], count: int) -> str:
    exits, scores, blocks = (values.get(name) for name in ("exits", "exit_scores", "num_exits"))
    if exits is not None and not (_are_integers(exits, count) and min(exits, default=1) > 0):
        return f"`exits` is not {count} whole numbers from 1 on"
    if blocks is not None and (type(blocks) is not int or blocks < max(exits or [1])):
        return "`num_exits` is no number of blocks with these exits"
    if scores is None:
        return ""
    if exits is None or not isinstance(scores, list) or len(scores) != count:
        return f"`exit_scores` are not those of {count} exits"
    if not all(isinstance(r, list) and len(r) == (blocks or len(scores[0])) for r in scores):
        return "`exit_scores` is not a table"
    if not all(v is None or (_is_number(v) and 0 <= v <= 1) for row in scores for v in row):
        return "`exit_scores` are not probabilities"
    return ""


def _alignment_problem(alignment: Any, height: int, width: int, kind: str) -> str:
    if alignment is None:
        return ""
    if not isinstance(alignment, list) or not all(map(_are_numbers, alignment)):
        return "`alignment` is not a table of numbers"
    if len(alignment) != height or any(len(row) != width for row in alignment):
        return f"`alignment` is not {height} x {width} (units and end symbols)"
    if kind == "weights" and any(value < 0 for row in alignment for value in row):
        return "`alignment` has negative shares"
    return ""


def _is_number(value: Any) -> bool:
    # Of Python's types a bool is a whole number too.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_number, values))


def _are_integers(values: Any, count: int) -> bool:
    is_list = isinstance(values, list) and len(values) == count
    return is_list and all(type(value) is int for value in values)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _never_falls(values: list[int]) -> bool:
    return all(before <= after for before, after in itertools.pairwise(values))
