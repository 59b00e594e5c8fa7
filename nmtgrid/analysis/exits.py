"""Where tokens left a decoder of many exits: how it depends on place, confidence and length.

Figures 5.9 to 5.13, from traces of `nmtgrid decode --exit ... --traces FILE`. The end symbol is a
token here: it has an exit too, and is written at the end of every hypothesis.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.systems import check_lengths
from nmtgrid.base.errors import InputError
from nmtgrid.search.traces import Trace, read_traces

Floats = NDArray[numpy.float64]
Counts = NDArray[numpy.int64]

BEGINNING, NEAR_END = 0.1, 0.9
"""Relative positions before and behind which are the beginning and the end of a hypothesis."""
CONFIDENCE_BINS = 10
_ADVICE = (
    "Run `nmtgrid decode MODEL --exit NAME|N|auto --traces FILE` with a model that has exits "
    "(`train --set model.exits=tied`)."
)


@dataclasses.dataclass(frozen=True)
class ExitTraces:
    """The exits of one system, token by token [K] and sentence by sentence [L].

    `places` are relative positions: 0 for the first token of a hypothesis and 1 for its end symbol,
    NaN where there is nothing but the end symbol. Confidence is the probability that the model gave
    the token, of a sentence the mean of its tokens'. Source lengths are in units, without the end
    symbol. `examples` are the traces of the lines that were asked for.
    """

    system: str
    num_exits: int
    exits: Counts
    confidence: Floats
    places: Floats
    sentence_exits: Floats
    sentence_confidence: Floats
    source_lengths: Counts
    is_by_sentence: bool
    examples: Sequence[Trace]

    @property
    def average_exit(self) -> float:
        """The mean exit of all tokens."""
        return float(self.exits.mean())

    @property
    def at_beginning(self) -> NDArray[numpy.bool_]:
        """Whether each token stands in the first tenth of its hypothesis."""
        return self.places < BEGINNING

    @property
    def near_end(self) -> NDArray[numpy.bool_]:
        """Whether each token stands in the last tenth of its hypothesis."""
        return self.places > NEAR_END

    def distribution(self, chosen: NDArray[numpy.bool_] | None = None) -> list[float] | None:
        """Return the share of each exit, from 1 on, among the chosen tokens; None for no token."""
        held = self.exits if chosen is None else self.exits[chosen]
        if not len(held):
            return None
        counts = numpy.bincount(held, minlength=self.num_exits + 1)[1:]
        return [float(count) / len(held) for count in counts]


def read_exits(
    named: Mapping[str, Path],
    lines: Sequence[int] = (),
    count: int = 3,
    others: Mapping[Path, int] | None = None,
) -> list[ExitTraces]:
    """Return the exits of all systems; examples are `lines` (from 1), or the first `count`.

    Raises InputError for files of different lengths (also of `others`), without exits, or without
    such a line.
    """
    lengths: dict[Path, int] = {}
    found = []
    for name, path in named.items():
        traces = list(read_traces(path))
        lengths[path] = len(traces)
        found.append(exits_of_traces(name, traces, path, lines, count))
    check_lengths({**lengths, **(others or {})})
    return found


def exits_of_traces(
    name: str, traces: Sequence[Trace], path: Path, lines: Sequence[int] = (), count: int = 3
) -> ExitTraces:
    """Return the exits in the traces of one system, which came from `path`. See `read_exits`."""
    if not traces:
        raise InputError("it is empty.", _ADVICE, path=path)
    held = [trace for trace in traces if trace.log_probabilities]
    if not any(trace.exits for trace in held):
        raise InputError("there are no exits in it.", _ADVICE, path=path)
    for trace in held:
        if trace.exits is None:
            raise InputError(
                "this trace has no exits, though others have.", _ADVICE, path=path, line=trace.line
            )
    exits = [numpy.array(trace.exits, dtype=numpy.int64) for trace in held]
    confidence = [numpy.exp(numpy.array(trace.log_probabilities)) for trace in held]
    blocks = [trace.num_exits for trace in held if trace.num_exits]
    # Traces of old do not tell how many blocks there are.
    blocks += [len(trace.exit_scores[0]) for trace in held if trace.exit_scores]
    return ExitTraces(
        name,
        max([int(one.max()) for one in exits] + blocks),
        numpy.concatenate(exits),
        numpy.concatenate(confidence),
        numpy.concatenate([_places(len(one)) for one in exits]),
        numpy.array([one.mean() for one in exits]),
        numpy.array([one.mean() for one in confidence]),
        numpy.array([len(trace.source) for trace in held], dtype=numpy.int64),
        all(int(one.min()) == int(one.max()) for one in exits),
        _examples(held, path, lines, count),
    )


def _places(length: int) -> Floats:
    if length == 1:
        return numpy.array([math.nan])
    return numpy.arange(length) / (length - 1)


def _examples(traces: Sequence[Trace], path: Path, lines: Sequence[int], count: int) -> list[Trace]:
    if not lines:
        return [trace for trace in traces if trace.target][:count]
    known = {trace.line: trace for trace in traces}
    for line in lines:
        if line not in known:
            raise InputError(f"it has no translation of line {line}.", path=path)
    return [known[line] for line in lines]


def tokens_of(trace: Trace) -> list[tuple[str, int, float]]:
    """Return the tokens of a hypothesis, the end symbol's last, with exits and confidence."""
    assert trace.exits is not None
    confidence = [math.exp(value) for value in trace.log_probabilities]
    return list(zip([*trace.target, "</s>"], trace.exits, confidence, strict=True))


