"""Keys and values of the source for a decoder whose blocks may never be reached."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.transformer.attention import AttentionMaps, SourceProjection
from nmtgrid.layers.transformer.blocks import DecoderBlock
from nmtgrid.layers.transformer.kv_cache import KVCache


class ExitKVProjection:
    """The self-attentions' maps of a decoder as its parameters are now, made when first needed.

    In autocast they are held in its type, so that no step converts them.
    """

    def __init__(self, blocks: Sequence[DecoderBlock]) -> None:
        self.blocks = blocks
        self._maps: dict[int, AttentionMaps] = {}
        self._fused: tuple[Tensor, Tensor] | None = None

    def of(self, place: int) -> AttentionMaps:
        """Return the maps of block `place`."""
        found = self._maps.get(place)
        if found is None:
            held = self.blocks[place].self_attention.input_map
            size = held.in_features
            parts = held.weight[:size], held.bias[:size], held.weight[size:], held.bias[size:]
            found = self._maps[place] = AttentionMaps(*map(_converted, parts))
        return found

    def copy(self, features: Tensor, cache: KVCache, first: int) -> None:
        """Write the keys and values of features [R, D] in block `first` and all behind it.

        Where blocks normalise before their sub-layers, what their norms scale and add is folded
        into the maps, and the rest of the norm, the same for all, is done once.
        """
        if self._fused is None:
            parts = [self._folded(block) for block in self.blocks]
            weights, biases = zip(*parts, strict=True)
            self._fused = _converted(torch.cat(weights)), _converted(torch.cat(biases))
        weight, bias = self._fused
        block = self.blocks[first]
        if not block.add_self.is_post:
            norm = block.add_self.norm
            features = torch.nn.functional.layer_norm(
                features.to(norm.weight.dtype), norm.normalized_shape, eps=norm.eps
            ).to(features.dtype)
        begin = first * 2 * features.shape[1]
        both = linear(features, weight[begin:], bias[begin:])
        heads = block.self_attention.heads
        shaped = both.view(len(features), len(self.blocks) - first, 2, heads, -1)
        keys, values = shaped.permute(2, 0, 3, 1, 4).unbind(0)
        cache.push_rest(first, keys, values)

    def take_rows(self, rows: Tensor) -> ExitKVProjection:
        """Return itself: it has no rows."""
        return self

    def _folded(self, block: DecoderBlock) -> tuple[Tensor, Tensor]:
        """Return the block's map [2D, D] to keys and values, and its bias [2D]."""
        held, norm = block.self_attention.input_map, block.add_self.norm
        size = held.in_features
        weight, bias = held.weight[size:], held.bias[size:]
        if block.add_self.is_post:
            return weight, bias
        return weight * norm.weight, bias + weight @ norm.bias


def _converted(tensor: Tensor) -> Tensor:
    device = tensor.device.type
    if not torch.is_autocast_enabled(device) or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


@dataclasses.dataclass(frozen=True)
class LazySourceCache(SourceCache):
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
    ) -> LazySourceCache:
        """Return the memory of `states`, nothing of which has been read."""
        held = (states,) if isinstance(states, Tensor) else tuple(states)
        return cls((), (), mask, projection=projection, states=held, made={})

    def keys_of(self, place: int) -> Tensor:
        """Return the keys [B, H, S, d] of attention `place`."""
        return self._pair(place)[0]

    def values_of(self, place: int) -> Tensor:
        """Return the values [B, H, S, d] of attention `place`."""
        return self._pair(place)[1]

    def led_by_zero(self) -> LazySourceCache:
        """Return the memory behind one more column, whose keys and values are zero."""
        mask = None if self.mask is None else pad(self.mask, (1, 0))
        return dataclasses.replace(
            self, made={}, mask=mask, lead=self.lead + 1, zeros=self.zeros + 1
        )

    def ready(self) -> LazySourceCache:
        """Return itself: whatever is made is contiguous."""
        return self

    def written(self, rows: Tensor, part: SourceCache) -> SourceCache:
        """Return the memory, all of it made, with `rows` [R'] replaced by those of `part`."""
        keys, values = zip(*(self._pair(p) for p in range(self.projection.blocks)), strict=True)
        whole = SourceCache(keys, values, self.mask, self.width, self.lead)
        return whole.written(rows, part)

    def take_rows(self, rows: Tensor) -> LazySourceCache:
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
