"""The style of all figures, and writing them as .png, or as .svg with text as text.

Only this module imports matplotlib. A figure is drawn within `new_picture`, which applies the style
to this figure only: importing this module changes none of matplotlib's settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist as Artist
from matplotlib.axes import Axes as Axes
from matplotlib.figure import Figure as Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.lines import Line2D as Line2D
from matplotlib.patches import Patch as Patch
from matplotlib.patches import Rectangle as Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator as MaxNLocator

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import atomic_file

SUFFIXES = (".png", ".svg")
# Okabe and Ito's colours, which are distinct in any colour vision, without the yellow, which is
# too light for a line.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#555555", "#56b4e9")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
_HATCHES = ("", "////", "....")
MOST_LINES = len(COLOURS) * len(_DASHES)
"""Number of lines that can be distinguished."""
INK, AXIS, PALE = "#333333", "#888888", "#dddddd"
FONT = 8.5
"""Points."""

_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": AXIS,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "figure.titlesize": 10.5,
    "figure.titleweight": "bold",
    "font.size": FONT,
    "axes.labelsize": FONT,
    "grid.color": PALE,
    "grid.linewidth": 0.5,
    "hatch.color": "white",
    "legend.borderaxespad": 0.6,
    "legend.fontsize": FONT,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.labelspacing": 0.3,
    "legend.title_fontsize": 10.5,
    "savefig.dpi": 150,
    # No random ids: the same values give the same file.
    "svg.hashsalt": "nmtgrid",
    "text.color": INK,
    # Tokens and file names may contain dollar signs.
    "text.parse_math": False,
    **{f"{axis}tick.color": INK for axis in "xy"},
    **{f"{axis}tick.labelsize": FONT for axis in "xy"},
    **{f"{axis}tick.major.width": 0.6 for axis in "xy"},
    **{f"{axis}tick.major.size": 3 for axis in "xy"},
}
_SCRIPTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Hiragino Sans", "Microsoft YaHei",
    "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Thai",
    "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans", "Arial Unicode MS",
)  # fmt: skip
# Maximum number of missing letters that a warning names.
_MISSING_NAMED = 12
_MISSING = re.compile(r"Glyph (\d+) .*missing from")


class MissingLetters(UserWarning):
    """No font on this machine has some letters of a figure."""


def check_suffix(path: Path) -> None:
    """Raise ConfigError unless `path` ends in .png or .svg."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"Figures must be .png or .svg files, not `{path.name}`.")


@contextlib.contextmanager
def new_picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """Yield an empty figure of this size in inches; write it on leaving, whole or not at all.

    Raises ConfigError for another kind of file than .png or .svg.
    """
    check_suffix(path)
    kind = path.suffix.lower()[1:]
    # The style applies to this figure only, from its first artist to its last pixel.
    style: Any = {**_STYLE, "font.family": list(_fonts())}
    with matplotlib.rc_context(style), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        # No date, for the same reason as no random ids.
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        # matplotlib would leave a partial file behind if the disk is full.
        with atomic_file(path) as file:
            figure.savefig(file, format=kind, metadata=metadata)
    _warn(caught, path)


