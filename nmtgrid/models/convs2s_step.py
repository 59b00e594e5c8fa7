"""ConvS2S one token at a time: weights made ready once, windows of inputs kept for each layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from nmtgrid.layers.convolution import NormalisedMap, WindowCache
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.source_cache import SourceMemory
from nmtgrid.models.api import Classifier
from nmtgrid.models.convs2s_layers import GAMMA, DecoderLayer

Affine = tuple[Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class ReadyLayer:
    """A decoder layer's weights as a step applies them: normalised, with all factors in them."""

    convolution: Affine
    query: Tensor
    """[C, e]"""
    output: Affine


@dataclasses.dataclass(frozen=True)
class ReadyDecoder:
    """The weights of all steps, made once for each search and shared by all rows."""

    enter: Affine
    layers: tuple[ReadyLayer, ...]
    query_biases: Tensor
    """[N, 1, e]"""
    leave: Affine
    classifier: tuple[Tensor, Tensor | None]
    kernel: int
    scale: float
    """What multiplies the products of queries and keys."""
    spans_attention: bool
    """Whether a layer's residual sum spans its attention."""

    @classmethod
    def make(
        cls,
        enter: NormalisedMap,
        layers: Sequence[DecoderLayer],
        leave: NormalisedMap,
        held: Classifier,
        dtype: torch.dtype,
    ) -> ReadyDecoder:
        """Return the weights of a decoder and its classifier in `dtype`."""
        biases = torch.stack([layer.query_map.bias for layer in layers]) * GAMMA
        return cls(
            enter.ready(1.0, dtype),
            tuple(_ready_layer(layer, dtype) for layer in layers),
            biases.to(dtype)[:, None],
            leave.ready(1.0, dtype),
            (held.weight.to(dtype), None if held.bias is None else held.bias.to(dtype)),
            layers[0].convolution.kernel,
            layers[0].scale,
            layers[0].spans_attention,
        )

    def take_rows(self, rows: Tensor) -> ReadyDecoder:
        """Return the same weights: they have no rows."""
        return self

    def logits(
        self,
        embedded: Tensor,
        cache: WindowCache | None,
        memory: SourceMemory,
        alignment: Literal["average", "last"] | None,
    ) -> tuple[Tensor, WindowCache, Tensor | None]:
        """Return logits [R, V], the cache and the alignment asked for [R, S].

        embedded [R, e] are the vectors of the last tokens; the first step has no cache.
        """
        embedded = embedded.to(self.query_biases.dtype)
        queries = torch.add(self.query_biases, embedded, alpha=GAMMA)
        h = linear(embedded, *self.enter)
        cache = cache or WindowCache.empty(h, len(self.layers), self.kernel)
        cache.advance()
        found: list[Tensor] = []
        for place, layer in enumerate(self.layers):
            gated = nn.functional.glu(linear(cache.push(place, h), *layer.convolution), -1)
            if not self.spans_attention:
                gated.add_(h, alpha=GAMMA)
            query = torch.addmm(queries[place], gated, layer.query)[:, None]
            read = memory.attend(0, query, scale=self.scale)[:, 0]
            if alignment == "average" or (alignment and place == len(self.layers) - 1):
                found.append(memory.weights(0, query, scale=self.scale)[:, 0])
            mapped = linear(read, *layer.output)
            if self.spans_attention:
                h = mapped.add_(gated).add_(h, alpha=GAMMA)
            else:
                h = mapped.add_(gated, alpha=GAMMA)
        logits = linear(linear(h, *self.leave), *self.classifier)
        return logits, cache, torch.stack(found).mean(0) if found else None


def _ready_layer(layer: DecoderLayer, dtype: torch.dtype) -> ReadyLayer:
    """Return the layer's weights with every gamma in them.

    The gated channels leave with the factor that they have in the layer's output: gamma, or its
    square where the residual sum spans the attention; the query's map allows for it.
    """
    passed = GAMMA**2 if layer.spans_attention else GAMMA
    of_query = GAMMA / passed if layer.spans_attention else GAMMA
    factors = torch.ones_like(layer.convolution.bias)
    factors[: len(factors) // 2] = passed
    return ReadyLayer(
        layer.convolution.ready(factors, dtype),
        layer.query_map.ready(of_query, dtype)[0].t(),
        layer.output_map.ready(passed, dtype),
    )
