"""The layers of ConvS2S: gated convolutions, and attention to the source in the decoder."""

from __future__ import annotations

import dataclasses
import math

from torch import Tensor, nn

from nmtgrid.layers.attention import attend, attention_weights
from nmtgrid.layers.convolution import GatedConvolution, NormalisedMap
from nmtgrid.layers.kernels.dropout import residual_dropout
from nmtgrid.layers.kernels.gated_conv import Window
from nmtgrid.models.convs2s_config import ConvS2SConfig

GAMMA = math.sqrt(0.5)


@dataclasses.dataclass(frozen=True)
class Source:
    """The encoded source: keys and values [B, 1, S, e], and the mask of its padding or None."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None


class EncoderLayer(nn.Module):
    """A centred gated convolution with its residual sum, Eq. (2.32)-(2.34)."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        self.convolution = _convolution(config)

    def forward(self, h: Tensor, window: Window) -> Tensor:
        """Return the next layer's input [B, S, C]."""
        found: Tensor = self.convolution(h, window, GAMMA)
        return found


class DecoderLayer(nn.Module):
    """A causal gated convolution, then attention to the source, Eq. (2.36)-(2.38)."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        self.spans_attention = config.residual == "layer"
        self.convolution = _convolution(config)
        self.query_map = make_map(config, config.size, config.embedding_size)
        self.output_map = make_map(config, config.embedding_size, config.size)
        self.scale = attention_scale(config)

    def forward(
        self,
        h: Tensor,
        embedded: Tensor,
        source: Source,
        window: Window,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the next layer's input [B, T, C], for h [B, T, C] and H^0 `embedded` [B, T, e].

        All of one type. The attention's weights [B, T, S] are added to `weights` if it is given.
        """
        middle = self.convolution(h, window, None if self.spans_attention else GAMMA)
        query = add_scaled(embedded, self.query_map(middle))
        query = query[:, None]
        read = attend(query, source.keys, source.values, source.mask, scale=self.scale)[:, 0]
        if weights is not None:
            found = attention_weights(query, source.keys, source.mask, scale=self.scale)
            weights.append(found[:, 0])
        result = add_scaled(middle, self.output_map(read))
        return add_scaled(h, result) if self.spans_attention else result


def add_scaled(h: Tensor, added: Tensor) -> Tensor:
    """Return gamma (h + added), Eq. (2.34)."""
    return residual_dropout(h, added, 0.0, GAMMA, training=False)


def make_map(
    config: ConvS2SConfig, inputs: int, outputs: int, dropped: float = 0.0
) -> NormalisedMap:
    """Return an affine map of inputs of which a share `dropped` is dropped."""
    gain = 1.0 - dropped
    return NormalisedMap(inputs, outputs, normalise=config.weight_norm, variance_gain=gain)


def attention_scale(config: ConvS2SConfig) -> float:
    """Return the factor of the products of queries and keys."""
    return 1.0 if config.attention_scale == "none" else config.embedding_size**-0.5


def _convolution(config: ConvS2SConfig) -> GatedConvolution:
    return GatedConvolution(
        config.size, config.kernel, normalise=config.weight_norm, dropout=config.dropout
    )
