"""The section on exits: its tables, pictures and numbers; `exits` measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy

from nmtgrid.analysis.exits import (
    ExitTraces,
    Histogram,
    correlation,
    length_edges,
    sentence_confidence,
    sentence_lengths,
    token_confidence,
    tokens_of,
)
from nmtgrid.analysis.plotting.figure import (
    Axes,
    Figure,
    check_suffix,
    drawable,
    new_figure,
    save,
    shortened,
    text_width,
)
from nmtgrid.analysis.plotting.lines import COLOURS, INK, PALE
from nmtgrid.analysis.section import Picture, Section, Table
from nmtgrid.search.traces import Trace

_WIDTH, _EDGE = 7.6, 0.15
"""Inches of the page, and of what stays free at its sides."""
_TOKEN, _NUMBER, _BELOW = 9.5, 7.5, 8.0
"""Points: tokens, numbers at them, the source and the reference."""
_ROW, _LINE, _NAME, _BETWEEN = 0.58, 0.17, 0.24, 0.22
"""Inches: a row of tokens with their numbers, a line of text, of a name, between sentences."""
_SPACE = 0.09
_BLUE, _GREY = COLOURS[0], "#888888"
_LONGEST = 40
"""Letters of a token."""


@dataclasses.dataclass(frozen=True)
class _Word:
    """A token where it stands: its middle in inches from the left, in this row."""

    text: str
    exit: int
    confidence: float
    middle: float
    row: int


def draw_examples(
    systems: Sequence[ExitTraces], references: Sequence[str] | None, path: Path
) -> None:
    """Draw the examples of all systems into `path`, those of one line under each other."""
    check_suffix(path)
    lines = list(dict.fromkeys(trace.line for one in systems for trace in one.examples))
    blocks: list[tuple[str, list[_Word]] | list[str]] = []
    for line in lines:
        held = [(one.system, t) for one in systems for t in one.examples if t.line == line]
        for system, trace in held:
            blocks.append((system if len(systems) > 1 else "", _laid(trace)))
        blocks.append(_captions(held[0][1], references))
    height = 2 * _EDGE + sum(map(_height, blocks))
    figure = new_figure(max(map(_width, blocks)) + _EDGE, height)
    reached = height - _EDGE
    for block in blocks:
        if isinstance(block, tuple):
            _draw_words(figure, block, reached)
        else:
            for place, text in enumerate(block):
                top = reached - place * _LINE
                _write(figure, _EDGE, top, text, _BELOW, INK, side="left", va="top")
        reached -= _height(block)
    save(figure, path)


def _height(block: tuple[str, list[_Word]] | list[str]) -> float:
    if isinstance(block, list):
        return len(block) * _LINE + _BETWEEN
    name, words = block
    return (max((word.row for word in words), default=0) + 1) * _ROW + (_NAME if name else 0.0)


def _width(block: tuple[str, list[_Word]] | list[str]) -> float:
    """Return how far a block reaches, from the left."""
    if isinstance(block, list):
        return _EDGE + max(text_width(text, _BELOW) for text in block)
    ends = [word.middle + text_width(word.text, _TOKEN) / 2 + 0.1 for word in block[1]]
    return max([*ends, _EDGE + text_width(_shown_name(block[0]), _BELOW) * 1.15])


def _shown_name(name: str) -> str:
    return shortened(drawable(name), 70)


def _laid(trace: Trace) -> list[_Word]:
    """Return the tokens in rows as wide as the page."""
    found = []
    left, row = _EDGE, 0
    for text, exit, confidence in tokens_of(trace):
        shown = shortened(drawable(text), _LONGEST)
        wide = max(text_width(shown, _TOKEN), text_width(_probability_text(confidence), _NUMBER))
        if left > _EDGE and left + wide > _WIDTH - _EDGE:
            left, row = _EDGE, row + 1
        found.append(_Word(shown, exit, confidence, left + wide / 2, row))
        left += wide + _SPACE
    return found


def _draw_words(figure: Figure, block: tuple[str, list[_Word]], top: float) -> None:
    name, words = block
    if name:
        _write(
            figure, _EDGE, top, _shown_name(name), _BELOW, INK, side="left", va="top", weight="bold"
        )
        top -= _NAME
    for word in words:
        middle = top - word.row * _ROW - 0.24
        _write(figure, word.middle, middle, word.text, _TOKEN, INK)
        _write(figure, word.middle, middle + 0.16, str(word.exit), _NUMBER, _BLUE, weight="bold")
        _write(
            figure, word.middle, middle - 0.15, _probability_text(word.confidence), _NUMBER, _GREY
        )


def _captions(trace: Trace, references: Sequence[str] | None) -> list[str]:
    """Return what stands under a hypothesis, in lines as wide as the page."""
    texts = [f"Line {trace.line}, source: {' '.join(trace.source)}"]
    if references is not None:
        texts.append(f"Reference: {references[trace.line - 1]}")
    return [line for text in texts for line in _broken(drawable(text))]


def _broken(text: str) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        word = shortened(word, 100)
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and text_width(longer, _BELOW) > _WIDTH - 2 * _EDGE:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _probability_text(confidence: float) -> str:
    return f"{confidence:.2f}"


def _write(
    figure: Figure,
    x: float,
    y: float,
    text: str,
    size: float,
    colour: str,
    *,
    side: str = "center",
    va: str = "center",
    weight: str = "normal",
) -> None:
    width, height = figure.get_size_inches()
    figure.text(
        x / width, y / height, text, fontsize=size, color=colour, ha=side, va=va,
        fontweight=weight, parse_math=False,
    )  # fmt: skip


_FONT, _SMALL = 8.5, 7.0
_GREY = "#888888"
_ACROSS, _NARROWEST = 3, 3.6
_LEFT, _GAP, _RIGHT, _TOP, _BOTTOM, _KEY = 0.62, 0.35, 0.15, 0.5, 0.55, 0.28
"""Inches around the insides of the diagrams, and of the line above all."""
_CELL = (0.36, 0.26)
_DARK, _LIGHT = "#08306b", "#fefefe"
"""Letters in cells; they stay as they are whatever the paper's colour."""


