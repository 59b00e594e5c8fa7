"""Tunings of early exit as a section: BLEU against average exit, operations and time."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nmtgrid.analysis.plotting.figure import (
    Axes,
    Obstacles,
    check_suffix,
    drawable,
    new_figure,
    save,
    scale_ends,
    shortened,
    spread,
    text_width,
)
from nmtgrid.analysis.plotting.lines import COLOURS, INK, darker, frame
from nmtgrid.analysis.section import Picture, Section, Table, read_result_file
from nmtgrid.base.errors import ConfigError

Kind = Literal["adaptive", "fixed", "baseline", "uniform"]

_WIDTH, _HEIGHT = 3.5, 3.3
"""Inches of a panel's inside."""
_LEFT, _BETWEEN, _TOP, _BOTTOM, _GAP, _SAMPLE = 0.7, 0.35, 0.55, 0.6, 0.16, 0.34
_FONT, _SMALL, _LINE = 8.5, 7.0, 10.6
"""Points: letters, those beside markers, and a line of names."""
_LETTERS, _LONGEST = 26, 78
_OTHERS: dict[Kind, tuple[str, Any, str]] = {
    "fixed": ("#444444", "-", "o"),
    "baseline": ("#9a9a9a", (0, (4, 1.4)), "s"),
    "uniform": ("#777777", "", "x"),
}
"""Colour, dashes and marker of what is not adaptive."""
_ADAPTIVE = ("o", "^", "s", "D", "v", "P", "X")
_COLOURS = (*(colour for colour in COLOURS if colour != "#555555"), "#8c564b")
"""Greys are for what is not adaptive."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """A point: its place in each panel (NaN: it has none there), BLEU in percent, and a label."""

    x: tuple[float, ...]
    y: float
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Curve:
    """Points of one system, in order."""

    name: str
    kind: Kind
    marks: Sequence[Mark]


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A curve with its looks."""

    curve: Curve
    colour: str
    dash: Any
    marker: str

    def looks(self) -> dict[str, Any]:
        width = 1.7 if self.curve.kind == "adaptive" else 1.2
        return {
            "color": self.colour,
            "linewidth": width,
            "linestyle": self.dash or "none",
            "marker": self.marker,
            "markersize": 4.4,
            "markerfacecolor": "white",
            "markeredgecolor": self.colour,
            "markeredgewidth": 0.75 * width,
        }


def draw_exit_curves(
    curves: Sequence[Curve], path: Path, *, title: str, x_labels: Sequence[str], y_label: str
) -> None:
    """Draw the curves into `path` (.png or .svg), a panel for each of `x_labels`.

    A panel in which no point has a place is left out. Raises ConfigError for another kind of file.
    """
    check_suffix(path)
    drawn = _styled([one for one in curves if one.marks])
    panels = [
        place
        for place in range(len(x_labels))
        if any(math.isfinite(mark.x[place]) for one in drawn for mark in one.curve.marks)
    ]
    right = _GAP + _SAMPLE + 0.2
    right += max((text_width(_broken(one.curve.name), _FONT) for one in drawn), default=0.0)
    inside = max(len(panels), 1) * (_WIDTH + _BETWEEN) - _BETWEEN
    size = (_LEFT + inside + right, _TOP + _HEIGHT + _BOTTOM)
    figure = new_figure(*size)
    figure.text(
        _LEFT / size[0], 1 - 0.16 / size[1], shortened(drawable(title), 140), fontsize=10,
        fontweight="bold", color=INK, va="top", parse_math=False,
    )  # fmt: skip
    limits = scale_ends([mark.y for one in drawn for mark in one.curve.marks], 0.08, 0.08)
    axes: Axes | None = None
    for number, place in enumerate(panels):
        left = _LEFT + number * (_WIDTH + _BETWEEN)
        box = (left / size[0], _BOTTOM / size[1], _WIDTH / size[0], _HEIGHT / size[1])
        axes = figure.add_axes(box)
        frame(axes, x_labels[place], "" if number else y_label, _FONT)
        if number:
            axes.tick_params(labelleft=False)
        _draw_panel(axes, drawn, place, limits)
    if axes is not None:
        _write_names(axes, drawn, limits)
    save(figure, path)


