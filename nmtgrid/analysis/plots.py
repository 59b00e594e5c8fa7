"""Pictures; the only door to matplotlib. `plots_lines` draws curves with what stands here."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy
from matplotlib.axes import Axes as Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Figure
from matplotlib.font_manager import FontProperties
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.files import atomic_file

if TYPE_CHECKING:
    from nmtgrid.search.traces import Trace

SUFFIXES = (".png", ".svg")
_CELL, _LETTER = 0.26, 0.075
"""Inches: side of a cell, width of a letter of a label."""
_LARGEST = 60.0
"""Inches: beyond this side the cells shrink."""
_LONGEST_LABEL = 60
"""Characters."""


def alignment_map(trace: Trace, path: Path, title: str = "") -> None:
    """Draw the alignment of `trace` as a heat map into `path` (.png or .svg).

    Source units run along the top, target units down the side; darker is more. Raises InputError
    when the trace has no alignment, ConfigError for another kind of file.
    """
    if trace.alignment is None:
        raise InputError(
            f"the translation of line {trace.line} has no alignment.",
            "Write traces with `nmtgrid decode --traces FILE` and a model that aligns.",
        )
    heat_map(
        trace.alignment,
        [*trace.source, "</s>"],
        [*trace.target, "</s>"],
        path,
        title=title,
        label="share of the alignment" if trace.kind == "weights" else "part of the score (logits)",
        diverging=trace.kind == "energies",
    )


def heat_map(
    values: NDArray[Any],
    columns: Sequence[str],
    rows: Sequence[str],
    path: Path,
    *,
    title: str = "",
    label: str = "",
    diverging: bool = False,
) -> None:
    """Draw `values` [rows, columns] with a labelled colour bar.

    Shares in [0, 1], or, if `diverging`, numbers around zero.
    """
    check_suffix(path)
    columns, rows, title = [*map(_shown, columns)], [*map(_shown, rows)], _shown(title)
    height, width = values.shape
    cell = min(_CELL, _LARGEST / max(height, width))
    font = max(3.0, 9.0 * cell / _CELL)
    left = 0.3 + _LETTER * max(map(len, rows)) * cell / _CELL
    top = 0.3 + _LETTER * max(map(len, columns)) * cell / _CELL + (0.25 if title else 0.0)
    bar, right, bottom = 0.16, 0.75, 0.25
    inner = (max(width * cell, 0.6), max(height * cell, 1.2))
    size = (left + inner[0] + 0.2 + bar + right, top + inner[1] + bottom)
    figure = new_figure(*size)
    place = (left / size[0], bottom / size[1], inner[0] / size[0], inner[1] / size[1])
    axes = figure.add_axes(place)
    most = max(1e-6, float(numpy.abs(values).max()))
    # One light hue that darkens evenly, or orange against purple around white: read alike with any
    # colour vision, the first in grey too.
    colours, least = ("PuOr_r", -most) if diverging else ("Blues", 0.0)
    image = axes.imshow(values, cmap=colours, vmin=least, vmax=most, aspect="auto")
    axes.set_xticks(range(width), columns, rotation=90, fontsize=font, parse_math=False)
    axes.set_yticks(range(height), rows, fontsize=font, parse_math=False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xticks([edge - 0.5 for edge in range(width + 1)], minor=True)
    axes.set_yticks([edge - 0.5 for edge in range(height + 1)], minor=True)
    axes.grid(which="minor", color="#e4e4e4", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    scale = figure.add_axes(((left + inner[0] + 0.2) / size[0], place[1], bar / size[0], place[3]))
    figure.colorbar(image, cax=scale).set_label(label, fontsize=9)
    scale.tick_params(labelsize=8)
    if title:
        figure.text(0.02, 1 - 0.12 / size[1], title, fontsize=10, va="top", parse_math=False)
    save(figure, path)


def _shown(text: str) -> str:
    """Return `text` so that it can be drawn: whole characters, and not without end."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def check_suffix(path: Path) -> None:
    """Raise ConfigError unless `path` ends in .png or .svg."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"Pictures are .png or .svg, but `{path.name}` is asked for.")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def text_width(text: str, size: float) -> float:
    """Return the width in inches of the longest line of `text`, in letters of `size` points."""
    canvas = FigureCanvasAgg(Figure(figsize=(1, 1), dpi=100))
    font = FontProperties(size=size)
    drawer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        lines = [drawer.get_text_width_height_descent(t, font, False) for t in text.split("\n")]
    return max(float(width) for width, _, _ in lines) / 100


def log_ticks(least: float, most: float, count: int = 6) -> list[float]:
    """Return at most about `count` round numbers from `least` to `most`, for a log scale."""
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    step = max(1, math.ceil((last - first) / count))
    decades = range(first, last + 1, step)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in decades for digit in digits]
        found = [tick for tick in ticks if least <= tick * (1 + 1e-9) and tick <= most]
        if len(found) <= count:
            break
    # A narrow span may hold none of these: then its middle is named.
    return found or [float(f"{math.sqrt(least * most):.3g}")]


def log_label(tick: float) -> str:
    """Return a round number for people: 0.05, 300, 1e-6."""
    return f"{tick:,.10g}" if 1e-3 <= tick < 1e6 else f"{tick:.1g}".replace("e-0", "e-")


@contextlib.contextmanager
def as_text() -> Iterator[None]:
    """Within it, .svg files hold letters as text, drawn by the reader's fonts, not as shapes."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        yield


def save(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all; the same figure gives the same file."""
    kind = path.suffix.lower()[1:]
    # No date and no random ids: the same values give the same file.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with (
        matplotlib.rc_context({"svg.hashsalt": "nmtgrid"}),
        warnings.catch_warnings(),
        atomic_file(path) as file,
    ):
        # Letters that the font lacks are drawn as boxes; a warning for each says no more.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)
