"""Draws the figures of docs/explained.md as SVG: `python -m docs.drawings`.

Only this script writes these figures; a test compares its output with the files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

PICTURES = Path(__file__).resolve().parent / "pictures"
SOURCE = ("Er", "roltet", "das", "Bein", "ab", ".")
TARGET = ("&lt;s&gt;", "Il", "doste", "la", "bene")
NEXT = ("Il", "doste", "la", "bene", ".")
CELL = 44
INK, FAINT, BLUE, PALE, RED, WHITE = (
    "#1f2a44", "#c3cad9", "#3f51b5", "#dfe3f5", "#d1495b", "#ffffff",
)  # fmt: skip


def text(x: float, y: float, words: str, *, anchor: str = "middle", color: str = INK,
         size: int = 14, weight: str = "normal") -> str:  # fmt: skip
    """Return a line of text, centred vertically on `y`."""
    return (
        f'<text x="{x:g}" y="{y + size * 0.35:g}" text-anchor="{anchor}" fill="{color}" '
        f'font-size="{size}" font-weight="{weight}">{words}</text>'
    )


def cell(x: float, y: float, fill: str, stroke: str = FAINT) -> str:
    """Return a cell of a grid whose upper left corner is (x, y)."""
    return (
        f'<rect x="{x + 1:g}" y="{y + 1:g}" width="{CELL - 2}" height="{CELL - 2}" rx="4" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def arrow(points: Sequence[tuple[float, float]], color: str = INK, width: float = 2) -> str:
    """Return an arrow along `points`."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width:g}" '
        f'stroke-linejoin="round" marker-end="url(#{_marker(color)})"/>'
    )


def _marker(color: str) -> str:
    return f"head-{color.removeprefix('#')}"


def drawing(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """Return an SVG on a light panel, readable on light and dark pages."""
    markers = "".join(
        f'<marker id="{_marker(color)}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{color}"/></marker>'
        for color in (INK, BLUE, RED)
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" font-family="sans-serif">\n'
        f"<title>{title}</title>\n<defs>{markers}</defs>\n"
        f'<rect width="{width}" height="{height}" rx="10" fill="#f7f8fc"/>\n{body}\n</svg>\n'
    )


def _labelled_grid(left: float, top: float, fill: Callable[[int, int], str]) -> list[str]:
    """Return a grid of TARGET by SOURCE labelled with words; `fill(t, j)` colours a cell."""
    parts = [text(left + (j + 0.5) * CELL, top - 16, w, size=13) for j, w in enumerate(SOURCE)]
    parts += [
        text(left - 12, top + (t + 0.5) * CELL, word, anchor="end", size=13)
        for t, word in enumerate(TARGET)
    ]
    parts += [
        cell(left + j * CELL, top + t * CELL, fill(t, j))
        for t in range(len(TARGET)) for j in range(len(SOURCE))
    ]  # fmt: skip
    return parts


def grid() -> str:
    """Return the figure of the grid: a cell for each pair of words, pooled along the source."""
    left, top, row = 110, 86, 2
    right, y = left + len(SOURCE) * CELL, top + (row + 0.5) * CELL

    def fill(t: int, j: int) -> str:
        return BLUE if (t, j) == (row, 3) else PALE if t == row else WHITE

    parts = [
        text(left + len(SOURCE) * CELL / 2, 24, "source", color=BLUE, weight="bold"),
        text(38, 56, "target so far", anchor="start", color=BLUE, weight="bold", size=13),
        *_labelled_grid(left, top, fill),
        text(left + 3.5 * CELL, y, "t, j", color=WHITE, size=13),
    ]
    for t, word in enumerate(NEXT):
        color = RED if t == row else "#8a93a8"
        middle = top + (t + 0.5) * CELL
        parts.append(arrow([(right + 8, middle), (right + 92, middle)], RED if t == row else INK))
        parts.append(text(right + 102, middle, word, anchor="start", color=color, weight="bold"))
    parts += [
        text(right + 48, y - 12, "pool", color=RED, size=12),
        text(right + 104, 56, "next word", anchor="start", color=BLUE, weight="bold", size=13),
    ]
    return drawing(560, 330, "The source-target grid", parts)


KERNEL = 5


def is_live(row: int, column: int, *, source_causal: bool) -> bool:
    """Return whether a tap is used, Eq. (3.2); (0, 0) is the output cell."""
    return row <= 0 and (column <= 0 or not source_causal)


def masked_filter() -> str:
    """Return the figure of the masked filter, offline and simultaneous."""
    parts, half = [], KERNEL // 2
    heads = (
        ("offline", "the whole source is known"),
        ("simultaneous", "the source to the right is unread"),
    )
    for panel, (name, note) in enumerate(heads):
        left, top = 50 + panel * 300, 76
        parts.append(text(left + 2.5 * CELL, 24, name, color=BLUE, weight="bold"))
        parts.append(text(left + 2.5 * CELL, 46, note, size=12))
        for row in range(-half, half + 1):
            for column in range(-half, half + 1):
                x, y = left + (column + half) * CELL, top + (row + half) * CELL
                live = is_live(row, column, source_causal=bool(panel))
                fill = RED if row == column == 0 else BLUE if live else WHITE
                parts.append(cell(x, y, fill))
                if not live:
                    parts.append(text(x + CELL / 2, y + CELL / 2, "0", color="#8a93a8"))
        parts.append(text(left + 2.5 * CELL, top + 5 * CELL + 20, "source position →", size=12))
    parts.append(
        f'<g transform="translate(30 {76 + 2.5 * CELL:g}) rotate(-90)">'
        + text(0, 0, "← target position", size=12) + "</g>"
    )  # fmt: skip
    return drawing(620, 340, "The masked filter", parts)


def wait_k_reads(k: int, source: int, target: int) -> list[int]:
    """Return the number of source words read before each target word, Eq. (4.25)."""
    return [min(k + t, source) for t in range(target)]


def path() -> str:
    """Return the figure of a wait-2 path of READ and WRITE over the grid."""
    left, top = 110, 110
    reads = wait_k_reads(2, len(SOURCE), len(TARGET))

    def fill(t: int, j: int) -> str:
        return PALE if j < reads[t] else WHITE

    parts = [
        text(20, 26, "READ: one source word", anchor="start", color=BLUE, weight="bold", size=13),
        text(220, 26, "WRITE: one target word", anchor="start", color=RED, weight="bold", size=13),
        text(20, 50, "wait-2: read two words, then write and read in turn", anchor="start",
             size=13),
        *_labelled_grid(left, top, fill),
    ]  # fmt: skip
    position = 0
    for t, count in enumerate(reads):
        y = top + (t + 0.5) * CELL
        while position < count:
            x = left + (position - 0.5) * CELL
            start = x + 8 if position else left + 4
            parts.append(arrow([(start, y), (x + CELL - 4, y)], BLUE, 3))
            position += 1
        x = left + (position - 0.5) * CELL
        parts.append(arrow([(x, y + 6), (x, y + CELL - 6)], RED, 3))
        word = left + len(SOURCE) * CELL
        parts.append(text(word + 14, y, f"write “{NEXT[t]}”", anchor="start", color=RED, size=13))
    return drawing(560, 362, "A READ/WRITE path", parts)


DRAWINGS = {"grid.svg": grid, "filter.svg": masked_filter, "path.svg": path}


def main() -> int:
    """Write the figures."""
    for name, draw in DRAWINGS.items():
        (PICTURES / name).write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
