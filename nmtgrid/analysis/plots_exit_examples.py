"""Hypotheses word for word, with the exit of each token above and its probability below."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from nmtgrid.analysis.exits import ExitTraces, tokens_of
from nmtgrid.analysis.plotting.figure import Figure, check_suffix, new_figure, save, text_width
from nmtgrid.analysis.plotting.labels import drawable, shortened
from nmtgrid.analysis.plotting.lines import COLOURS, INK
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
        wide = max(text_width(shown, _TOKEN), text_width(_told(confidence), _NUMBER))
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
        _write(figure, word.middle, middle - 0.15, _told(word.confidence), _NUMBER, _GREY)


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


def _told(confidence: float) -> str:
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
