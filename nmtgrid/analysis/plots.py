"""Pictures; the only door to matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.files import atomic_file
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
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
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
    _save(figure, path)


def _shown(text: str) -> str:
    """Return `text` so that it can be drawn: whole characters, and not without end."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def check_suffix(path: Path) -> None:
    """Raise ConfigError unless `path` ends in .png or .svg."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"Pictures are .png or .svg, but `{path.name}` is asked for.")


def _save(figure: Figure, path: Path) -> None:
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
