"""Keys and values of the source for a decoder whose blocks may never be reached."""

from __future__ import annotations

import dataclasses

from torch import Tensor
from torch.nn.functional import pad

from nmtgrid.layers.source_cache import SourceMemory
from nmtgrid.layers.transformer.attention import SourceProjection


@dataclasses.dataclass(frozen=True)
class LazyMemory(SourceMemory):
    """A memory that makes a block's keys and values when they are first read.

    `states` are the source's [B, S, D'], one for all blocks or one for each; `made` holds the
    keys and values of the blocks that have been read. `zeros` columns of zeros stand before them.
    """

    projection: SourceProjection = dataclasses.field(kw_only=True)
    states: tuple[Tensor, ...] = dataclasses.field(kw_only=True)
    made: dict[int, tuple[Tensor, Tensor]] = dataclasses.field(kw_only=True)
    zeros: int = dataclasses.field(default=0, kw_only=True)

    @classmethod
    def over(
        cls, projection: SourceProjection, states: Tensor | list[Tensor], mask: Tensor | None
    ) -> LazyMemory:
        """Return the memory of `states`, nothing of which has been read."""
        held = (states,) if isinstance(states, Tensor) else tuple(states)
        return cls((), (), mask, projection=projection, states=held, made={})

    def keys_of(self, place: int) -> Tensor:
        """Return the keys [B, H, S, d] of attention `place`."""
        return self._pair(place)[0]

    def values_of(self, place: int) -> Tensor:
        """Return the values [B, H, S, d] of attention `place`."""
        return self._pair(place)[1]

    def led_by_zero(self) -> LazyMemory:
        """Return the memory behind one more column, whose keys and values are zero."""
        mask = None if self.mask is None else pad(self.mask, (1, 0))
        return dataclasses.replace(
            self, made={}, mask=mask, lead=self.lead + 1, zeros=self.zeros + 1
        )

    def ready(self) -> LazyMemory:
        """Return itself: whatever is made is contiguous."""
        return self

    def written(self, rows: Tensor, part: SourceMemory) -> SourceMemory:
        """Return the memory, all of it made, with `rows` [R'] replaced by those of `part`."""
        keys, values = zip(*(self._pair(p) for p in range(self.projection.blocks)), strict=True)
        whole = SourceMemory(keys, values, self.mask, self.width, self.lead)
        return whole.written(rows, part)

    def take_rows(self, rows: Tensor) -> LazyMemory:
        """Return the memory of `rows` [R']: nothing is copied while rows stay with theirs."""
        kept, width = self._kept(rows)
        if kept is None:
            return dataclasses.replace(self, width=width)
        is_whole = len(self.made) == self.projection.blocks
        return dataclasses.replace(
            self,
            mask=None if self.mask is None else self.mask.index_select(0, kept),
            width=width,
            states=() if is_whole else tuple(s.index_select(0, kept) for s in self.states),
            made={
                place: (keys.index_select(0, kept), values.index_select(0, kept))
                for place, (keys, values) in self.made.items()
            },
        )

    def _pair(self, place: int) -> tuple[Tensor, Tensor]:
        found = self.made.get(place)
        if found is None:
            states = self.states[place if len(self.states) > 1 else 0]
            keys, values = self.projection.one(place, states)
            lead = (0, 0, self.zeros, 0)
            found = pad(keys, lead).contiguous(), pad(values, lead).contiguous()
            self.made[place] = found
        return found
