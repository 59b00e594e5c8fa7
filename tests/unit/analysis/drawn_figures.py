"""Looks at figures as they are drawn: whether all that is written is inside and apart."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text


def drawn_figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Return a list to which each figure is added when it is written."""
    figures: list[Figure] = []
    write = Figure.savefig

    def savefig(figure: Figure, *arguments: Any, **options: Any) -> None:
        write(figure, *arguments, **options)
        figure.draw_without_rendering()
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def text_faults(figure: Figure) -> list[str]:
    """Return what is written beyond the page's edge, or over other upright text."""
    hidden: set[Any] = set()
    for axes in figure.findobj(Axes):
        assert isinstance(axes, Axes)
        for axis in (axes.xaxis, axes.yaxis):
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            # Ticks beyond the ends of a scale are there, but not drawn.
            low, high = sorted(axis.get_view_interval())
            for tick in ticks:
                if not low <= tick.get_loc() <= high or not axes.axison:
                    hidden |= {tick.label1, tick.label2}
    texts = [
        (text.get_text(), text.get_window_extent(), text.get_rotation() % 90)
        for text in figure.findobj(Text)
        if isinstance(text, Text)
        and text not in hidden
        and text.get_visible()
        and text.get_text().strip()
    ]
    width, height = figure.bbox.size
    faults = [
        f"outside: {text}"
        for text, box, _ in texts
        if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1
    ]
    for position, (text, box, turned) in enumerate(texts):
        for other, other_box, other_turned in texts[position + 1 :]:
            # Letters have air above and below: boxes may touch.
            is_over = (
                min(box.x1, other_box.x1) - max(box.x0, other_box.x0) > 1.5
                and min(box.y1, other_box.y1) - max(box.y0, other_box.y0) > 2.5
            )
            if is_over and not turned and not other_turned:
                faults.append(f"over each other: {text}, {other}")
    return faults