@dataclasses.dataclass(frozen=True)
class Histogram:
    """How many tokens or sentences lie in each cell: `counts` [rows, columns], lowest first.

    Row r holds exits around `rows[r]`, and column c what lies from `edges[c]` up to `edges[c + 1]`,
    that itself excluded but in the last.
    """

    system: str
    rows: Sequence[float]
    edges: Sequence[float]
    counts: Counts

    def values(self) -> dict[str, Any]:
        """Return the cells as JSON."""
        return {
            "exits": list(self.rows), "edges": list(self.edges), "counts": self.counts.tolist(),
        }  # fmt: skip


def token_confidence(one: ExitTraces) -> Histogram:
    """Return tokens by exit and confidence (figure 5.12)."""
    edges = confidence_edges()
    return _histogram(one, one.exits.astype(float), one.confidence, edges, 1.0)


def sentence_confidence(one: ExitTraces, step: float) -> Histogram:
    """Return sentences by exit and mean confidence (figure 5.13b); `step` is between rows."""
    return _histogram(one, one.sentence_exits, one.sentence_confidence, confidence_edges(), step)


def sentence_lengths(one: ExitTraces, step: float, edges: Sequence[float]) -> Histogram:
    """Return sentences by exit and source length (figure 5.13a)."""
    return _histogram(one, one.sentence_exits, one.source_lengths.astype(float), edges, step)


def confidence_edges() -> list[float]:
    """Return the borders of the classes of confidence, from 0 to 1."""
    return [place / CONFIDENCE_BINS for place in range(CONFIDENCE_BINS + 1)]


def length_edges(systems: Iterable[ExitTraces], most: int = 10) -> list[float]:
    """Return borders of at most `most` classes of source lengths, as wide as each other."""
    longest = max(int(one.source_lengths.max()) for one in systems)
    widths = (base * 10**power for power in range(7) for base in (1, 2, 5))
    width = next(width for width in widths if longest < width * most)
    return [float(place * width) for place in range(longest // width + 2)]


def _histogram(
    one: ExitTraces, exits: Floats, values: Floats, edges: Sequence[float], step: float
) -> Histogram:
    """Return the joint histogram; exits go to the nearest row, the higher one of two."""
    rows = [1 + step * place for place in range(round((one.num_exits - 1) / step) + 1)]
    # A hair's breadth, so that a mean such as 2.5 goes up whatever its last digit.
    place = numpy.floor((exits - 1) / step + 0.5 + 1e-9).astype(int)
    column = numpy.searchsorted(numpy.asarray(edges), values, side="right") - 1
    column = numpy.clip(column, 0, len(edges) - 2)
    counts = numpy.zeros((len(rows), len(edges) - 1), dtype=numpy.int64)
    numpy.add.at(counts, (place, column), 1)
    return Histogram(one.system, rows, edges, counts)


def correlation(first: Floats | Counts, second: Floats | Counts) -> float | None:
    """Return Pearson's correlation; None where one of the two never changes."""
    if len(first) < 2 or numpy.ptp(first) < 1e-12 or numpy.ptp(second) < 1e-12:
        return None
    return float(numpy.corrcoef(first, second)[0, 1])
