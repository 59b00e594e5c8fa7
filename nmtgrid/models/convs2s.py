"""ConvS2S (Gehring et al., 2017; thesis section 2.6.2): gated convolutions on both sides.

The decoder attends to the source in each of its layers: keys are the encoder's output S^N, values
are S^N + S^0, the same for all layers; the queries are projected into their space, so nothing of
the source is computed more than once. gamma is sqrt(1/2) throughout.

Training runs `EncoderLayer` and `DecoderLayer` over whole sequences. Decoding runs `ReadyDecoder`,
the same layers with weight normalisation and all factors gamma folded into their matrices: a step
is a few products of one row (benchmarks/decoding_speed.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.attention import attend, attention_weights, source_mask
from nmtgrid.layers.convolution import GatedConvolution, NormalisedProjection, WindowCache
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.kernels.dropout import dropout, residual_dropout
from nmtgrid.layers.kernels.gated_conv import Window
from nmtgrid.layers.kernels.linear import linear
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.models.api import (
    Classifier,
    PredictionSites,
    Report,
    Step,
    Traits,
    TranslationModel,
    numbered,
)
from nmtgrid.models.config_checks import first_alias
from nmtgrid.models.convs2s_config import ConvS2SConfig
from nmtgrid.models.cost_report import table_report
from nmtgrid.text.vocabulary import PAD

GAMMA = math.sqrt(0.5)


Source = tuple[Tensor, Tensor, Tensor | None]
"""The encoded source: keys and values [B, 1, S, e], and the mask of its padding or None."""


class EncoderLayer(nn.Module):
    """A centred gated convolution with its residual sum, Eq. (2.32)-(2.34)."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        self.convolution = _convolution(config)

    def forward(self, h: Tensor, window: Window) -> Tensor:
        states: Tensor = self.convolution(h, window, GAMMA)
        return states


class DecoderLayer(nn.Module):
    """A causal gated convolution, then attention to the source, Eq. (2.36)-(2.38)."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        self.spans_attention = config.residual == "layer"
        self.convolution = _convolution(config)
        self.query_map = make_map(config, config.size, config.embedding_size)
        self.output_map = make_map(config, config.embedding_size, config.size)
        # The factor of the products of queries and keys.
        self.scale = 1.0 if config.attention_scale == "none" else config.embedding_size**-0.5

    def forward(
        self,
        h: Tensor,
        embedded: Tensor,
        source: Source,
        window: Window,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the next layer's input [B, T, C], for h [B, T, C] and H^0 `embedded` [B, T, e].

        All have the same dtype. Attention weights [B, T, S] are appended to `weights`, if given.
        """
        # Eq. (2.36) sums around the convolution; the published system sums around convolution and
        # attention, below.
        middle = self.convolution(h, window, None if self.spans_attention else GAMMA)
        query = add_scaled(embedded, self.query_map(middle))
        query, (keys, values, mask) = query[:, None], source
        read = attend(query, keys, values, mask, scale=self.scale)[:, 0]
        if weights is not None:
            # Computed separately, because the fused attention returns no weights.
            attention = attention_weights(query, keys, mask, scale=self.scale)
            weights.append(attention[:, 0])
        result = add_scaled(middle, self.output_map(read))
        return add_scaled(h, result) if self.spans_attention else result


def add_scaled(h: Tensor, added: Tensor) -> Tensor:
    """Return gamma (h + added), Eq. (2.34)."""
    return residual_dropout(h, added, 0.0, GAMMA, training=False)


def make_map(
    config: ConvS2SConfig, inputs: int, outputs: int, dropped: float = 0.0
) -> NormalisedProjection:
    """Return an affine map whose inputs have a dropout rate of `dropped`."""
    # Dropout scales the remaining inputs, and thus the variance, by 1 / (1 - dropped); the
    # initialisation of Gehring et al. (2017) compensates for it.
    gain = 1.0 - dropped
    return NormalisedProjection(inputs, outputs, normalise=config.weight_norm, variance_gain=gain)