def draw_places(systems: Sequence[ExitTraces], path: Path) -> None:
    """Draw the exits at the beginning and near the end of hypotheses, a diagram a system."""
    check_suffix(path)
    most = max(one.num_exits for one in systems)
    width, height = max(1.9, 0.42 * most), 1.8
    figure, axes = _grid(len(systems), (width, height))
    highest = 0.0
    for place, (axis, one) in enumerate(zip(axes, systems, strict=True)):
        colour = COLOURS[place % len(COLOURS)]
        _frame(axis, f"{one.system}", f"average exit {one.average_exit:.2f}", width)
        for side, chosen in ((-0.2, one.at_beginning), (0.2, one.near_end)):
            shares = one.distribution(chosen) or [0.0] * one.num_exits
            heights = [100 * share for share in shares]
            highest = max(highest, *heights)
            face = colour if side < 0 else "none"
            shown = [exit for exit in range(1, one.num_exits + 1) if shares[exit - 1]]
            axis.bar(
                [exit + side for exit in shown], [heights[exit - 1] for exit in shown], 0.36,
                facecolor=face, edgecolor=colour, linewidth=1.0,
            )  # fmt: skip
        axis.set_xticks(range(1, most + 1))
        axis.set_xlim(0.4, most + 0.6)
        axis.grid(axis="y", color=PALE, linewidth=0.5)
        axis.set_xlabel("exit (block)", fontsize=_FONT, color=INK)
        if place % _across(len(systems)) == 0:
            axis.set_ylabel("tokens there (percent)", fontsize=_FONT, color=INK)
        else:
            axis.tick_params(labelleft=False)
    for axis in axes:
        axis.set_ylim(0.0, min(100.0, 1.08 * highest))
    _write_key(
        figure,
        "filled: beginning (relative position < 0.1)",
        "outlined: near the end (> 0.9, end symbol counted)",
    )
    save(figure, path)