def _styled(curves: Sequence[Curve]) -> list[_Drawn]:
    found, adaptive = [], 0
    for one in curves:
        if one.kind == "adaptive":
            looks: tuple[str, Any, str] = (
                _COLOURS[adaptive % len(_COLOURS)], "-", _ADAPTIVE[adaptive % len(_ADAPTIVE)],
            )  # fmt: skip
            adaptive += 1
        else:
            looks = _OTHERS[one.kind]
        found.append(_Drawn(one, *looks))
    return found


_Range = tuple[float, float]


def _draw_panel(axes: Axes, drawn: Sequence[_Drawn], place: int, y_limits: _Range) -> None:
    x_limits = scale_ends([m.x[place] for one in drawn for m in one.curve.marks], 0.05, 0.05)
    axes.set_xlim(*x_limits)
    axes.set_ylim(*y_limits)
    obstacles = Obstacles(_WIDTH * 72, _HEIGHT * 72)
    placed = []
    for one in drawn:
        marks = [m for m in one.curve.marks if math.isfinite(m.x[place]) and math.isfinite(m.y)]
        order = 3.0 if one.curve.kind == "adaptive" else 2.0
        axes.plot([m.x[place] for m in marks], [m.y for m in marks], zorder=order, **one.looks())
        points = [
            (_part(m.x[place], x_limits) * _WIDTH * 72, _part(m.y, y_limits) * _HEIGHT * 72)
            for m in marks
        ]
        if one.dash:
            obstacles.add_line(points)
        else:
            for point in points:
                obstacles.add_line([point])
        placed.append((one, marks, points))
    # Ours first: where there is no room, it is the others that go without.
    for one, marks, points in sorted(placed, key=lambda held: held[0].curve.kind != "adaptive"):
        for mark, point in zip(marks, points, strict=True):
            if mark.label:
                _write_mark(axes, obstacles, mark.label, point, darker(one.colour))


def _write_mark(
    axes: Axes, obstacles: Obstacles, label: str, point: tuple[float, float], colour: str
) -> None:
    box = obstacles.place(*point, text_width(label, _SMALL) * 72, _SMALL * 0.95, insist=False)
    if box is None:
        return
    axes.text(
        (box.left + box.right) / 2 / (_WIDTH * 72), (box.low + box.high) / 2 / (_HEIGHT * 72),
        label, transform=axes.transAxes, ha="center", va="center_baseline", fontsize=_SMALL,
        color=colour, parse_math=False, zorder=4,
    )  # fmt: skip


def _write_names(axes: Axes, drawn: Sequence[_Drawn], y_limits: _Range) -> None:
    """Write each name behind a piece of its line, as high as its last point if there is room."""
    texts = [_broken(one.curve.name) for one in drawn]
    heights = [((text.count("\n") + 1) * _LINE + 3.5) / 72 / _HEIGHT for text in texts]
    wanted = [_part(one.curve.marks[-1].y, y_limits) for one in drawn]
    places = spread(wanted, heights, -0.15, 1.12)
    start = 1.0 + _GAP / _WIDTH
    for one, text, place in zip(drawn, texts, places, strict=True):
        ends = [start, start + _SAMPLE / 2 / _WIDTH, start + _SAMPLE / _WIDTH]
        axes.plot(
            ends, [place] * 3, transform=axes.transAxes, clip_on=False, markevery=[1], **one.looks()
        )
        axes.text(
            ends[2] + 0.08 / _WIDTH, place, text, transform=axes.transAxes, va="center",
            fontsize=_FONT, color=darker(one.colour), parse_math=False, linespacing=1.1,
        )  # fmt: skip


def _part(value: float, limits: _Range) -> float:
    return (value - limits[0]) / (limits[1] - limits[0])


def _broken(name: str) -> str:
    text = shortened(drawable(name), _LONGEST)
    return "\n".join(textwrap.wrap(text, _LETTERS, break_on_hyphens=False)) or text


_ADVICE = "Name the file, or the folder, that `nmtgrid adaptive-tune --out` wrote."
_MEGA = 1e6
_SETTINGS = {
    "beam": "beam",
    "precision": "precision",
    "exits": "number of exits",
    "budget": "budget width",
    "split": "split tuned on",
}
"""What tunings must have alike to stand in one picture, and how it is called."""


