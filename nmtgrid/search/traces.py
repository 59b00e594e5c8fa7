"""`traces.jsonl`: one JSON object for each translated line, read by metrics, plots and tuning.

    {"line": 1, "source": [units], "target": [units], "text": "...", "log_probabilities": [T + 1],
     "log_probability": -1.5, "score": -0.3, "kind": "weights", "alignment": [[S + 1] x (T + 1)],
     "reads": [T + 1], "exits": [T + 1], "exit_scores": [[N] x (T + 1)], "num_exits": N}

The last log-probability and the last row and column of the alignment are those of the end symbols.
The alignment has shares ("weights"), or the contributions of source units to the score
("energies"). An empty line has empty lists and no alignment; a run without alignments has none
anywhere. `reads` (online decoding only) are the numbers of source units that had been read when
each unit was written, with end symbols on both sides. `exits` (early exit only) are the blocks
after which each unit was predicted, `exit_scores` the values that decisions were based on: chi, or
the largest probability, null if a block did not run or was not scored; `num_exits` is the number of
blocks. `source_end` is present, and false, only if sources are pictures: these have no end symbol,
and the alignment has no column for it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nmtgrid.base.config import from_attributes
from nmtgrid.base.io.atomic import with_line_checksum
from nmtgrid.base.io.records import (
    Finite,
    LogProbability,
    Matrix,
    Positive,
    Probability,
    Small,
    parse_record,
)
from nmtgrid.base.io.text import read_lines

if TYPE_CHECKING:  # analyses of traces and text do not import torch
    from torch import Tensor

    from nmtgrid.search.api import Translation

_SHARE_DIGITS, _LOG_DIGITS, _SCORE_DIGITS = 4, 6, 6
# Shares are sums, which bfloat16 rounds.
_LARGEST_SHARE = 1.01


@dataclasses.dataclass(frozen=True)
class Trace:
    """The best translation of one line: units of both sides, natural logs, score, alignment.

    `alignment` [T + 1, S + 1], `reads`, `exits` (T + 1) and `exit_scores` [T + 1, N], with None for
    missing scores, have the end symbols last, or are None; `num_exits` is N. Without `source_end`
    (pictures), `alignment` is [T + 1, S]. With `verified` exits, `exits` are the draft exit for
    accepted drafts and the last exit for other units, whichever blocks ran.
    """

    line: Positive
    source: list[str]
    target: list[str]
    text: str
    log_probabilities: list[LogProbability]
    log_probability: LogProbability
    score: Finite
    alignment: Matrix | None = None
    kind: Literal["weights", "energies"] = "weights"
    reads: list[Positive] | None = None
    exits: list[Small] | None = None
    exit_scores: list[list[Probability | None]] | None = None
    num_exits: Small | None = None
    source_end: bool = True
    verified: bool = False

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
            verified=best.passes is not None,
        )

    def to_line(self) -> str:
        """Return the record as one line of JSON, numbers rounded."""
        # Rounded, because digits that no reader uses would be most of the file.
        values = dict(vars(self))
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
        if not self.verified:
            del values["verified"]
        if self.alignment is not None:
            rows = self.alignment.astype(float).tolist()
            values["alignment"] = [[round(v, _SHARE_DIGITS) for v in row] for row in rows]
        return json.dumps(with_line_checksum(values), ensure_ascii=False)


@dataclasses.dataclass(frozen=True)
class _Line(Trace):
    """A record read from a file, checked; those of other programs may lack the text."""

    text: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        """Raise ValueError if fields are inconsistent."""
        count, height = len(self.log_probabilities), len(self.target) + 1
        # An empty line was not translated: it has not even an end symbol.
        if count != height and (self.source or self.target or count):
            raise ValueError(f"`log_probabilities` has {count} numbers where {height} belong")
        self._check_positions(count)
        width = len(self.source) + self.source_end
        if self.alignment is None:
            return
        if self.alignment.shape != (height, width):
            raise ValueError(f"`alignment` is not {height} x {width} (units and end symbols)")
        is_share = (self.alignment >= 0) & (self.alignment <= _LARGEST_SHARE)
        if self.kind == "weights" and not is_share.all():
            raise ValueError("`alignment` has shares below 0 or above 1")

    def _check_positions(self, count: int) -> None:
        """Raise ValueError unless the reads and exits of `count` units are valid."""
        width = len(self.source) + 1
        reads, exits, scores = self.reads, self.exits, self.exit_scores
        if reads is not None and (
            len(reads) != count or reads != sorted(reads) or max(reads, default=1) > width
        ):
            raise ValueError(
                f"`reads` is not {count} whole numbers from 1 to {width} that never decrease"
            )
        if exits is not None and len(exits) != count:
            raise ValueError(f"`exits` is not {count} whole numbers from 1 on")
        if self.num_exits is not None and self.num_exits < max(exits or [1]):
            raise ValueError("`num_exits` is less than the largest of the exits")
        if scores is None:
            return
        if exits is None or len(scores) != count:
            raise ValueError(f"`exit_scores` are not those of {count} exits")
        if any(len(row) != (self.num_exits or len(scores[0])) for row in scores):
            raise ValueError("`exit_scores` is not a table")


def read_traces(path: str | Path) -> Iterator[Trace]:
    """Yield the records of a traces file.

    Raises InputError with the line number for invalid records.
    """
    advice = "Traces are written by `nmtgrid decode --traces FILE`."
    # Lines are independent here, unlike those of metrics.jsonl: any part of a file is valid.
    for number, text in enumerate(read_lines(path), start=1):
        record = parse_record(text, _Line, path, number, name="a trace", advice=advice)
        # By name: msgspec leaves a default in the class, so `vars` may lack it.
        yield from_attributes(Trace, record)


def rounded_exit_scores(scores: Tensor | None) -> list[list[float | None]] | None:
    """Return scores [T + 1, N] rounded, with None for those that were not computed (NaN)."""
    if scores is None:
        return None
    return [
        [None if math.isnan(value) else round(value, _SCORE_DIGITS) for value in row]
        for row in scores.tolist()
    ]
