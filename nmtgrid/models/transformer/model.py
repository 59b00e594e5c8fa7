"""The Transformer (section 2.6.3), with transparent attention for deep encoders as an option.

`features` runs the decoder over all target positions at once; `step` runs it for the newest token
of each row, from the keys and values of the tokens before it.

Online (section 4.3.1) each target position attends to the source tokens that had been read when it
was written, and keeps that state, so predictions depend on the path.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from nmtgrid.base.config import from_attributes
from nmtgrid.base.rows import take
from nmtgrid.data.batches import Batch
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.normalisation import PositionNorm
from nmtgrid.layers.probes import ProbePoint
from nmtgrid.layers.source_cache import SourceCache, without_lead
from nmtgrid.layers.transformer.attention import SourceProjection
from nmtgrid.layers.transformer.blocks import (
    AddNorm,
    BlockPlan,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
)
from nmtgrid.layers.transformer.information import Information, InformationCache
from nmtgrid.layers.transformer.monotonic import MonotonicCache, MonotonicHeads
from nmtgrid.layers.transformer.transport import Transport, TransportCache, reading_path
from nmtgrid.models.api import Halt, PredictionSites, Report, Step, Traits, numbered
from nmtgrid.models.config_checks import first_alias
from nmtgrid.models.cost_report import table_report
from nmtgrid.models.transformer.config import TransformerConfig
from nmtgrid.models.transformer.exits import HaltingStep, TransformerExits
from nmtgrid.models.transformer.source import TransformerState, TransparentAttention, narrowed
from nmtgrid.text.vocabulary import PAD


class Transformer(TransformerExits):
    """Encoder and decoder of attention blocks."""

    architecture = "transformer"
    why_no_energies = "its score is not a sum over source tokens"

    def __init__(
        self, config: TransformerConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config = config
        # The order of construction is that of the random draws and of the optimiser's parameters.
        source_plan = from_attributes(BlockPlan, config, size=config.source_size)
        plan = from_attributes(BlockPlan, config)
        self.source_embedding = self._embedding(source_vocab_size, config.source_size)
        self.target_embedding = self._embedding(
            target_vocab_size, config.size, first_alias(config.first_symbol)
        )
        if config.tie == "all":
            # Two modules with one matrix: each is a separate stage with its own positions.
            self.target_embedding.weight = self.source_embedding.weight
        self.encoder = nn.ModuleList(EncoderBlock(source_plan) for _ in range(config.encoder_depth))
        self.decoder = nn.ModuleList(
            DecoderBlock(plan, block) for block in range(config.decoder_depth)
        )
        self.mixtures = (
            TransparentAttention(
                config.decoder_depth, config.encoder_depth + 1, config.transparent_dropout
            )
            if config.transparent
            else None
        )
        self.source_projection = SourceProjection(
            config.size, config.heads, config.decoder_depth, config.source_size
        )
        self.transport = self.source_information = self.target_information = None
        self.monotonic_heads = None
        if config.reader == "transport":
            self.transport = Transport(
                config.size, config.heads, config.decoder_depth, config.source_size
            )
        elif config.reader == "information":
            self.source_information = Information(config.source_size)
            self.target_information = Information(config.size)
        elif config.reader == "monotonic":
            self.monotonic_heads = MonotonicHeads(
                config.size, config.heads, config.decoder_depth, config.source_size,
                bias=config.selection_bias, noise=config.selection_noise,
            )  # fmt: skip
        is_pre = config.norm == "pre"
        self.encoder_norm = PositionNorm(config.source_size) if is_pre else nn.Identity()
        self.decoder_norm = PositionNorm(config.size) if is_pre else nn.Identity()
        own = config.tie == "none"
        self.make_classifier(target_vocab_size, config.size, own=own, bias=config.output_bias)
        self.make_exits(target_vocab_size)
        self.traits = Traits(
            prefix_safe=True,
            reencodes=config.encoder == "bidirectional",
            aligns=True,
            num_exits=1 if config.exits == "none" else config.decoder_depth,
            halting=config.halting,
            hides_source_end=config.source_marker == "none",
            readiness=config.reader,
        )

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        """Return the decoder's last states [M, D] at the sites, which lie on one path per sentence.

        Raises ValueError for two different reads at one position (see `path_of`).
        """
        if sites.depth is not None:
            return self.features_at_depth(batch, sites)
        features, _ = self._decode(batch, self._memory_for(batch, sites))
        return self._at_sites(features, sites)

    def features_with_delays(self, batch: Batch, sites: PredictionSites) -> tuple[Tensor, Tensor]:
        features, memory = self._decode(batch, self._memory_for(batch, sites))
        if not isinstance(memory, MonotonicCache):
            raise self.no_mechanism("monotonic")
        return self._at_sites(features, sites), memory.delays()

    def features_with_transport(
        self, batch: Batch, threshold: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.transport is None:
            raise self.no_mechanism("transport")
        sites = PredictionSites.offline(batch)
        whole = self._memory_for(batch, sites)
        features, memory = self._decode(batch, whole, threshold=threshold)
        assert isinstance(memory, TransportCache)
        path = batch.source_lengths[:, None].expand(batch.target_input.shape)
        if threshold is not None:
            path = memory.paths[len(self.decoder) - 1]
        return self._at_sites(features, sites), memory.transported(), path

    def features_with_information(
        self, batch: Batch, k: float | Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # One encoding for both the path and the features along it.
        batch = batch.with_shared_source()
        source, written, embedded = self._information(batch)
        path = batch.source_lengths[:, None].expand(written.shape)
        sites = PredictionSites.offline(batch)
        if k is not None:
            lead = source.detach().cumsum(1)[:, None] - written.detach()[..., None]
            path = reading_path(lead, k, batch.is_source)
            sites = PredictionSites.along(batch, path)
        memory = self._memory_for(batch, sites)
        features, _ = self._decode(batch, memory, embedded=embedded)
        # The information of each token by itself; that of the begin symbol is 0.
        target = written.diff(dim=1, prepend=written.new_zeros(len(written), 1))
        return self._at_sites(features, sites), source, target, path

    def readiness(self, batch: Batch, path: Tensor) -> Tensor:
        if self.config.reader == "transport":
            sites = PredictionSites.along(batch, path)
            _, memory = self._decode(batch, self._memory_for(batch, sites))
            assert isinstance(memory, TransportCache)
            return memory.received()
        source, written, _ = self._information(batch)
        return source.cumsum(1).gather(1, path - 1) - written

    def _information(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the information of the source [B, S], that written [B, T], and embeddings.

        Embeddings [B, T, D] are of the target; the information written before a position is the sum
        over the target tokens up to there.
        """
        source = self._source_information(batch)
        embedded = narrowed(self.target_embedding(batch.target_input))
        target = self._target_information(embedded)
        if source is None or target is None:
            raise self.no_mechanism("information")
        return source, target.cumsum(1) - 1.0, embedded

    def _target_information(self, embedded: Tensor) -> Tensor | None:
        """Return the information [B, T] of target tokens; that of the begin symbol is 1."""
        if self.target_information is None:
            return None
        information: Tensor = self.target_information(embedded)
        return torch.cat([torch.ones_like(information[:, :1]), information[:, 1:]], 1)

    def _at_sites(self, features: Tensor, sites: PredictionSites) -> Tensor:
        # Only the sites are normalised and classified: padding costs nothing from here on.
        cells = sites.sentence * features.shape[1] + sites.position
        normed: Tensor = self.decoder_norm(features.flatten(0, 1).index_select(0, cells))
        return normed

    def step(
        self,
        tokens: Tensor,
        state: TransformerState,
        *,
        reads: Tensor | None = None,
        align: bool = False,
        halt: Halt | None = None,
    ) -> Step:
        state = self.feed(tokens, state)
        state, memory = self._memory_of(state, reads)
        if halt is not None:
            # An exit chosen from the source (5.11) needs all of it.
            is_offline = reads is None and state.stream is None and state.memory is not None
            self.check_halt(halt, has_whole_source=is_offline)
            features = narrowed(self.target_embedding(tokens[:, None], state.cache.position)[:, 0])
            return HaltingStep(self, halt, features, state, memory, align).run()
        step = self._run_blocks(tokens, state, memory, align)
        return dataclasses.replace(step, state=self.accept(step.state))

    def feed(self, tokens: Tensor, state: TransformerState) -> TransformerState:
        reading = state.reading
        if reading is not None:
            latest = None
            if self.target_information is not None and state.cache.filled:
                embedded = self.target_embedding(tokens[:, None], state.cache.position)[:, 0]
                latest = self.target_information(narrowed(embedded))
            reading = reading.fed(latest)
        return dataclasses.replace(state, fed=tokens, reading=reading)

    def propose(
        self,
        state: TransformerState,
        reads: Tensor,
        *,
        rows: Tensor | None = None,
        align: bool = False,
    ) -> Step:
        tokens = state.fed
        assert tokens is not None, "no tokens have been fed"
        # The states of the newest tokens depend on the reads: the blocks run again, and their keys
        # and values replace those of the previous proposal.
        state, memory = self._memory_of(state, reads, rows)
        if rows is None:
            return self._run_blocks(tokens, state, memory, align)
        part = dataclasses.replace(
            state, cache=state.cache.take_rows(rows),
            reading=take(state.reading, rows), heads=take(state.heads, rows),
        )  # fmt: skip
        step = self._run_blocks(tokens[rows], part, memory, align)
        state.cache.put_newest(rows, part.cache)
        if state.reading is not None:
            reading = state.reading.put(rows, step.state.reading)
            state = dataclasses.replace(state, reading=reading)
        if state.heads is not None:
            state = dataclasses.replace(state, heads=state.heads.put(rows, step.state.heads))
        return dataclasses.replace(step, state=state)

    def accept(self, state: TransformerState) -> TransformerState:
        state.cache.advance()
        heads = None if state.heads is None else state.heads.accepted()
        return dataclasses.replace(state, fed=None, heads=heads)

    def choosing_from(self, threshold: float, state: TransformerState) -> TransformerState:
        if state.heads is None:
            raise self.no_mechanism("monotonic")
        heads = dataclasses.replace(state.heads, threshold=threshold)
        return dataclasses.replace(state, heads=heads)

    def _memory_of(
        self, state: TransformerState, reads: Tensor | None, rows: Tensor | None = None
    ) -> tuple[TransformerState, SourceCache]:
        """Return the state, and the part of the source that `rows` [R'] (None: all) may read."""
        if state.source is not None:
            # A bi-directional encoder's memory is valid only for particular reads.
            state = self._reread(state, state.source, reads, rows)
        memory = state.memory if state.stream is None else state.stream.memory()
        assert memory is not None
        if rows is not None:
            memory = take(memory, rows)
        if reads is not None and state.source is None:
            # The encoder sees no later tokens, so tokens that have not been read are masked.
            memory = memory.limited(reads.view(-1, memory.width))
        return state, memory

    def _run_blocks(
        self, tokens: Tensor, state: TransformerState, memory: SourceCache, align: bool
    ) -> Step:
        """Return the step of `tokens` [R]; the cache holds them but does not count them yet."""
        features = narrowed(self.target_embedding(tokens[:, None], state.cache.position)[:, 0])
        weights: list[Tensor] | None = [] if align else None
        reading, focus = state.reading, None
        if state.heads is not None:
            memory = self._for_reader(memory, None, positions=state.heads)
        if reading is not None:
            latest = reading.latest
            if latest is not None:
                focus, latest = latest - 1.0, latest.view(-1, memory.width)
            memory = self._for_reader(memory, latest)
        for block in self.decoder:
            assert isinstance(block, DecoderBlock)
            features = block.step(features, state.cache, memory, weights, focus=focus)
        logits = self.classify(self.decoder_norm(features))
        alignment = None if weights is None else self._alignment(weights, memory)
        if isinstance(memory, MonotonicCache) and state.heads is not None:
            heads = dataclasses.replace(state.heads, proposed=memory.positions())
            state = dataclasses.replace(state, heads=heads)
            return Step(logits, state, alignment, readiness=memory.readiness())
        if reading is None:
            return Step(logits, state, alignment)
        if isinstance(memory, TransportCache):
            readiness = memory.received().flatten().float()
        else:
            assert isinstance(memory, InformationCache) and reading.written is not None
            readiness = memory.read().flatten().float() - reading.written
        reading = reading.proposed(readiness)
        state = dataclasses.replace(state, reading=reading)
        return Step(logits, state, alignment, readiness=reading.readiness)

    def _attention(self, batch: Batch) -> Tensor:
        weights: list[Tensor] = []
        memory = self._remember(self._encode(batch.source, batch.source_lengths))
        _, memory = self._decode(batch, memory, weights)
        return self._alignment(weights, memory).float()

    def report(self, source_length: float, target_length: float) -> Report:
        """Return properties and cost for sentences of these lengths.

        Attention counts all L^2 pairs of positions, including masked ones; all exits predict.
        """
        config, source, target = self.config, source_length, target_length
        size, width, inner = config.size, config.source_size, 4.0 * config.feed_forward_size
        # Self-attention has four projections; a decoder block's attention to the source two of its
        # own (queries, output), while keys and values cost products for each source token.
        encoder = source * (8.0 * width * width + inner * width) + 4.0 * source * source * width
        decoder = target * (12.0 * size * size + inner * size) + 4.0 * target * target * size
        decoder += source * 4.0 * size * width + 4.0 * target * source * size
        if config.reader in ("transport", "monotonic"):
            # A projection of queries, one of keys, and their products for each pair of tokens.
            decoder += 2.0 * target * size * size + 2.0 * source * size * width
            decoder += 2.0 * target * source * size
        mixtures = 0.0
        if config.transparent:
            mixtures = 2.0 * config.decoder_depth * (config.encoder_depth + 1) * source * width
        types = self.classifier().weight.shape[0]
        classified = 2.0 * self.traits.num_exits * types * target * size
        blocks = config.encoder_depth * encoder + config.decoder_depth * decoder
        return table_report(
            "Transformer",
            3.0 * (blocks + mixtures + classified),
            "the whole source and the whole target prefix",
            (source, target),
            (config.encoder_depth, config.decoder_depth),
        )

    def compilable(self) -> list[nn.Module]:
        """Return the residual sums and feed-forward layers, whose element-wise passes are fused."""
        return [part for part in self.modules() if isinstance(part, (AddNorm, FeedForward))]

    def counterparts(self) -> dict[str, str | None]:
        """Return the counterparts of exits; parts of a reading mechanism keep initial values."""
        parts = "transport.", "source_information.", "target_information.", "monotonic_heads."
        drawn = [name for name in self.state_dict() if name.startswith(parts)]
        return {**super().counterparts(), **dict.fromkeys(drawn)}

    def stages(self) -> dict[str, nn.Module]:
        """Return embeddings (0) and blocks (from 1) of both sides; outputs are h_n [B, L, D]."""
        return numbered(
            encoder=[self.source_embedding, *self.encoder],
            decoder=[self.target_embedding, *self.decoder],
        )

    def points(self) -> dict[str, ProbePoint]:
        points: dict[str, ProbePoint] = {}
        for name, stage in self.stages().items():
            if isinstance(stage, (EncoderBlock, DecoderBlock)):
                points |= {f"{name}.{inner}": point for inner, point in stage.points().items()}
            points[name] = ProbePoint(stage)
        return points

    def _embedding(self, count: int, size: int, alias: tuple[int, int] | None = None) -> Embedding:
        return Embedding(
            count,
            size,
            positions=self.config.positions,
            scale=self.config.scale_embeddings,
            dropout_rate=self.config.embedding_dropout,
            padding=PAD,
            max_positions=self.config.max_positions,
            alias=alias,
        )

    def _decode(
        self,
        batch: Batch,
        memory: SourceCache,
        weights: list[Tensor] | None = None,
        embedded: Tensor | None = None,
        threshold: float | None = None,
    ) -> tuple[Tensor, SourceCache]:
        """Return the last decoder block's states [B, T, D], and the memory that it read.

        The memory is that of `_for_reader`. Attention is appended to `weights`. `embedded`
        [B, T, D] are the embedded tokens, if already computed.
        """
        features = embedded
        if features is None:
            features = narrowed(self.target_embedding(batch.target_input))
        information = self._target_information(features)
        memory = self._for_reader(memory, information, threshold)
        focus = None if information is None else information - 1.0
        for block in self.decoder:
            features = block(features, memory, weights, focus)
        return features, memory

    def _alignment(self, weights: list[Tensor], memory: SourceCache) -> Tensor:
        """Return the mean over heads, without the attention to a marker before the source."""
        last = self.config.alignment == "last"
        return without_lead(weights[-1] if last else torch.stack(weights).mean(0), memory.lead)
