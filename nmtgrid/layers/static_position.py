"""A position that is a tensor, so that one recorded step serves every position.

What is recorded holds addresses and no numbers: a step that is to be replayed reads its position
from memory. Whoever replays it moves the place first.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor


class RingIndex:
    """Where the newest row goes in a ring of `span` rows, and which tap reads each of them."""

    def __init__(self, span: int, device: torch.device) -> None:
        self.span = span
        self.slot = torch.zeros(1, dtype=torch.long, device=device)
        """[1]: the row that is written now."""
        self.taps = torch.zeros(span, dtype=torch.long, device=device)
        """[span]: the tap of each row, the last one being that of the newest row."""
        slots = torch.arange(span, device=device)
        self._taps_of = span - 1 - (slots[:, None] - slots[None, :]) % span

    def move(self, position: int) -> None:
        """Point to the row of `position`."""
        slot = position % self.span
        self.slot.fill_(slot)
        self.taps.copy_(self._taps_of[slot])


class StaticPosition:
    """The position [1] of the tokens that a step is fed, the same in all rows."""

    def __init__(self, device: torch.device) -> None:
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        self.position = 0
        self._rings: dict[int, RingIndex] = {}

    def move(self, position: int) -> None:
        """Go to `position`; nothing waits for the device."""
        self.position = position
        self.at.fill_(position)
        for ring in self._rings.values():
            ring.move(position)

    def ring(self, span: int) -> RingIndex:
        """Return the ring of `span` rows, which moves with the place."""
        if span not in self._rings:
            self._rings[span] = RingIndex(span, self.at.device)
            self._rings[span].move(self.position)
        return self._rings[span]

    def take_rows(self, rows: Tensor) -> Self:
        """Return the same place: it has no rows."""
        return self


Position = int | StaticPosition