@contextlib.contextmanager
def new_diagrams(
    path: Path,
    names: Sequence[str],
    size: tuple[float, float],
    y_label: str,
    *,
    sharey: bool = False,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a figure with a diagram of this size in inches for each name, three in a row."""
    # Four make a square.
    across = 2 if len(names) == 4 else min(3, len(names))
    down = math.ceil(len(names) / across)
    page = max(across * size[0] + 0.4, 4.4), down * size[1] + 0.6
    with new_picture(path, *page) as figure:
        grid = figure.subplots(down, across, squeeze=False, sharey=sharey)
        for axes in grid[:, 0]:
            axes.set_ylabel(y_label)
        cells = list(grid.flatten())
        for axes, name in zip(cells, names, strict=False):
            axes.set_title(wrapped(name, max(12, int(size[0] * 72 / 6.6)), lines=2))
        for axes in cells[len(names) :]:
            axes.set_axis_off()
        yield figure, cells[: len(names)]


def _warn(caught: Sequence[warnings.WarningMessage], path: Path) -> None:
    """Pass on the warnings of drawing, those about missing letters as one."""
    missing = set()
    for warning in caught:
        if match := _MISSING.match(str(warning.message)):
            missing.add(chr(int(match[1])))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    # Text in a page is drawn with the reader's fonts.
    if missing and matplotlib.rcParams["svg.fonttype"] != "none":
        letters = sorted(missing)
        named = " ".join(letters[:_MISSING_NAMED]) + (" ..." * (len(letters) > _MISSING_NAMED))
        warnings.warn(
            f"No font here has {len(letters)} of the letters in {path.name}, drawn as boxes: "
            f"{named} Install one that has them, such as Noto Sans.",
            MissingLetters,
            stacklevel=4,
        )


@functools.cache
def _fonts() -> tuple[str, ...]:
    """Return the fonts in which letters are looked up: matplotlib's own, then installed ones."""
    # Only installed ones, because matplotlib warns of each that is missing.
    installed = set(fontManager.get_font_names())
    return ("DejaVu Sans", *(name for name in _SCRIPTS if name in installed))


def as_text() -> contextlib.AbstractContextManager[None]:
    """Return a context in which .svg files have letters as text, in the reader's fonts."""
    return matplotlib.rc_context({"svg.fonttype": "none"})


def colour(index: int) -> str:
    """Return the colour of a system by its index."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> Any:
    """Return the dashes of a line, which differ between lines of the same colour."""
    return _DASHES[index // len(COLOURS) % len(_DASHES)]


def hatch(index: int) -> str:
    """Return the hatch of a bar, which differs between bars of the same colour."""
    return _HATCHES[index // len(COLOURS) % len(_HATCHES)]


def darker(colour: str) -> str:
    """Return a colour dark enough for letters."""
    red, green, blue = bytes.fromhex(colour[1:])
    # Perceived lightness: yellow is darkened, blue stays as it is.
    factor = min(1.0, 105 / (0.3 * red + 0.59 * green + 0.11 * blue))
    return "#" + bytes(int(part * factor) for part in (red, green, blue)).hex()


def text_width(text: str, size: float) -> float:
    """Return the width in inches of one line of letters of `size` points."""
    font = FontProperties(family=list(_fonts()), size=size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72


def shortened(text: str, most: int) -> str:
    """Return `text` on one line, without its middle if it has more letters than `most`."""
    # Only valid characters: file names may contain others.
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\n", " ")
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def wrapped(text: str, letters: int, lines: int = 3) -> str:
    """Return `text` in at most `lines` lines of `letters` letters; wide ones count twice.

    Lines break at spaces, and within a word only if it is longer than a line.
    """
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    letters = max(8, letters * len(text) // max(len(text) + wide, 1))
    # Lines that break after words are not full, which loses some room.
    most = letters if lines == 1 else lines * letters - letters // 2
    while (filled := _filled(shortened(text, most), letters)).count("\n") >= lines:
        most -= 1
    return filled


def _filled(text: str, letters: int) -> str:
    """Return `text` in lines of at most `letters` letters, not counting a space at the end."""
    # Names of files have hyphens, underscores and slashes where sentences have spaces.
    word, part = rf"[^ ]{{0,{letters}}} |[^ ]{{1,{letters}}}$", rf"[^-_/ ]{{0,{letters - 1}}}[-_/]"
    filled = [""]
    for piece in re.findall(rf"{word}|{part}|[^-_/ ]{{1,{letters}}}", text):
        if filled[-1] and len(filled[-1]) + len(piece.rstrip()) > letters:
            filled.append("")
        filled[-1] += piece
    return "\n".join(filled)


_CORPUS: ContextVar[str] = ContextVar("corpus", default="")


@contextlib.contextmanager
def naming_corpus(corpus: str) -> Iterator[None]:
    """Let the titles of figures name this corpus (none if empty) within the context."""
    token = _CORPUS.set(corpus)
    try:
        yield
    finally:
        _CORPUS.reset(token)


def full_title(title: str) -> str:
    """Return a figure's title with its corpus."""
    corpus = _CORPUS.get()
    return f"{title} ({corpus})" if title and corpus else title or corpus


def set_title(figure: Figure, title: str) -> None:
    """Write a title above everything in the figure, at its left."""
    figure.suptitle(_wrapped_title(figure, title), x=0.01, ha="left")


def _wrapped_title(figure: Figure, title: str) -> str:
    return wrapped(full_title(title), int(figure.get_figwidth() * 72 / (0.72 * 10.5)))


def add_legend(figure: Figure, handles: Sequence[Artist], title: str) -> None:
    """Write a legend above all diagrams, in as many columns as have room, with the page's title."""
    if not handles:
        set_title(figure, title)
    for columns in range(len(handles), 0, -1):
        # The title belongs to the legend: constrained layout would put both in the same place.
        legend = figure.legend(
            handles=handles, loc="outside upper left", ncols=columns, alignment="left",
            title=_wrapped_title(figure, title),
            title_fontproperties={"weight": "bold", "size": 10.5},
        )  # fmt: skip
        if columns == 1 or legend.get_window_extent().width <= 0.97 * figure.bbox.width:
            break
        legend.remove()


def line_handles(styles: Mapping[str, int], letters: int, lines: int = 1) -> list[Artist]:
    """Return a legend's handles for lines, by their names and the indices of their looks."""
    return [
        Line2D([], [], color=colour(style), linestyle=dash(style), linewidth=1.8,
               label=legend_label(name, letters, lines))
        for name, style in styles.items()
    ]  # fmt: skip


def legend_label(name: str, letters: int, lines: int = 1) -> str:
    """Return a name for a legend; matplotlib leaves out those that begin with an underscore."""
    text = wrapped(name, letters, lines) or " "
    return f" {text}" if text.startswith("_") else text


_NEAR = 4.5
"""Points between a marker and its label."""


@dataclasses.dataclass(frozen=True)
class _Obstacles:
    """Shapes that labels must avoid, in pixels: lines, markers [points, 2], other labels."""

    lines: Sequence[Any]
    markers: Any
    boxes: list[Any]

    def leave_free(self, axes: Axes, box: Any) -> bool:
        """Return whether a box is in the diagram and overlaps nothing."""
        return (
            axes.bbox.x0 <= box.x0
            and box.x1 <= axes.bbox.x1
            and axes.bbox.y0 <= box.y0
            and box.y1 <= axes.bbox.y1
            and not box.padded(2).count_overlaps(self.boxes)
            and not box.padded(2).count_contains(self.markers)
            and not any(line.intersects_bbox(box, filled=False) for line in self.lines)
        )


def label_points(
    axes: Axes,
    points: Sequence[tuple[float, float, str, str]],
    *,
    names: Sequence[tuple[Sequence[tuple[float, float]], str, str]] = (),
    leads: Sequence[tuple[str, str]] = (),
    everywhere: bool = False,
) -> None:
    """Write a label in its colour next to each point (x, y), off all lines and other labels.

    `leads` are, for each point, its line and a prefix for the first label of that line that has
    room for it.

    Each of `names`, for a line through some points, is written first, next to the last of these
    points with room; if there is none, farther off, at the end of a thin line. A label without room
    is left out, unless labels must be `everywhere`. Lines must be drawn, and the limits set.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    # The layout is computed here: before, nothing has a position.
    figure.draw_without_rendering()
    marked = [(x, y) for x, y, *_ in points] + [point for line, *_ in names for point in line]
    obstacles = _Obstacles(
        [line.get_transform().transform_path(line.get_path()) for line in axes.lines],
        axes.transData.transform(marked or [(0.0, 0.0)]),
        [],
    )
    for line, name, tone in names:
        any(
            _write_label(axes, (x, y, name, tone), obstacles, distance=distance)
            for distance in (_NEAR, 20.0, 36.0, 54.0, 75.0)
            for x, y in reversed(line)
        )
    led: set[str] = set()
    for (x, y, label, tone), (curve, lead) in zip(
        points, leads or [("", "")] * len(points), strict=True
    ):
        if lead and curve not in led and _write_label(axes, (x, y, lead + label, tone), obstacles):
            led.add(curve)
        else:
            _write_label(axes, (x, y, label, tone), obstacles, everywhere=everywhere)


def _write_label(
    axes: Axes,
    point: tuple[float, float, str, str],
    obstacles: _Obstacles,
    *,
    distance: float = _NEAR,
    everywhere: bool = False,
) -> bool:
    """Write a label at this distance in points, if there is room; return whether it was written."""
    x, y, label, tone = point
    # Preferred first: above and below, then the corners and the sides.
    for right, up in ((0, 1), (0, -1), (-1, 1), (1, -1), (-1, -1), (1, 1), (-1, 0), (1, 0)):
        offset = distance * right, distance * up
        text = axes.annotate(
            label, (x, y), xytext=offset, textcoords="offset points",
            ha=("center", "left", "right")[right], va=("center", "bottom", "top")[up],
            color=tone, fontsize=7.0, zorder=4,
        )  # fmt: skip
        # It is inside: the layout, which is fixed by now, need not measure it.
        text.set_in_layout(False)
        box = text.get_window_extent()
        if obstacles.leave_free(axes, box) or (everywhere and (right, up) == (1, 0)):
            obstacles.boxes.append(box)
            if distance > _NEAR:
                leader = {"arrowstyle": "-", "color": tone, "linewidth": 0.5, "shrinkB": 3.0}
                axes.annotate(
                    "", (x, y), xytext=offset, textcoords="offset points", arrowprops=leader
                ).set_in_layout(False)
            return True
        text.remove()
    return False


def log_ticks(least: float, most: float, count: int = 6) -> list[float]:
    """Return at most about `count` round numbers from `least` to `most`, for a log scale.

    matplotlib itself labels only decades, or for a narrow span nothing or far too much.
    """
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    step = max(1, math.ceil((last - first) / count))
    decades = range(first, last + 1, step)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        numbers = [digit * 10.0**power for power in decades for digit in digits]
        ticks = [tick for tick in numbers if least <= tick * (1 + 1e-9) and tick <= most]
        if len(ticks) <= count:
            break
    # A narrow span may contain none of these: then its middle is labelled.
    return ticks or [float(f"{math.sqrt(least * most):.3g}")]


def log_label(tick: float, _: object = None) -> str:
    """Return a round number as displayed: 0.05, 300, 1e-6."""
    return f"{tick:,.10g}" if 1e-3 <= tick < 1e6 else f"{tick:.1g}".replace("e-0", "e-")