def draw_histograms(
    found: Sequence[Histogram], path: Path, *, x_label: str, y_label: str, unit: str
) -> None:
    """Draw joint histograms, a system each, in percent of all its `unit`."""
    check_suffix(path)
    rows = max(_used(one) for one in found)
    inside = (_CELL[0] * (len(found[0].edges) - 1), _CELL[1] * rows)
    figure, axes = _grid(len(found), inside)
    greatest = max(float(one.counts.max() / max(one.counts.sum(), 1)) for one in found)
    across = _across(len(found))
    for place, (axis, one) in enumerate(zip(axes, found, strict=True)):
        _frame(axis, one.system, "", inside[0])
        _draw_cells(axis, one, greatest)
        axis.set_ylim(-0.5, rows - 0.5)
        axis.set_xlabel(x_label, fontsize=_FONT, color=INK)
        if place % across == 0:
            axis.set_ylabel(y_label, fontsize=_FONT, color=INK)
    _write_key(figure, f"percent of all {unit}; an empty cell has none")
    save(figure, path)


def _used(one: Histogram) -> int:
    """Return how many rows to show: all whole exits, of finer rows those up to the last used."""
    if len(one.rows) < 2 or one.rows[1] - one.rows[0] >= 1:
        return len(one.rows)
    return max(4, 1 + max(int(row) for row in numpy.nonzero(one.counts.sum(1))[0]))


def _draw_cells(axis: Axes, one: Histogram, greatest: float) -> None:
    shares = one.counts / max(int(one.counts.sum()), 1)
    shown = numpy.ma.masked_where(one.counts == 0, numpy.sqrt(shares / max(greatest, 1e-9)))
    axis.imshow(shown, cmap="Blues", vmin=0.0, vmax=1.15, origin="lower", aspect="auto")
    for row, column in zip(*numpy.nonzero(one.counts), strict=True):
        percent = 100 * float(shares[row, column])
        axis.text(
            column, row, _percent_text(percent), ha="center", va="center", fontsize=_SMALL - 0.5,
            color=_LIGHT if float(shown[row, column]) > 0.65 else _DARK,
        )  # fmt: skip
    axis.set_yticks(range(len(one.rows)), [f"{row:g}" for row in one.rows])
    edges = [f"{edge:g}" for edge in one.edges]
    axis.set_xticks([place - 0.5 for place in range(len(edges))], edges)
    axis.tick_params(axis="x", labelsize=_SMALL)
    axis.set_xticks([place + 0.5 for place in range(-1, len(edges) - 1)], minor=True)
    axis.set_yticks([place + 0.5 for place in range(-1, len(one.rows))], minor=True)
    axis.grid(which="minor", color=PALE, linewidth=0.4)
    axis.tick_params(which="minor", length=0)


def _percent_text(percent: float) -> str:
    """Return a percentage for a small cell."""
    if percent >= 9.95:
        return f"{percent:.0f}"
    return f"{percent:.1f}" if percent >= 0.05 else "<.1"


