"""Exits of tokens: how they depend on position, confidence and sentence length.

Figures 5.9 to 5.13, from traces of `nmtgrid decode --exit ... --traces FILE`; `analyze exits` and
the report show the section. The end symbol is a token here: it has an exit too, and is written at
the end of every hypothesis.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.plotting.figure import (
    AXIS,
    COLOURS,
    Axes,
    Patch,
    add_legend,
    colour,
    full_title,
    new_diagrams,
    new_picture,
    shortened,
    text_width,
    wrapped,
)
from nmtgrid.analysis.section import Picture, Section, Table, percent
from nmtgrid.analysis.systems import check_lengths, joined_source, source_mismatches
from nmtgrid.base.errors import InputError
from nmtgrid.search.traces import Trace, read_traces

Floats = NDArray[numpy.float64]
Counts = NDArray[numpy.int64]

BEGINNING, NEAR_END = 0.1, 0.9
"""Relative positions: the beginning of a hypothesis is before the first, the end after the last."""
# Quotients, not sums of tenths: a confidence of 3 / 10 must equal the edge 0.3.
_CONFIDENCE_EDGES = [tenth / 10 for tenth in range(11)]
_ADVICE = (
    "Run `nmtgrid decode MODEL --exit NAME|N|auto --traces FILE` with a model that has exits "
    "(`train --set model.exits=tied`)."
)


@dataclasses.dataclass(frozen=True)
class ExitTraces:
    """The exits of one system, token by token [K] and sentence by sentence [L].

    `positions` are relative: 0 for the first token of a hypothesis and 1 for its end symbol, NaN if
    there is nothing but the end symbol. Confidence is the probability that the model gave the
    token, for a sentence the mean over its tokens. Source lengths are in units, without the end
    symbol. `examples` are the traces of the requested lines. `accepted_drafts` is the share of
    tokens that were drafts and accepted, None without verified exits.
    """

    system: str
    num_exits: int
    exits: Counts
    confidence: Floats
    positions: Floats
    sentence_exits: Floats
    sentence_confidence: Floats
    source_lengths: Counts
    is_by_sentence: bool
    examples: Sequence[Trace]
    accepted_drafts: float | None = None

    @property
    def average_exit(self) -> float:
        return float(self.exits.mean())

    @property
    def at_beginning(self) -> NDArray[numpy.bool_]:
        """Whether each token is in the first tenth of its hypothesis."""
        return self.positions < BEGINNING

    @property
    def near_end(self) -> NDArray[numpy.bool_]:
        """Whether each token is in the last tenth of its hypothesis."""
        return self.positions > NEAR_END

    def distribution(self, mask: NDArray[numpy.bool_] | None = None) -> list[float] | None:
        """Return the share of each exit, from 1 on, among tokens [K]; None for no token."""
        exits = self.exits if mask is None else self.exits[mask]
        if not len(exits):
            return None
        counts = numpy.bincount(exits, minlength=self.num_exits + 1)[1:]
        return [float(count) / len(exits) for count in counts]


def read_exits(
    files: Mapping[str, Path],
    lines: Sequence[int] = (),
    count: int = 3,
    warn: Callable[[str], None] = lambda message: None,
) -> list[ExitTraces]:
    """Return the exits of all systems; examples are `lines` (from 1), or the first `count`.

    `warn` is called for traces with another source than the first, and with verified exits.
    Raises InputError for files of different lengths, without exits, or without such a line.
    """
    traces = {name: list(read_traces(path)) for name, path in files.items()}
    systems = exits_of_systems(files, traces, lines, count, warn)
    check_lengths({path: len(traces[name]) for name, path in files.items()})
    for mismatch in source_mismatches({n: [*map(joined_source, traces[n])] for n in files}):
        warn(mismatch)
    return systems


def exits_of_systems(
    files: Mapping[str, Path],
    traces: Mapping[str, Sequence[Trace]],
    lines: Sequence[int] = (),
    count: int = 3,
    warn: Callable[[str], None] = lambda message: None,
) -> list[ExitTraces]:
    """Return the exits in traces that came from `files`; `warn` is called for verified exits.

    See `read_exits`, which also compares lengths and sources.
    """
    systems = [exits_of_traces(name, traces[name], files[name], lines, count) for name in files]
    for system in systems:
        if system.accepted_drafts is not None:
            warn(
                f"`{system.system}`: with verified exits these averages show how many drafts were "
                "accepted, not how many blocks ran, which `decode --json` reports."
            )
    return systems


def exits_of_traces(
    name: str, traces: Sequence[Trace], path: Path, lines: Sequence[int] = (), count: int = 3
) -> ExitTraces:
    """Return the exits in the traces of one system, which came from `path`. See `read_exits`."""
    if not traces:
        raise InputError("it is empty.", _ADVICE, path=path)
    written = [trace for trace in traces if trace.log_probabilities]
    if not any(trace.exits for trace in written):
        raise InputError("the file contains no exits.", _ADVICE, path=path)
    for trace in written:
        if trace.exits is None:
            raise InputError(
                "this trace has no exits, though others have.", _ADVICE, path=path, line=trace.line
            )
    by_line = {trace.line: trace for trace in written}
    if missing := [line for line in lines if line not in by_line]:
        raise InputError(f"it has no translation of line {missing[0]}.", path=path)
    exits = [numpy.array(trace.exits, dtype=numpy.int64) for trace in written]
    confidence = [numpy.exp(numpy.array(trace.log_probabilities)) for trace in written]
    blocks = [trace.num_exits for trace in written if trace.num_exits]
    # Traces of earlier versions do not say how many blocks there are.
    blocks += [len(trace.exit_scores[0]) for trace in written if trace.exit_scores]
    num_exits = max([int(tokens.max()) for tokens in exits] + blocks)
    return ExitTraces(
        name,
        num_exits,
        numpy.concatenate(exits),
        numpy.concatenate(confidence),
        # An end symbol without other tokens is neither first nor last.
        numpy.concatenate(
            [numpy.arange(n) / (n - 1) if n > 1 else [math.nan] for n in map(len, exits)]
        ),
        numpy.array([tokens.mean() for tokens in exits]),
        numpy.array([tokens.mean() for tokens in confidence]),
        numpy.array([len(trace.source) for trace in written], dtype=numpy.int64),
        all(int(tokens.min()) == int(tokens.max()) for tokens in exits),
        [by_line[line] for line in lines] or [trace for trace in written if trace.target][:count],
        _accepted_drafts(written, num_exits),
    )


def _accepted_drafts(traces: Sequence[Trace], num_exits: int) -> float | None:
    """Return the share of tokens that were drafts and accepted; None without verified exits."""
    verified = [trace for trace in traces if trace.verified]
    if not verified:
        return None
    # Not a share of the drafts: traces only have those accepted at an exit before the last.
    accepted = sum(
        exit < (trace.num_exits or num_exits) for trace in verified for exit in trace.exits or ()
    )
    return accepted / sum(len(trace.exits or ()) for trace in traces)


def tokens_of(trace: Trace) -> list[tuple[str, int, float]]:
    """Return the tokens of a hypothesis, the end symbol last, with exits and confidence."""
    assert trace.exits is not None
    confidence = [math.exp(value) for value in trace.log_probabilities]
    return list(zip([*trace.target, "</s>"], trace.exits, confidence, strict=True))


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Numbers of tokens or sentences in each cell: `counts` [rows, columns], lowest first.

    Row r contains exits around `rows[r]`, and column c values from `edges[c]` to below `edges[c +
    1]`, or up to it in the last column.
    """

    system: str
    rows: Sequence[float]
    edges: Sequence[float]
    counts: Counts

    def values(self) -> dict[str, Any]:
        cells = self.counts.tolist()
        return {"exits": list(self.rows), "edges": list(self.edges), "counts": cells}