@dataclasses.dataclass(frozen=True)
class OperatingPoint:
    """A way to decode: BLEU (percent), average exit, FLOPs a token, seconds, the split's budget.

    Exit and FLOPs are NaN where they are not known: those of a decoder that has no blocks.
    `share` is the time over that of the full stack, which was decoded in turn with it; `rank` is
    BLEU on the split that was tuned on, by which points of one budget are chosen.
    """

    label: str
    budget: float
    rank: float
    bleu: float
    average_exit: float
    flops: float
    seconds: float
    share: float


@dataclasses.dataclass(frozen=True)
class TuningResult:
    """The points of one tuning by kind, on the split that it reports.

    `settings` are those that tunings must have alike to be compared, as text; one may be missing.
    """

    name: str
    split: str
    sentences: int
    groups: Mapping[Kind, Sequence[OperatingPoint]]
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def search(self) -> str:
        """How was searched: "greedy" or "beam N"; nothing where it is not known."""
        beam = self.settings.get("beam")
        return "" if beam is None else "greedy" if beam == "1" else f"beam {beam}"


def read_tuning(path: Path, name: str | None = None) -> TuningResult:
    """Return what a file or folder holds; `name` renames it.

    Raises InputError for what is no result of a tuning, StorageError for no file.
    """
    return read_result_file(
        path,
        lambda values: parse_tuning(values, name),
        content="results of adaptive-tune",
        advice=_ADVICE,
    )


def parse_tuning(values: Mapping[str, Any], name: str | None = None) -> TuningResult:
    """Return the points of a report, of its test split where there is one."""
    tested = values["test_split"] is not None
    full = _shown(values["full"], tested)["seconds"]
    groups: dict[Kind, list[OperatingPoint]] = {
        "adaptive": [_point(row, f"{row['budget']:g}", tested, full) for row in values["points"]],
        "fixed": [_point(row, str(row["exit"]), tested, full) for row in values["fixed"]],
        "baseline": [
            _point(row, "" if row["depth"] is None else str(row["depth"]), tested, full)
            for row in values["baselines"]
        ],
        "uniform": [_point(values["uniform"], "", tested, full)] if values["uniform"] else [],
    }
    return TuningResult(
        str(name or values["name"]),
        str(values["test_split"] if tested else values["split"]),
        int(values["test_sentences"] if tested else values["sentences"]),
        groups,
        {name: _told(values[name]) for name in _SETTINGS if values.get(name) is not None},
    )


def check_alike(found: Sequence[TuningResult]) -> None:
    """Raise ConfigError unless tunings report the same sentences and were measured alike."""
    splits = sorted({f"{one.split} ({one.sentences:,} sentences)" for one in found})
    if len(splits) > 1:
        raise ConfigError(
            f"These tunings report different splits: {', '.join(splits)}.",
            "Compare what was measured on the same sentences.",
        )
    faults = []
    for name, title in _SETTINGS.items():
        by_value: dict[str, str] = {}
        for one in found:
            if name in one.settings:
                by_value.setdefault(one.settings[name], one.name)
        if len(by_value) > 1:
            told = ", ".join(f"{value} (`{whose}`)" for value, whose in by_value.items())
            faults.append(f"These tunings differ in their {title}: {told}.")
    if faults:
        raise ConfigError(faults, "Compare what was tuned and measured alike.")


def exit_curves(found: Sequence[TuningResult], *, seconds: bool) -> list[Curve]:
    """Return a curve for each name; those of one name are pooled, the best for each budget.

    The third place of a mark is seconds, or else percent of the full stack's time. Fixed exits,
    the random one and baselines are those of the first tuning that has them.
    """
    drawn: list[Curve] = []
    for name in dict.fromkeys(one.name for one in found):
        own = [point for one in found if one.name == name for point in one.groups["adaptive"]]
        drawn.append(Curve(name, "adaptive", _marks(best_of(own), seconds)))
    names: dict[Kind, str] = {
        "fixed": "fixed exits, 1 to N",
        "uniform": "random exits",
        "baseline": "decoders trained separately",
    }
    for kind, title in names.items():
        points = next((one.groups[kind] for one in found if one.groups[kind]), [])
        drawn.append(Curve(title, kind, _marks(points, seconds)))
    return [one for one in drawn if one.marks]


