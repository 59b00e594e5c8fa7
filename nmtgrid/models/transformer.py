"""The Transformer (section 2.6.3), with transparent attention for deep encoders as an option.

`features` runs the decoder over all target positions at once; `step` runs it for the newest token
of each row, from the keys and values of the tokens before it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.masks import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.attention import source_mask
from nmtgrid.layers.blocks import DecoderBlock, EncoderBlock
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.kernels.products import linear
from nmtgrid.layers.memory import SourceMemory
from nmtgrid.layers.mixture import StateMixtures
from nmtgrid.layers.multihead import SourceProjection
from nmtgrid.layers.normalisation import PositionNorm
from nmtgrid.layers.token_cache import TokenCache
from nmtgrid.models.api import Classifier, Report, Sites, Step, Traits, TranslationModel
from nmtgrid.models.transformer_config import TransformerConfig, block_plan
from nmtgrid.models.transformer_report import transformer_report
from nmtgrid.text.vocabulary import PAD


@dataclasses.dataclass(frozen=True)
class TransformerState:
    """What decoding keeps: the source's keys and values, and those of the tokens written."""

    memory: SourceMemory
    cache: TokenCache


class Transformer(TranslationModel):
    """Encoder and decoder of attention blocks."""

    architecture = "transformer"

    def __init__(
        self, config: TransformerConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config = config
        plan = block_plan(config)
        self.source_embedding = self._embedding(source_vocab_size)
        self.target_embedding = self._embedding(target_vocab_size)
        if config.tie == "all":
            # Two modules with one matrix: each is a stage of its own, with its own positions.
            self.target_embedding.weight = self.source_embedding.weight
        self.encoder = nn.ModuleList(EncoderBlock(plan) for _ in range(config.encoder_depth))
        self.decoder = nn.ModuleList(
            DecoderBlock(plan, place) for place in range(config.decoder_depth)
        )
        self.mixtures = (
            StateMixtures(
                config.decoder_depth, config.encoder_depth + 1, config.transparent_dropout
            )
            if config.transparent
            else None
        )
        self.source_projection = SourceProjection(config.size, config.heads, config.decoder_depth)
        is_pre = config.norm == "pre"
        self.encoder_norm = PositionNorm(config.size) if is_pre else nn.Identity()
        self.decoder_norm = PositionNorm(config.size) if is_pre else nn.Identity()
        self.output_weight = (
            nn.Parameter(torch.randn(target_vocab_size, config.size) * config.size**-0.5)
            if config.tie == "none"
            else None
        )
        self.output_bias = (
            nn.Parameter(torch.zeros(target_vocab_size)) if config.output_bias else None
        )
        self.traits = Traits(aligns=True)

    def features(self, batch: Batch, sites: Sites) -> Tensor:
        """Return [M, D]: the decoder's last states at the sites."""
        if sites.reads is not None or sites.depth is not None:
            raise NotImplementedError(
                "this Transformer reads the whole source and has one exit; it serves no other site"
            )
        features = self._decode(batch, None)
        places = sites.sentence * features.shape[1] + sites.position
        normed: Tensor = self.decoder_norm(features.flatten(0, 1).index_select(0, places))
        return normed

    def classifier(self) -> Classifier:
        """Return the output map, tied to the target embeddings unless `tie` is none."""
        weight = self.target_embedding.weight if self.output_weight is None else self.output_weight
        return Classifier(weight, self.output_bias)

    def classify(self, features: Tensor) -> Tensor:
        """Return logits [M, V] for features [M, D]."""
        held = self.classifier()
        return linear(features, held.weight, held.bias)

    def begin(self, source: Tensor, source_lengths: Tensor) -> TransformerState:
        """Return the state before the first token, for source [R, S] and lengths [R]."""
        real = is_token(source_lengths, source.shape[1])
        memory = self._encode(source, real).ready()
        return TransformerState(memory, TokenCache(self.config.decoder_depth))

    def step(self, tokens: Tensor, state: TransformerState, *, align: bool = False) -> Step:
        """Feed the last written tokens [R] and return logits [R, V]."""
        weights: list[Tensor] | None = [] if align else None
        features = _narrowed(self.target_embedding(tokens[:, None], state.cache.filled)[:, 0])
        for block in self.decoder:
            assert isinstance(block, DecoderBlock)
            features = block.step(features, state.cache, state.memory, weights)
        state.cache.advance()
        logits = self.classify(self.decoder_norm(features))
        return Step(logits, state, self._alignment(weights) if weights is not None else None)

    @torch.no_grad()
    def alignments(self, batch: Batch, kind: Literal["weights", "energies"] = "weights") -> Tensor:
        """Return [B, T, S]: attention over the source, the mean of all heads, zero on padding.

        Raises ConfigError for "energies", which need a max or a sum over source features.
        """
        if kind == "energies":
            raise ConfigError(
                "Energies cannot be had from `transformer`: its attention has no share of a token "
                "in the score.",
                "Ask for weights, which are the attention of the decoder.",
            )
        weights: list[Tensor] = []
        self._decode(batch, weights)
        present = batch.is_target[:, :, None] & batch.is_source[:, None, :]
        return self._alignment(weights).float().masked_fill(~present, 0.0)

    def report(self, source_length: float, target_length: float) -> Report:
        """Return properties and cost for sentences of these lengths."""
        types = self.classifier().weight.shape[0]
        return transformer_report(self.config, types, source_length, target_length)

    def stages(self) -> dict[str, nn.Module]:
        """Return embeddings (0) and blocks (from 1) of both sides; outputs are h_n [B, L, D]."""
        sides = {
            "encoder": [self.source_embedding, *self.encoder],
            "decoder": [self.target_embedding, *self.decoder],
        }
        return {
            f"{side}.{place}": stage
            for side, held in sides.items()
            for place, stage in enumerate(held)
        }

    def _embedding(self, count: int) -> Embedding:
        return Embedding(
            count,
            self.config.size,
            positions=self.config.positions,
            scale=self.config.scale_embeddings,
            dropout_rate=self.config.embedding_dropout,
            padding=PAD,
            max_positions=self.config.max_positions,
        )

    def _encode(self, source: Tensor, is_source: Tensor) -> SourceMemory:
        """Return the keys and values of source [B, S] for all decoder blocks."""
        states = [_narrowed(self.source_embedding(source))]
        mask = source_mask(is_source, states[0])
        for block in self.encoder:
            states.append(block(states[-1], mask))
        if self.mixtures is None:
            return self._memory(self.encoder_norm(states[-1]), mask)
        return self._memory([self.encoder_norm(mixed) for mixed in self.mixtures(states)], mask)

    def _memory(self, states: Tensor | list[Tensor], mask: Tensor | None) -> SourceMemory:
        memory: SourceMemory = self.source_projection(states, mask)
        return memory

    def _decode(self, batch: Batch, weights: list[Tensor] | None) -> Tensor:
        """Return the last decoder block's states [B, T, D]; attention goes to `weights`."""
        memory = self._encode(batch.source, batch.is_source)
        features = _narrowed(self.target_embedding(batch.target_input))
        for block in self.decoder:
            features = block(features, memory, weights)
        return features

    def _alignment(self, weights: list[Tensor]) -> Tensor:
        """Return what the blocks' attention over the source, in their order, aligns."""
        if self.config.alignment == "last":
            return weights[-1]
        return torch.stack(weights).mean(0)


def build(config: Any, source_vocab_size: int, target_vocab_size: int) -> Transformer:
    """Return a new model with drawn weights."""
    return Transformer(config, source_vocab_size, target_vocab_size)


def _narrowed(features: Tensor) -> Tensor:
    """Return `features` in autocast's type where that is on, so that no block has to convert."""
    device = features.device.type
    if not torch.is_autocast_enabled(device) or features.dtype is torch.float64:
        return features
    return features.to(torch.get_autocast_dtype(device))