def _grid(count: int, inside: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Return a page of diagrams as large as each other, so many abreast as fit."""
    across = _across(count)
    down = -(-count // across)
    width = _LEFT + across * (inside[0] + _GAP) - _GAP + _RIGHT
    size = (max(width, _NARROWEST), _KEY + down * (inside[1] + _TOP + _BOTTOM))
    figure = new_figure(*size)
    axes = []
    for place in range(count):
        start = _LEFT + place % across * (inside[0] + _GAP)
        low = size[1] - _KEY - (place // across + 1) * (inside[1] + _TOP + _BOTTOM) + _BOTTOM
        axes.append(figure.add_axes(_part((start, low, *inside), size)))
    return figure, axes


def _across(count: int) -> int:
    """Return how many diagrams stand abreast."""
    return 2 if count == 4 else min(_ACROSS, count)


def _part(
    box: tuple[float, float, float, float], page: tuple[float, float]
) -> tuple[float, float, float, float]:
    return box[0] / page[0], box[1] / page[1], box[2] / page[0], box[3] / page[1]


def _frame(axis: Axes, title: str, below: str, width: float) -> None:
    shown = whole = drawable(title)
    while text_width(shown, 10.8) > width and len(shown) > 9:
        shown = shortened(whole, len(shown) - 2)
    axis.set_title(
        shown, loc="left", fontsize=9.5, fontweight="bold", color=INK, parse_math=False,
        pad=17 if below else 5,
    )  # fmt: skip
    if below:
        axis.text(0.0, 1.03, below, transform=axis.transAxes, fontsize=_FONT, color=INK)
    axis.tick_params(labelsize=_FONT, colors=INK, length=2.5, width=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set(color=_GREY, linewidth=0.6)
    axis.set_axisbelow(True)


def _write_key(figure: Figure, *texts: str) -> None:
    """Write above the diagrams, on one line if there is room, else on two."""
    width, height = figure.get_size_inches()
    one_line = "      ".join(texts)
    lines = [one_line] if text_width(one_line, _FONT) < width - _LEFT else texts
    for place, text in enumerate(lines):
        figure.text(
            min(_LEFT, max(0.1, width - 0.1 - text_width(text, _FONT))) / width,
            1 - (0.16 + 0.16 * place) / height, text, fontsize=_FONT, color=INK, va="center",
        )  # fmt: skip


TEXT = (
    "A decoder with exits may predict each token from an earlier block than its last. The end "
    "symbol is a token with an exit here. The relative position of a token is 0 for the first of a "
    "hypothesis and 1 for its end symbol; the beginning is what lies before 0.1, the end what lies "
    "behind 0.9, the end symbol included. Confidence is the probability that the model gave the "
    "token at its exit; a sentence's is the mean of its tokens', its exit the mean of their exits, "
    "and its source length is in units without the end symbol. r is Pearson's correlation."
)


def exits_section(
    systems: Sequence[ExitTraces], references: Sequence[str] | None = None
) -> Section:
    """Return where the tokens of all systems left; references are shown beside the examples."""
    step = 1.0 if all(one.is_by_sentence for one in systems) else 0.5
    edges, blocks = length_edges(systems), max(one.num_exits for one in systems)
    systems = [dataclasses.replace(one, num_exits=blocks) for one in systems]
    by_token = [token_confidence(one) for one in systems]
    by_confidence = [sentence_confidence(one, step) for one in systems]
    by_length = [sentence_lengths(one, step, edges) for one in systems]
    pictures = [_places(systems), _tokens(by_token), *_sentences(by_length, by_confidence, step)]
    if any(one.examples for one in systems):
        pictures.append(_examples(systems, references))
    rows = zip(systems, by_token, by_confidence, by_length, strict=True)
    return Section(
        "exits",
        "Where tokens leave the decoder",
        TEXT,
        [_summary(systems), _shares(systems)],
        pictures,
        {"systems": [_values(*row, references) for row in rows]},
    )


def _summary(systems: Sequence[ExitTraces]) -> Table:
    return Table(
        "Average exits (blocks per token); r: with confidence, with the source's length",
        ["system", "tokens", "all", "begin", "end", "confidence", "r conf.", "r length"],
        [
            [
                one.system,
                len(one.exits),
                one.average_exit,
                _mean(one, one.at_beginning),
                _mean(one, one.near_end),
                float(one.confidence.mean()),
                correlation(one.exits, one.confidence),
                correlation(one.sentence_exits, one.source_lengths),
            ]
            for one in systems
        ],
    )


def _shares(systems: Sequence[ExitTraces]) -> Table:
    most = systems[0].num_exits
    rows: list[list[str | float | None]] = []
    for one in systems:
        for where, chosen in _wheres(one):
            shares = one.distribution(chosen)
            told = [None] * most if shares is None else [100 * share for share in shares]
            rows.append([one.system, where, *told])
    columns = ["system", "tokens", *(f"exit {exit}" for exit in range(1, most + 1))]
    return Table("Tokens that leave at each exit (percent)", columns, rows, 1)


def _wheres(one: ExitTraces) -> list[tuple[str, Any]]:
    return [("all", None), ("beginning", one.at_beginning), ("end", one.near_end)]


def _mean(one: ExitTraces, chosen: Any) -> float | None:
    return float(one.exits[chosen].mean()) if chosen.any() else None


def _values(
    one: ExitTraces,
    by_token: Histogram,
    by_confidence: Histogram,
    by_length: Histogram,
    references: Sequence[str] | None,
) -> dict[str, Any]:
    return {
        "system": one.system,
        "blocks": one.num_exits,
        "sentences": len(one.sentence_exits),
        "tokens": len(one.exits),
        "end_symbols_counted": True,
        "exits_by_sentence": one.is_by_sentence,
        "average_exit": one.average_exit,
        "average_exit_beginning": _mean(one, one.at_beginning),
        "average_exit_near_end": _mean(one, one.near_end),
        "mean_confidence": float(one.confidence.mean()),
        "correlation_exit_confidence": correlation(one.exits, one.confidence),
        "correlation_sentence_exit_confidence": correlation(
            one.sentence_exits, one.sentence_confidence
        ),
        "correlation_sentence_exit_source_length": correlation(
            one.sentence_exits, one.source_lengths
        ),
        "shares": {where: one.distribution(chosen) for where, chosen in _wheres(one)},
        "tokens_by_exit_and_confidence": by_token.values(),
        "sentences_by_exit_and_confidence": by_confidence.values(),
        "sentences_by_exit_and_source_length": by_length.values(),
        "examples": [_example(trace, references) for trace in one.examples],
    }


def _example(trace: Trace, references: Sequence[str] | None) -> dict[str, Any]:
    return {
        "line": trace.line,
        "source": list(trace.source),
        "reference": None if references is None else references[trace.line - 1],
        "tokens": [
            {"token": token, "exit": exit, "confidence": confidence}
            for token, exit, confidence in tokens_of(trace)
        ],
    }


def _places(systems: Sequence[ExitTraces]) -> Picture:
    def draw(path: Path) -> None:

        draw_places(systems, path)

    return Picture(
        "exits-places",
        "Exits at the beginning of the hypotheses (relative position below 0.1, filled) and near "
        "their end (above 0.9, the end symbol counted, outlined), in percent of those tokens.",
        draw,
    )


def _tokens(found: Sequence[Histogram]) -> Picture:
    return Picture(
        "exits-confidence",
        "Tokens by exit and confidence, in percent of all tokens, the end symbols counted; colours "
        "grow with the square root.",
        _histograms(found, "confidence (probability)", "exit (block)", "tokens"),
    )


def _sentences(
    by_length: Sequence[Histogram], by_confidence: Sequence[Histogram], step: float
) -> list[Picture]:
    what = "exit (block)" if step == 1 else "mean exit (blocks)"
    rounded = "" if step == 1 else f" Mean exits are rounded to the nearest {step:g}."
    told = f"in percent of all sentences; colours grow with the square root.{rounded}"
    return [
        Picture(
            "exits-source-lengths",
            f"Sentences by exit and source length, {told}",
            _histograms(by_length, "source length (units)", what, "sentences"),
        ),
        Picture(
            "exits-sentence-confidence",
            f"Sentences by exit and mean confidence, {told}",
            _histograms(by_confidence, "mean confidence (probability)", what, "sentences"),
        ),
    ]


def _histograms(
    found: Sequence[Histogram], x_label: str, y_label: str, unit: str
) -> Callable[[Path], None]:
    def draw(path: Path) -> None:

        draw_histograms(found, path, x_label=x_label, y_label=y_label, unit=unit)

    return draw


def _examples(systems: Sequence[ExitTraces], references: Sequence[str] | None) -> Picture:
    def draw(path: Path) -> None:

        draw_examples(systems, references, path)

    return Picture(
        "exits-examples",
        "Hypotheses with the exit of each token above it (blue) and its confidence below it "
        "(grey); </s> is the end symbol. Under each stands its source"
        + (" (units)." if references is None else " (units) and the reference."),
        draw,
    )
