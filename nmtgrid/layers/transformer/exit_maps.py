"""Maps of self-attention in parts, for decoders that rows may leave early.

A row that leaves after block n still owes the blocks behind it keys and values, those of the state
it left with: later tokens attend to them. Where no row goes on, the maps of all these blocks are
one product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.transformer.attention import AttentionMaps
from nmtgrid.layers.transformer.blocks import DecoderBlock
from nmtgrid.layers.transformer.kv_cache import TokenCache


class ExitMaps:
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

    def copy(self, features: Tensor, cache: TokenCache, first: int) -> None:
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

    def take_rows(self, rows: Tensor) -> ExitMaps:
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
