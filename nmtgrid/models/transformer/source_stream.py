"""What a uni-directional encoder keeps of a source that still arrives: a column more at each READ.

Encoder and decoder caches grow in place; no state is computed twice.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from nmtgrid.layers.source_cache import SourceMemory
from nmtgrid.layers.transformer.kv_cache import TokenCache


@dataclasses.dataclass(frozen=True)
class SourceStream:
    """Caches of the source read so far, of which the decoder may look at `is_seen` [R, S].

    `encoder` holds what later source tokens attend to, `decoder` what target tokens do; the first
    `lead` columns stand before the source.
    """

    is_seen: Tensor
    encoder: TokenCache
    decoder: TokenCache
    lead: int

    def grown(self, column: SourceMemory, is_seen: Tensor) -> SourceStream:
        """Return the stream with one column more, [R, H, 1, d] for each attention."""
        for place, (keys, values) in enumerate(zip(column.keys, column.values, strict=True)):
            self.decoder.push(place, keys[:, :, 0], values[:, :, 0])
        self.decoder.advance()
        return dataclasses.replace(self, is_seen=torch.cat([self.is_seen, is_seen[:, None]], 1))

    def memory(self) -> SourceMemory:
        """Return what has been read, as the decoder reads it."""
        pairs = [self.decoder.read(place) for place in range(self.decoder.blocks)]
        mask = None
        if not bool(self.is_seen.all()):
            mask = pairs[0][0].new_zeros(self.is_seen.shape)
            mask = mask.masked_fill_(~self.is_seen, -math.inf)[:, None, None, :]
        keys, values = zip(*pairs, strict=True)
        return SourceMemory(keys, values, mask, lead=self.lead)
