"""Names of lines in a diagram: broken, shortened, and moved apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