def length_edges(systems: Iterable[ExitTraces]) -> list[float]:
    """Return the edges of at most 10 equally wide classes of source lengths."""
    longest = max(int(system.source_lengths.max()) for system in systems)
    widths = (base * 10**power for power in range(7) for base in (1, 2, 5))
    width = next(width for width in widths if longest < 10 * width)
    return [float(border * width) for border in range(longest // width + 2)]


def joint_histograms(
    system: ExitTraces, step: float, edges: Sequence[float]
) -> dict[str, Histogram]:
    """Return the histograms of exits by confidence and source length, by their names in the JSON.

    They are figures 5.12, 5.13b and 5.13a; `step` is the distance between rows of sentences, whose
    mean exits are rarely whole, and `edges` are those of the lengths.
    """
    exits, edges_of_confidence = system.sentence_exits, _CONFIDENCE_EDGES
    return {
        "tokens_by_exit_and_confidence": _histogram(
            system, system.exits, system.confidence, edges_of_confidence, 1.0
        ),
        "sentences_by_exit_and_confidence": _histogram(
            system, exits, system.sentence_confidence, edges_of_confidence, step
        ),
        "sentences_by_exit_and_source_length": _histogram(
            system, exits, system.source_lengths, edges, step
        ),
    }


def _histogram(
    system: ExitTraces,
    exits: Floats | Counts,
    values: Floats | Counts,
    edges: Sequence[float],
    step: float,
) -> Histogram:
    """Return the joint histogram; exits count in the nearest row, on ties in the higher one."""
    rows = [1 + step * row for row in range(round((system.num_exits - 1) / step) + 1)]
    # A tiny offset, so that a mean such as 2.5 is rounded up whatever its last digit.
    row = numpy.floor((exits - 1) / step + 0.5 + 1e-9)
    bins = numpy.arange(len(rows) + 1), numpy.asarray(edges)
    # Rounding may leave a confidence above 1.
    counts, _, _ = numpy.histogram2d(row, numpy.clip(values, edges[0], edges[-1]), bins)
    return Histogram(system.system, rows, edges, counts.astype(numpy.int64))


def correlation(first: Floats | Counts, second: Floats | Counts) -> float | None:
    """Return Pearson's correlation; None if one of the two is constant."""
    # For constant exits the correlation is 0/0.
    if len(first) < 2 or numpy.ptp(first) < 1e-12 or numpy.ptp(second) < 1e-12:
        return None
    return float(numpy.corrcoef(first, second)[0, 1])


# Inches: the examples' page, and its side margins.
_PAGE, _EDGE = 7.6, 0.15
# Font sizes in points: tokens, and the source and the reference.
_TOKEN, _BELOW = 9.5, 8.0
# Inches: a row of tokens with their numbers, a line of text; gaps of sentences, and of tokens.
_ROW, _LINE, _BETWEEN, _SPACE = 0.58, 0.17, 0.22, 0.09


def draw_examples(
    systems: Sequence[ExitTraces], references: Sequence[str] | None, path: Path
) -> None:
    """Draw the examples of all systems into `path`, those of one line below each other."""
    with new_picture(path, _PAGE, 1.0) as figure:
        # Tokens run on like text, for which matplotlib has no layout: coordinates are inches, and
        # the page grows with its content.
        figure.set_layout_engine("none")
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set_autoscale_on(False)
        title = full_title("exit above each token (blue), confidence below (grey)")
        axes.text(_EDGE, _EDGE, title, fontsize=_TOKEN, va="top")
        top = _EDGE + _LINE + _BETWEEN
        for line in dict.fromkeys(trace.line for system in systems for trace in system.examples):
            for system in systems:
                for trace in system.examples:
                    if trace.line == line:
                        name = system.system if len(systems) > 1 else ""
                        top = _write_tokens(axes, trace, name, top)
                        source = " ".join(trace.source)
            captions = [f"Line {line}, source: {source}"]
            if references is not None:
                captions.append(f"Reference: {references[line - 1]}")
            text = "\n".join(wrapped(caption, 108, lines=60) for caption in captions)
            axes.text(_EDGE, top, text, fontsize=_BELOW, va="top")
            top += _LINE * (text.count("\n") + 1) + _BETWEEN
        figure.set_size_inches(_PAGE, top)
        axes.set(xlim=(0.0, _PAGE), ylim=(top, 0.0))


def _write_tokens(axes: Axes, trace: Trace, name: str, top: float) -> float:
    """Write a hypothesis and its name, from `top` on; return where it ends.

    Each token's exit is above it, and its confidence below.
    """
    if name:
        axes.text(_EDGE, top, shortened(name, 70), fontsize=_BELOW, weight="bold", va="top")
        top += _LINE + 0.07
    left = _EDGE
    for token, exit, confidence in tokens_of(trace):
        parts: tuple[tuple[float, str, float, dict[str, Any]], ...] = (
            (0.0, str(exit), 7.5, {"color": COLOURS[0], "weight": "bold"}),
            (0.13, shortened(token, 40), _TOKEN, {}),
            (0.32, f"{confidence:.2f}", 7.5, {"color": AXIS}),
        )
        width = max(text_width(text, size) for _, text, size, _ in parts)
        if left > _EDGE and left + width > _PAGE - _EDGE:
            left, top = _EDGE, top + _ROW
        for below, text, size, look in parts:
            axes.text(left + width / 2, top + below, text, fontsize=size, ha="center", va="top",
                      **look)  # fmt: skip
        left += width + _SPACE
    return top + _ROW


# Colours of letters in cells, whatever the background of the page.
_DARK, _LIGHT = "#08306b", "#fefefe"


def draw_positions(systems: Sequence[ExitTraces], path: Path) -> None:
    """Draw the exits at the beginning and near the end of hypotheses, one diagram per system."""
    most = max(system.num_exits for system in systems)
    # The titles of verified exits are longer.
    least = 2.5 if all(system.accepted_drafts is None for system in systems) else 3.0
    size = max(least, 0.45 * most + 0.4), 2.8
    names, y_label = [system.system for system in systems], "tokens there (percent)"
    with new_diagrams(path, names, size, y_label, sharey=True) as (figure, panels):
        for index, (axes, system) in enumerate(zip(panels, systems, strict=True)):
            tone = colour(index)
            what = f"average exit {system.average_exit:.2f}"
            if system.accepted_drafts is not None:
                # The average would not be that of the blocks that ran.
                what = f"{100 * system.accepted_drafts:.1f} % of tokens: accepted drafts"
            axes.set_title(f"{axes.get_title('left')}\n{what}")
            for side, mask in ((-0.2, system.at_beginning), (0.2, system.near_end)):
                shares = numpy.array(system.distribution(mask) or [0.0] * system.num_exits)
                shown = numpy.flatnonzero(shares)
                axes.bar(
                    shown + 1 + side, 100 * shares[shown], 0.36, edgecolor=tone, linewidth=1.0,
                    facecolor=tone if side < 0 else "none",
                )  # fmt: skip
            axes.set_xticks(range(1, most + 1))
            axes.set_xlim(0.4, most + 0.6)
            axes.grid(axis="y")
            axes.set_xlabel("exit (block)")
        highest = max(axes.dataLim.y1 for axes in panels)
        panels[0].set_ylim(0.0, min(100.0, 1.08 * highest))
        handles = [
            Patch(facecolor=AXIS, edgecolor=AXIS,
                  label="filled: beginning (relative position < 0.1)"),
            Patch(facecolor="none", edgecolor=AXIS,
                  label="outlined: near the end (> 0.9, end symbol counted)"),
        ]  # fmt: skip
        add_legend(figure, handles, "Exits at the beginning and near the end")


def draw_histograms(
    histograms: Sequence[Histogram], path: Path, *, title: str, labels: tuple[str, str]
) -> None:
    """Draw a joint histogram per system, in percent; `title` begins with what is counted."""
    x_label, y_label = labels
    rows = max(map(_used_rows, histograms))
    size = 0.36 * (len(histograms[0].edges) - 1) + 0.7, 0.26 * rows + 1.0
    greatest = max(
        float(histogram.counts.max() / max(histogram.counts.sum(), 1)) for histogram in histograms
    )
    names = [histogram.system for histogram in histograms]
    with new_diagrams(path, names, size, y_label) as (figure, panels):
        for axes, histogram in zip(panels, histograms, strict=True):
            _draw_cells(axes, histogram, greatest)
            axes.set_ylim(-0.5, rows - 0.5)
            axes.set_xlabel(x_label)
        unit = title.partition(" ")[0].lower()
        note = f"percent of all {unit}; an empty cell has none"
        add_legend(figure, [Patch(facecolor="none", label=note)], title)


def _used_rows(histogram: Histogram) -> int:
    """Return the number of rows to show: all whole exits, or finer rows up to the last used."""
    if len(histogram.rows) < 2 or histogram.rows[1] - histogram.rows[0] >= 1:
        return len(histogram.rows)
    return max(4, 1 + int(numpy.flatnonzero(histogram.counts.sum(1))[-1]))


def _draw_cells(axes: Axes, histogram: Histogram, greatest: float) -> None:
    counts, edges = histogram.counts, histogram.edges
    shares = counts / max(int(counts.sum()), 1)
    # By the square root: most cells contain few, and would all be white.
    shown = numpy.ma.masked_where(counts == 0, numpy.sqrt(shares / max(greatest, 1e-9)))
    axes.imshow(shown, cmap="Blues", vmin=0.0, vmax=1.15, origin="lower", aspect="auto")
    for row, column in numpy.argwhere(counts).tolist():
        size = 100 * float(shares[row, column])
        digits = 0 if size >= 9.95 else 1
        axes.text(
            column, row, f"{size:.{digits}f}" if size >= 0.05 else "<.1", ha="center",
            va="center", fontsize=6.5, color=_LIGHT if shown[row, column] > 0.65 else _DARK,
        )  # fmt: skip
    axes.set_yticks(range(len(histogram.rows)), [f"{row:g}" for row in histogram.rows])
    borders = [column - 0.5 for column in range(len(edges))]
    axes.set_xticks(borders, [f"{edge:g}" for edge in edges], fontsize=7)
    axes.set_xticks(borders, minor=True)
    axes.set_yticks([row - 0.5 for row in range(len(histogram.rows) + 1)], minor=True)
    axes.grid(which="minor", linewidth=0.4)
    axes.tick_params(which="minor", length=0)


_TEXT = (
    "A decoder with exits may predict each token from an earlier block than its last. The end "
    "symbol is a token with an exit here. The relative position of a token is 0 for the first of a "
    "hypothesis and 1 for its end symbol; the beginning is before 0.1, the end after 0.9, with the "
    "end symbol. Confidence is the probability that the model gave the token at its exit; "
    "confidence and exit of a sentence are means over its tokens, and its source length is in "
    "units without the end symbol. r is Pearson's correlation. For verified exits (`decode --exit "
    "verified`) the traces contain the drafting exit for each draft that was accepted and the last "
    "exit for other tokens, so their averages show how many were accepted, not how many blocks "
    "ran: `decode --json` and `adaptive-tune` count those. Their figure shows the share of tokens "
    "that are accepted drafts; traces do not tell how many drafts were rejected."
)


def exits_section(
    systems: Sequence[ExitTraces], references: Sequence[str] | None = None
) -> Section:
    """Return statistics of the exits of all systems; references are shown with the examples."""
    # Mean exits are rarely whole; those chosen by sentence always are.
    step = 1.0 if all(system.is_by_sentence for system in systems) else 0.5
    edges, blocks = length_edges(systems), max(system.num_exits for system in systems)
    # One scale for all, even for systems that never reach its end.
    systems = [dataclasses.replace(system, num_exits=blocks) for system in systems]
    joint = [joint_histograms(system, step, edges) for system in systems]
    rows = [_values(*pair, references) for pair in zip(systems, joint, strict=True)]
    columns = {
        "system": "system",
        "tokens": "tokens",
        "all": "average_exit",
        "begin": "average_exit_beginning",
        "end": "average_exit_near_end",
        "confidence": "mean_confidence",
        "r conf.": "correlation_exit_confidence",
        "r length": "correlation_sentence_exit_source_length",
    }
    title = "Average exits (blocks per token); r: with confidence, with the source's length"
    shares = Table(
        "Tokens that leave at each exit (percent)",
        ["system", "tokens", *(f"exit {exit}" for exit in range(1, blocks + 1))],
        [
            [row["system"], name, *map(percent, shares or [None] * blocks)]
            for row in rows
            for name, shares in row["shares"].items()
        ],
        1,
    )
    pictures = _pictures(systems, joint, step, references)
    tables = [Table.of(title, columns, rows), shares]
    name = "Where tokens leave the decoder"
    return Section("exits", name, _TEXT, tables, pictures, {"systems": rows})


def _values(
    system: ExitTraces, joint: Mapping[str, Histogram], references: Sequence[str] | None
) -> dict[str, Any]:
    def mean(mask: NDArray[numpy.bool_]) -> float | None:
        return float(system.exits[mask].mean()) if mask.any() else None

    return {
        "system": system.system,
        "blocks": system.num_exits,
        "sentences": len(system.sentence_exits),
        "tokens": len(system.exits),
        "end_symbols_counted": True,
        "exits_by_sentence": system.is_by_sentence,
        "average_exit": system.average_exit,
        "accepted_drafts": system.accepted_drafts,
        "average_exit_beginning": mean(system.at_beginning),
        "average_exit_near_end": mean(system.near_end),
        "mean_confidence": float(system.confidence.mean()),
        "correlation_exit_confidence": correlation(system.exits, system.confidence),
        "correlation_sentence_exit_confidence": correlation(
            system.sentence_exits, system.sentence_confidence
        ),
        "correlation_sentence_exit_source_length": correlation(
            system.sentence_exits, system.source_lengths
        ),
        "shares": {
            "all": system.distribution(),
            "beginning": system.distribution(system.at_beginning),
            "end": system.distribution(system.near_end),
        },
        **{name: histogram.values() for name, histogram in joint.items()},
        "examples": [
            {
                "line": trace.line,
                "source": list(trace.source),
                "reference": None if references is None else references[trace.line - 1],
                "tokens": [
                    {"token": token, "exit": exit, "confidence": confidence}
                    for token, exit, confidence in tokens_of(trace)
                ],
            }
            for trace in system.examples
        ],
    }


def _pictures(
    systems: Sequence[ExitTraces],
    joint: Sequence[Mapping[str, Histogram]],
    step: float,
    references: Sequence[str] | None,
) -> list[Picture]:
    what = "exit (block)" if step == 1 else "mean exit (blocks)"
    rounded = "" if step == 1 else f" Mean exits are rounded to the nearest {step:g}."

    def histograms(name: str, title: str, cells: str, x_label: str) -> Picture:
        is_of_tokens = cells.startswith("tokens")
        of_all = "tokens, including end symbols" if is_of_tokens else "sentences"
        caption = f"{title}, in percent of all {of_all}; colours grow with the square root."
        chosen = [of_system[cells] for of_system in joint]
        labels = x_label, "exit (block)" if is_of_tokens else what
        return Picture(
            name,
            caption + ("" if is_of_tokens else rounded),
            lambda path: draw_histograms(chosen, path, title=title, labels=labels),
        )

    pictures = [
        Picture(
            "exits-places",
            "Exits at the beginning of the hypotheses (relative position below 0.1, filled) and "
            "near their end (above 0.9, including the end symbol, outlined), in percent of those "
            "tokens.",
            lambda path: draw_positions(systems, path),
        ),
        histograms(
            "exits-confidence", "Tokens by exit and confidence", "tokens_by_exit_and_confidence",
            "confidence (probability)",
        ),
        histograms(
            "exits-source-lengths", "Sentences by exit and source length",
            "sentences_by_exit_and_source_length", "source length (units)",
        ),
        histograms(
            "exits-sentence-confidence", "Sentences by exit and mean confidence",
            "sentences_by_exit_and_confidence", "mean confidence (probability)",
        ),
    ]  # fmt: skip
    if any(system.examples for system in systems):
        pictures.append(
            Picture(
                "exits-examples",
                "Hypotheses with the exit of each token above it (blue) and its confidence below "
                "it (grey); </s> is the end symbol. Below each is its source"
                + (" (units)." if references is None else " (units) and the reference."),
                lambda path: draw_examples(systems, references, path),
            )
        )
    return pictures
