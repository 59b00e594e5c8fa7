"""Where to write what a point is: beside it, and on no line and no other writing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise

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