def best_of(points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    """Return for each budget the point that was best where it was tuned, by average exit."""
    best: dict[float, OperatingPoint] = {}
    for one in points:
        if one.budget not in best or one.rank > best[one.budget].rank:
            best[one.budget] = one
    return sorted(best.values(), key=lambda one: one.average_exit)


def _marks(points: Sequence[OperatingPoint], seconds: bool) -> list[Mark]:
    return [
        Mark(
            (one.average_exit, one.flops / _MEGA, one.seconds if seconds else 100 * one.share),
            one.bleu,
            one.label,
        )
        for one in points
    ]


def _shown(row: Mapping[str, Any], tested: bool) -> Mapping[str, Any]:
    found: Mapping[str, Any] = row["test"] if tested else row
    return found


def _point(row: Mapping[str, Any], label: str, tested: bool, full: float) -> OperatingPoint:
    shown = _shown(row, tested)
    return OperatingPoint(
        label,
        float(row.get("budget", math.nan)),
        float(row["bleu"]),
        float(shown["bleu"]),
        _number(shown["average_exit"]),
        _number(shown["flops_per_token"]),
        float(shown["seconds"]),
        float(shown["seconds"]) / max(full, 1e-9),
    )


def _told(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


_TEXT = """Depth-adaptive decoding: tokens leave the decoder behind different blocks. BLEU is \
tokenised, in percent, on {split}; the average exit is in blocks per token, operations are those \
of the decoder in MFLOPs per token, and time is a share of the full stack's, which was decoded in \
turn with it. Tunings of one name are pooled: the best of each budget where it was tuned."""


def tuning_section(found: Sequence[TuningResult]) -> Section:
    """Return the points of all tunings in one table and picture.

    Raises ConfigError unless they report the same sentences and were measured alike.
    """
    check_alike(found)
    first = next((one for one in found if one.search), found[0])
    how = f", {first.search}" if first.search else ""
    split = f"{first.split} ({first.sentences:,} sentences){how}"
    rows = _rows(found)

    def draw(path: Path) -> None:
        draw_exit_curves(
            exit_curves(found, seconds=False),
            path,
            title=f"Early exit, {first.split}{how}: quality against cost",
            x_labels=[
                "average exit (blocks per token)",
                "decoder's operations (MFLOPs per token)",
                "time (percent of the full stack's)",
            ],
            y_label="BLEU, tokenised (percent)",
        )

    table = Table(
        f"{split}; BLEU tokenised (percent); average exit in blocks per token; MFLOPs of the "
        "decoder per token;\ntime in percent of the full stack's, which was decoded in turn",
        ["", "", "BLEU", "exit", "MFLOPs", "time"],
        [
            [row["system"], row["label"], row["bleu"], row["average_exit"],
             _mega(row["flops_per_token"]), 100 * row["share"]]
            for row in rows
        ],
    )  # fmt: skip
    return Section(
        "depth",
        "Early exit: quality against cost",
        _TEXT.format(split=split),
        [table],
        [Picture("depth", "BLEU against average exit, operations and time.", draw)],
        {"split": found[0].split, "rows": rows},
    )


def _rows(found: Sequence[TuningResult]) -> list[dict[str, Any]]:
    """Return a row for each point that is drawn; None stands for what is not known of it."""
    rows = []
    for name in dict.fromkeys(one.name for one in found):
        own = [point for one in found if one.name == name for point in one.groups["adaptive"]]
        rows += [(name, point) for point in best_of(own)]
    for kind in ("fixed", "uniform", "baseline"):
        points = next((one.groups[kind] for one in found if one.groups[kind]), [])
        rows += [(kind, point) for point in points]
    return [
        {
            "system": name,
            "label": point.label,
            "bleu": point.bleu,
            "average_exit": _known(point.average_exit),
            "seconds": point.seconds,
            "share": point.share,
            "flops_per_token": _known(point.flops),
        }
        for name, point in rows
    ]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _mega(value: float | None) -> float | None:
    return None if value is None else value / 1e6
