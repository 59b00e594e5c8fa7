"""Pictures; the only door to matplotlib. `plots_lines` draws curves with what stands here."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes as Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Figure
from matplotlib.font_manager import FontProperties

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.files import atomic_file

SUFFIXES = (".png", ".svg")


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
