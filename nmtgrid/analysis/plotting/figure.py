"""Pictures; the only door to matplotlib. `plots_lines` draws curves with what stands here."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes as Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Figure
from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.text import Text

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import atomic_file

SUFFIXES = (".png", ".svg")
_SCRIPTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Hiragino Sans", "Microsoft YaHei",
    "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Thai",
    "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans", "Arial Unicode MS",
)  # fmt: skip
_HELD = set(fontManager.get_font_names())
FONTS = ["DejaVu Sans", *(name for name in _SCRIPTS if name in _HELD)]
"""Where letters are looked for, in order: matplotlib's own font, then those that are here."""
_SHOWN = 12
"""Letters that a warning names."""

matplotlib.rcParams["font.family"] = FONTS


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


def scale_ends(values: Sequence[float], below: float, above: float) -> tuple[float, float]:
    """Return the ends of a scale: all finite values, and air, in parts of their range.

    Around values that are one, or as good as one, the scale is a tenth of them wide.
    """
    held = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(held), max(held)
    largest = max(abs(low), abs(high))
    if high - low <= 1e-3 * largest:
        middle, half = (low + high) / 2, largest / 20 or 0.5
        low, high = middle - half, middle + half
    return low - below * (high - low), high + above * (high - low)


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
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)
    missing = _missing_letters(figure)
    if missing and matplotlib.rcParams["svg.fonttype"] != "none":
        shown = " ".join(missing[:_SHOWN]) + (" ..." if len(missing) > _SHOWN else "")
        warnings.warn(
            f"No font here has {len(missing)} of the letters in {path.name}, drawn as boxes: "
            f"{shown} Install one that has them, such as Noto Sans.",
            MissingLetters, stacklevel=2,
        )  # fmt: skip


class MissingLetters(UserWarning):
    """Letters in a picture are in no font of this machine."""


def _missing_letters(figure: Figure) -> list[str]:
    """Return what is written in `figure` and no font has."""
    written = {
        letter
        for text in figure.findobj(Text)
        if isinstance(text, Text) and text.get_visible()
        for letter in text.get_text()
        if letter.isprintable() and not letter.isspace()
    }
    known: set[int] = set()
    for path in _font_files():
        known |= set(get_font(path).get_charmap())
    return sorted(letter for letter in written if ord(letter) not in known)


@functools.cache
def _font_files() -> list[str]:
    return [fontManager.findfont(FontProperties(family=[name])) for name in FONTS]
