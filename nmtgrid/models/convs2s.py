"""ConvS2S (Gehring et al., 2017; thesis section 2.6.2): gated convolutions on both sides.

The decoder attends to the source in each of its layers: keys are the encoder's output S^N, values
are S^N + S^0, the same for all layers; the queries are mapped into their space, so that nothing
of the source is computed more than once. gamma is sqrt(1/2) throughout.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.masks import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.attention import source_mask
from nmtgrid.layers.convolution import WindowCache
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.kernels.dropout import dropout
from nmtgrid.layers.kernels.gated_conv import Window
from nmtgrid.layers.source_cache import SourceMemory
from nmtgrid.models.api import Classifier, Report, Sites, Step, TranslationModel
from nmtgrid.models.convs2s_config import ConvS2SConfig, convs2s_report, convs2s_traits
from nmtgrid.models.convs2s_layers import DecoderLayer, EncoderLayer, Source, add_scaled, make_map
from nmtgrid.models.convs2s_step import ReadyDecoder
from nmtgrid.models.first_symbol import first_alias
from nmtgrid.text.vocabulary import PAD


@dataclasses.dataclass(frozen=True)
class ConvS2SState:
    """What decoding keeps; `position` counts the tokens written."""

    cache: WindowCache | None
    memory: SourceMemory
    decoder: ReadyDecoder
    position: int


class ConvS2S(TranslationModel):
    """The convolutional encoder-decoder, with the options in which its descriptions differ."""

    architecture = "convs2s"

    def __init__(
        self, config: ConvS2SConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config, self.traits = config, convs2s_traits(config)
        self.source_embedding = _embedding(config, source_vocab_size)
        self.target_embedding = _embedding(config, target_vocab_size)
        if config.tie == "all":
            self.source_embedding.weight = self.target_embedding.weight
        embedded, size = config.embedding_size, config.size
        self.encoder_enter = make_map(config, embedded, size, config.embedding_dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_depth))
        self.encoder_leave = make_map(config, size, embedded)
        self.decoder_enter = make_map(config, embedded, size, config.embedding_dropout)
        self._decoder_layers = [DecoderLayer(config) for _ in range(config.decoder_depth)]
        self.decoder = nn.ModuleList(self._decoder_layers)
        self.decoder_leave = make_map(config, size, config.classified)
        self.output_weight = None
        if config.tie == "none":
            std = math.sqrt((1.0 - config.output_dropout) / config.classified)
            weight = torch.randn(target_vocab_size, config.classified) * std
            self.output_weight = nn.Parameter(weight)
        self.output_bias = (
            nn.Parameter(torch.zeros(target_vocab_size)) if config.output_bias else None
        )

    def features(self, batch: Batch, sites: Sites) -> Tensor:
        """Return [M, D]: the decoder's output at each site. Raises ConfigError for reads."""
        if sites.reads is not None:
            raise self.refusal()
        if sites.depth is not None:
            raise NotImplementedError("ConvS2S has one exit; it serves no other site")
        top = self._decode(batch)
        places = sites.sentence * top.shape[1] + sites.position
        mapped = self.decoder_leave(top.flatten(0, 1).index_select(0, places))
        return dropout(mapped, self.config.output_dropout, self.training)

    def classifier(self) -> Classifier:
        """Return the output map, tied to the target embeddings unless `tie` is none."""
        weight = self.target_embedding.weight if self.output_weight is None else self.output_weight
        return Classifier(weight, self.output_bias)

    def begin(self, source: Tensor, source_lengths: Tensor) -> ConvS2SState:
        """Return the state before the first step, for source [R, S] and lengths [R]."""
        held = self._encode(source, source_lengths)
        memory = SourceMemory((held.keys,), (held.values,), held.mask)
        decoder = ReadyDecoder.make(
            self.decoder_enter,
            self._decoder_layers,
            self.decoder_leave,
            self.classifier(),
            held.keys.dtype,
        )
        return ConvS2SState(None, memory, decoder, 0)

    def step(
        self,
        tokens: Tensor,
        state: ConvS2SState,
        *,
        reads: Tensor | None = None,
        align: bool = False,
    ) -> Step:
        """Feed the last written tokens [R] and return logits [R, V]."""
        if reads is not None:
            raise self.refusal()
        embedded = self.target_embedding(tokens[:, None], state.position)[:, 0]
        wanted = self.config.alignment if align else None
        logits, cache, found = state.decoder.logits(embedded, state.cache, state.memory, wanted)
        after = ConvS2SState(cache, state.memory, state.decoder, state.position + 1)
        return Step(logits, after, found)

    @torch.no_grad()
    def alignments(self, batch: Batch, kind: Literal["weights", "energies"] = "weights") -> Tensor:
        """Return [B, T, S]: attention weights of the true target, zero on padding.

        Raises ConfigError for energies, which only models that pool a grid have.
        """
        if kind == "energies":
            raise ConfigError(
                "`convs2s` has no energies: its decoder layers read the source one after another, "
                "so no part of a score belongs to one source token.",
                "Ask for the attention's weights.",
            )
        weights: list[Tensor] = []
        self._decode(batch, weights)
        kept = weights if self.config.alignment == "average" else weights[-1:]
        present = batch.is_target[:, :, None] & batch.is_source[:, None, :]
        return torch.stack(kept).mean(0).masked_fill(~present, 0.0)

    def report(self, source_length: float, target_length: float) -> Report:
        """Return properties and cost for sentences of these lengths."""
        types = self.classifier().weight.shape[0]
        return convs2s_report(self.config, types, source_length, target_length)

    def stages(self) -> dict[str, nn.Module]:
        """Return the embeddings and layers of both sides, by name."""
        sides = (
            ("encoder", [self.source_embedding, *self.encoder]),
            ("decoder", [self.target_embedding, *self.decoder]),
        )
        return {f"{side}.{place}": m for side, parts in sides for place, m in enumerate(parts)}

    def _encode(self, source: Tensor, lengths: Tensor) -> Source:
        """Return S^N as keys, and gamma (S^N + S^0) as values, Eq. (2.37)."""
        real = is_token(lengths, source.shape[1])
        padded = None if bool(real.all()) else real
        embedded = self.source_embedding(source)
        h = self.encoder_enter(embedded)
        window = Window.centred(self.config.kernel, padded)
        for layer in self.encoder:
            h = layer(h, window)
        top = self.encoder_leave(h)
        if self.config.gradient_scale and self.training:
            factor = 0.5 / len(self.decoder)
            top = _ScaledGradient.apply(top, factor)  # type: ignore[no-untyped-call]
        values = add_scaled(top, embedded)
        if self.config.length_scale:
            values = values * lengths.to(values.dtype).sqrt()[:, None, None]
        return Source(top[:, None], values[:, None], source_mask(padded, top))

    def _decode(self, batch: Batch, weights: list[Tensor] | None = None) -> Tensor:
        """Return the last layer's output [B, T, C] for the true prefixes.

        The attention's weights [B, T, S] of each layer are added to `weights` if it is given.
        """
        source = batch.encoded(self._encode)
        embedded = self.target_embedding(batch.target_input)
        h: Tensor = self.decoder_enter(embedded)
        embedded = embedded.to(h.dtype)
        window = Window.causal(self.config.kernel)
        for layer in self.decoder:
            h = layer(h, embedded, source, window, weights)
        return h


def build(config: Any, source_vocab_size: int, target_vocab_size: int) -> ConvS2S:
    """Return a new model with drawn weights."""
    return ConvS2S(config, source_vocab_size, target_vocab_size)


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def _embedding(config: ConvS2SConfig, count: int) -> Embedding:
    """Return token and position vectors with a deviation of 0.1, as Gehring et al. (2017)."""
    made = Embedding(
        count,
        config.embedding_size,
        positions=config.positions,
        scale=False,
        dropout_rate=config.embedding_dropout,
        padding=PAD,
        max_positions=config.max_positions,
        alias=first_alias(config.first_symbol),
    )
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.1)
    with torch.no_grad():
        made.weight[PAD].zero_()
    return made