def _convolution(config: ConvS2SConfig) -> GatedConvolution:
    return GatedConvolution(
        config.size, config.kernel, normalise=config.weight_norm, dropout=config.dropout
    )


Affine = tuple[Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class ReadyLayer:
    """A decoder layer's weights prepared for steps: normalised and with all factors included."""

    convolution: Affine
    query: Tensor
    """[C, e]"""
    output: Affine


@dataclasses.dataclass(frozen=True)
class ReadyDecoder:
    """The weights for steps, prepared once for each search and shared by all rows."""

    enter: Affine
    layers: tuple[ReadyLayer, ...]
    query_biases: Tensor
    """[N, 1, e]"""
    leave: Affine
    classifier: tuple[Tensor, Tensor | None]
    kernel: int
    scale: float
    """Factor of the products of queries and keys."""
    spans_attention: bool
    """Whether a layer's residual sum spans its attention."""

    @classmethod
    def make(
        cls,
        enter: NormalisedProjection,
        layers: Sequence[DecoderLayer],
        leave: NormalisedProjection,
        classifier: Classifier,
        dtype: torch.dtype,
    ) -> ReadyDecoder:
        """Return the weights of a decoder and its classifier in `dtype`."""
        # All layers' queries contain gamma (bias + embedded token): one sum for all of them in each
        # step.
        biases = torch.stack([layer.query_map.bias for layer in layers]) * GAMMA
        bias = None if classifier.bias is None else classifier.bias.to(dtype)
        return cls(
            enter.scaled(1.0, dtype),
            tuple(_ready_layer(layer, dtype) for layer in layers),
            biases.to(dtype)[:, None],
            leave.scaled(1.0, dtype),
            (classifier.weight.to(dtype), bias),
            layers[0].convolution.kernel,
            layers[0].scale,
            layers[0].spans_attention,
        )

    def take_rows(self, rows: Tensor) -> ReadyDecoder:
        return self

    def logits(
        self,
        embedded: Tensor,
        cache: WindowCache | None,
        memory: SourceCache,
        alignment: Literal["average", "last"] | None,
    ) -> tuple[Tensor, WindowCache, Tensor | None]:
        """Return logits [R, V], the cache and the requested alignment [R, S].

        embedded [R, e] are the vectors of the last tokens; the first step has no cache.
        """
        embedded = embedded.to(self.query_biases.dtype)
        queries = torch.add(self.query_biases, embedded, alpha=GAMMA)
        h = linear(embedded, *self.enter)
        cache = cache or WindowCache.empty(h, len(self.layers), self.kernel)
        cache.advance()
        alignments: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            # The cache holds the last k inputs of a layer side by side, so the convolution of the
            # newest position is one product.
            gated = nn.functional.glu(linear(cache.push(index, h), *layer.convolution), -1)
            if not self.spans_attention:
                gated.add_(h, alpha=GAMMA)
            query = torch.addmm(queries[index], gated, layer.query)[:, None]
            read = memory.attend(0, query, scale=self.scale)[:, 0]
            if alignment == "average" or (alignment and index == len(self.layers) - 1):
                alignments.append(memory.weights(0, query, scale=self.scale)[:, 0])
            mapped = linear(read, *layer.output)
            # In place: nothing else uses the results of the products above.
            if self.spans_attention:
                h = mapped.add_(gated).add_(h, alpha=GAMMA)
            else:
                h = mapped.add_(gated, alpha=GAMMA)
        logits = linear(linear(h, *self.leave), *self.classifier)
        return logits, cache, torch.stack(alignments).mean(0) if alignments else None


def _ready_layer(layer: DecoderLayer, dtype: torch.dtype) -> ReadyLayer:
    """Return the layer's weights with every gamma folded in.

    The gated channels already have their factor in the layer's output: gamma, or its square if the
    residual sum spans the attention; the query's map compensates for it.
    """
    passed = GAMMA**2 if layer.spans_attention else GAMMA
    of_query = GAMMA / passed if layer.spans_attention else GAMMA
    # Only the first half, the values: the second half goes through the gate's sigmoid.
    factors = torch.ones_like(layer.convolution.bias)
    factors[: len(factors) // 2] = passed
    return ReadyLayer(
        layer.convolution.scaled(factors, dtype),
        layer.query_map.scaled(of_query, dtype)[0].t(),
        layer.output_map.scaled(passed, dtype),
    )


@dataclasses.dataclass(frozen=True)
class ConvS2SState:
    """Decoding state; `position` counts the tokens written."""

    cache: WindowCache | None
    memory: SourceCache
    decoder: ReadyDecoder
    position: int


class ConvS2S(TranslationModel):
    """The convolutional encoder-decoder, with options for the differences between publications."""

    architecture = "convs2s"
    why_no_energies = (
        "its decoder layers read the source one after another, so its score is not a sum over "
        "source tokens"
    )

    def __init__(
        self, config: ConvS2SConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config = config
        # Table 2.1: a feature sees 1 + N (k - 1) target tokens.
        reach = 1 + config.decoder_depth * (config.kernel - 1)
        self.traits = Traits(target_receptive_field=reach, aligns=True)
        # The order of construction is that of the random draws and of the optimiser's parameters.
        self.source_embedding = _embedding(config, source_vocab_size)
        self.target_embedding = _embedding(config, target_vocab_size)
        if config.tie == "all":
            # Token vectors are shared; each side has its own positions.
            self.source_embedding.weight = self.target_embedding.weight
        embedded, size = config.embedding_size, config.size
        self.encoder_enter = make_map(config, embedded, size, config.embedding_dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_depth))
        self.encoder_leave = make_map(config, size, embedded)
        self.decoder_enter = make_map(config, embedded, size, config.embedding_dropout)
        # Also as a list, which keeps the layers' type; a plain list adds no names to the weights.
        self._decoder_layers = [DecoderLayer(config) for _ in range(config.decoder_depth)]
        self.decoder = nn.ModuleList(self._decoder_layers)
        self.decoder_leave = make_map(config, size, config.classified)
        std = math.sqrt((1.0 - config.output_dropout) / config.classified)
        own, bias = config.tie == "none", config.output_bias
        self.make_classifier(target_vocab_size, config.classified, own=own, bias=bias, std=std)

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        self.check_sites(sites)
        top = self._decode(batch)
        cells = sites.sentence * top.shape[1] + sites.position
        mapped = self.decoder_leave(top.flatten(0, 1).index_select(0, cells))
        return dropout(mapped, self.config.output_dropout, self.training)

    def begin(self, source: Tensor, source_lengths: Tensor) -> ConvS2SState:
        keys, values, mask = self._encode(source, source_lengths)
        decoder = ReadyDecoder.make(
            self.decoder_enter, self._decoder_layers, self.decoder_leave, self.classifier(),
            keys.dtype,
        )  # fmt: skip
        return ConvS2SState(None, SourceCache((keys,), (values,), mask), decoder, 0)

    def step(
        self,
        tokens: Tensor,
        state: ConvS2SState,
        *,
        reads: Tensor | None = None,
        align: bool = False,
    ) -> Step:
        if reads is not None:
            raise self.refusal()
        embedded = self.target_embedding(tokens[:, None], state.position)[:, 0]
        alignment = self.config.alignment if align else None
        logits, cache, weights = state.decoder.logits(
            embedded, state.cache, state.memory, alignment
        )
        state = dataclasses.replace(state, cache=cache, position=state.position + 1)
        return Step(logits, state, weights)

    def _attention(self, batch: Batch) -> Tensor:
        weights: list[Tensor] = []
        self._decode(batch, weights)
        layers = weights if self.config.alignment == "average" else weights[-1:]
        return torch.stack(layers).mean(0)

    def report(self, source_length: float, target_length: float) -> Report:
        config, types = self.config, self.classifier().weight.shape[0]
        size, embedded = config.size, config.embedding_size
        # A gated convolution maps k C channels to 2 C. Each stack begins and ends with a projection
        # between embedding and channels.
        convolution, stack_maps = 4 * config.kernel * size * size, 4 * size * embedded
        leaving = 2 * size * (embedded + config.classified)
        # Two projections around the attention, then products with the keys and with the values.
        attention = 4 * size * embedded + 4 * embedded * source_length
        source = config.encoder_depth * convolution + stack_maps
        target = config.decoder_depth * (convolution + attention) + leaving
        classified = 2 * types * config.classified
        # Attention sees every source token; the encoder's reach is the neighbours mixed into each.
        reach = config.encoder_depth * (config.kernel - 1)
        return table_report(
            "ConvS2S",
            3.0 * (source_length * source + target_length * (target + classified)),
            f"{self.traits.target_receptive_field} target tokens, and all source tokens, each "
            f"encoded with {reach} neighbours",
            (source_length, target_length),
            (config.encoder_depth, config.decoder_depth),
            config.kernel,
        )

    def stages(self) -> dict[str, nn.Module]:
        return numbered(
            encoder=[self.source_embedding, *self.encoder],
            decoder=[self.target_embedding, *self.decoder],
        )

    def _encode(self, source: Tensor, lengths: Tensor) -> Source:
        """Return S^N as keys, and gamma (S^N + S^0) as values, Eq. (2.37)."""
        is_source = is_token(lengths, source.shape[1])
        embedded = self.source_embedding(source)
        h = self.encoder_enter(embedded)
        window = Window.centred(self.config.kernel, is_source)
        for layer in self.encoder:
            h = layer(h, window)
        top = self.encoder_leave(h)
        if self.config.gradient_scale and self.training:
            # Every decoder layer sends a gradient into the encoder (Gehring et al., 2017, section
            # 3.4).
            factor = 0.5 / len(self.decoder)
            top = _ScaledGradient.apply(top, factor)  # type: ignore[no-untyped-call]
        values = add_scaled(top, embedded)
        if self.config.length_scale:
            # Uniform attention averages |x| values, which divides their variance by |x|.
            values = values * lengths.to(values.dtype).sqrt()[:, None, None]
        return top[:, None], values[:, None], source_mask(is_source, top)

    def _decode(self, batch: Batch, weights: list[Tensor] | None = None) -> Tensor:
        """Return the last layer's output [B, T, C] for the true prefixes.

        Attention weights [B, T, S] of each layer are appended to `weights`, if given.
        """
        source = batch.encode_source(self._encode)
        embedded = self.target_embedding(batch.target_input)
        h: Tensor = self.decoder_enter(embedded)
        embedded = embedded.to(h.dtype)
        window = Window.causal(self.config.kernel)
        for layer in self.decoder:
            h = layer(h, embedded, source, window, weights)
        return h


class _ScaledGradient(torch.autograd.Function):
    # x * f + x.detach() * (1 - f) has the same gradient, but rounds the value.
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def _embedding(config: ConvS2SConfig, count: int) -> Embedding:
    """Return token and position vectors with a standard deviation of 0.1 (Gehring et al., 2017)."""
    embedding = Embedding(
        count,
        config.embedding_size,
        positions=config.positions,
        scale=False,
        dropout_rate=config.embedding_dropout,
        padding=PAD,
        max_positions=config.max_positions,
        alias=first_alias(config.first_symbol),
    )
    # Drawn again over the embedding's own initialisation, token vectors before positions.
    for parameter in embedding.parameters():
        nn.init.normal_(parameter, std=0.1)
    with torch.no_grad():
        embedding.weight[PAD].zero_()
    return embedding
