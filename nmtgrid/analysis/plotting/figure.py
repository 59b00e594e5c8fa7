"""Where to write what a point is: beside it, and on no line and no other writing."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
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


_LETTERS = 22
"""Of a name on one line."""


_Group = tuple[list[int], float, float]
"""Members from below, middle, height."""


def spread(
    wanted: Sequence[float], heights: Sequence[float], least: float, most: float
) -> list[float]:
    """Return places as near as can be to those `wanted`, so that things so high do not touch.

    Groups that touch are moved as one, to the mean of what their members want, and all stay
    between `least` and `most` as far as there is room.
    """
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    groups: list[_Group] = []
    for member in order:
        group = _within(([member], wanted[member], heights[member]), least, most)
        while groups and groups[-1][1] + groups[-1][2] / 2 > group[1] - group[2] / 2:
            below = groups.pop()
            members = below[0] + group[0]
            # The middle that is nearest to what each of them wants, given the order.
            height, reached, sought = below[2] + group[2], 0.0, 0.0
            for one in members:
                sought += wanted[one] - (reached + heights[one] / 2)
                reached += heights[one]
            group = (members, sought / len(members) + height / 2, height)
            group = _within(group, least, most)
        groups.append(group)
    found = [0.0] * len(wanted)
    for members, middle, height in groups:
        reached = middle - height / 2
        for one in members:
            found[one] = reached + heights[one] / 2
            reached += heights[one]
    return found


def _within(group: _Group, least: float, most: float) -> _Group:
    members, middle, height = group
    return members, max(least + height / 2, min(most - height / 2, middle)), height


def line_labels(names: Sequence[str], room: float) -> dict[str, str]:
    """Return the names as they are drawn, where there is room for so many lines of text in all.

    They are broken into up to three lines, and shortened where that is not enough.
    """
    for lines in (3, 2, 1):
        found = _fitted(names, lines)
        if sum(label.count("\n") + 1 for label in found.values()) <= room:
            break
    return found


def _fitted(names: Sequence[str], lines: int) -> dict[str, str]:
    """Return the names in at most so many lines each, no two alike."""
    found: dict[str, str] = {}
    for name in names:
        short = shortened(drawable(name), lines * _LETTERS - 4)
        label = wrapped(short, _LETTERS) if lines > 1 else short
        place = 1
        while label in found.values():
            place += 1
            label = f"{label.removesuffix(f' ({place - 1})')} ({place})"
        found[name] = label
    return found


def wrapped(text: str, most: int) -> str:
    """Return `text` in lines of at most so many letters, broken after separators if it can be."""
    lines = [""]
    for piece in re.findall(rf"[^-_/. ]{{0,{most - 1}}}[-_/. ]|[^-_/. ]{{1,{most}}}", text):
        if lines[-1] and len(lines[-1]) + len(piece) > most:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def drawable(text: str) -> str:
    """Return `text` on one line and in whole characters: file names may hold others."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\n", " ")


def shortened(text: str, most: int) -> str:
    """Return `text` without its middle if it is too long."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


_AWAY = (3.6, 7.0)
"""Points between a marker's middle and what is written beside it: near, or else further off."""
_SIDES = ((0, 1), (0, -1), (-1, 1), (1, -1), (-1, -1), (1, 1), (-1, 0), (1, 0))
"""Preferred first: above, below, then the corners and the sides."""


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle in points from the lower left corner of the panel."""

    left: float
    low: float
    right: float
    high: float

    def holds(self, x: float, y: float) -> bool:
        """Return whether a point lies inside."""
        return self.left <= x <= self.right and self.low <= y <= self.high

    def touches(self, other: Box) -> bool:
        """Return whether two rectangles have a part in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.low < other.high
            and other.low < self.high
        )


class Obstacles:
    """What has been drawn and written on a panel of this size in points."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._boxes: list[Box] = []
        self._points: list[tuple[float, float]] = []

    def add_line(self, points: Sequence[tuple[float, float]]) -> None:
        """Enter a line and the markers on it."""
        self._boxes += [Box(x - 2.6, y - 2.6, x + 2.6, y + 2.6) for x, y in points]
        for (x, y), (to_x, to_y) in pairwise(points):
            steps = max(1, math.ceil(math.hypot(to_x - x, to_y - y) / 2))
            self._points += [
                (x + (to_x - x) * step / steps, y + (to_y - y) * step / steps)
                for step in range(steps + 1)
            ]

    def place(
        self, x: float, y: float, width: float, height: float, *, insist: bool = True
    ) -> Box | None:
        """Return where to write something of this size beside (x, y), and keep others off it.

        Where everything is taken, the least taken place if `insist`, else None.
        """
        boxes = [
            self._beside(x, y, width, height, away, *side) for away in _AWAY for side in _SIDES
        ]
        costs = [self._cost(box) for box in boxes]
        least = min(costs)
        if least > 0 and not insist:
            return None
        box = boxes[costs.index(least)]
        self._boxes.append(box)
        return box

    def _beside(
        self, x: float, y: float, width: float, height: float, away: float, right: int, up: int
    ) -> Box:
        # A corner is nearer in each direction than a side.
        away *= 0.75 if right and up else 1.0
        middle_x = x + right * (away + width / 2)
        middle_y = y + up * (away + height / 2)
        return Box(
            middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2
        )

    def _cost(self, box: Box) -> float:
        outside = box.left < 0 or box.low < 0 or box.right > self.width or box.high > self.height
        touched = sum(box.touches(other) for other in self._boxes)
        crossed = sum(box.holds(x, y) for x, y in self._points)
        return 100.0 * outside + 10.0 * touched + crossed
