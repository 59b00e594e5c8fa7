"""The Transformer (section 2.6.3), with transparent attention for deep encoders as an option.

`features` runs the decoder over all target positions at once; `step` runs it for the newest token
of each row, from the keys and values of the tokens before it.

Online (section 4.3.1) each target position attends to the source tokens that had been read when it
was written, and keeps that state: predictions depend on the path.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from nmtgrid.base.rows import take
from nmtgrid.data.batches import Batch
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.normalisation import PositionNorm
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.transformer.attention import SourceProjection
from nmtgrid.layers.transformer.blocks import BlockPlan, DecoderBlock, EncoderBlock
from nmtgrid.layers.transformer.monotonic import MonotonicCache, MonotonicHeads
from nmtgrid.models.api import Halt, PredictionSites, ProbePoint, Report, Step, Traits, numbered
from nmtgrid.models.config_checks import first_alias, plan_of
from nmtgrid.models.cost_report import table_report
from nmtgrid.models.transformer.config import TransformerConfig
from nmtgrid.models.transformer.exits import HaltingStep, TransformerExits, without_lead
from nmtgrid.models.transformer.source import TransformerState, TransparentAttention, narrowed
from nmtgrid.text.vocabulary import PAD


class Transformer(TransformerExits):
    """Encoder and decoder of attention blocks."""

    architecture = "transformer"
    no_energies = (
        "Energies cannot be had from `transformer`: its attention has no share of a token in the "
        "score.",
        "Ask for weights, which are the attention of the decoder.",
    )

    def __init__(
        self, config: TransformerConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.config = config
        # The order of construction is that of the random draws and of the optimiser's parameters.
        source_plan = plan_of(BlockPlan, config, size=config.source_size)
        plan = plan_of(BlockPlan, config)
        self.source_embedding = self._embedding(source_vocab_size, config.source_size)
        self.target_embedding = self._embedding(
            target_vocab_size, config.size, first_alias(config.first_symbol)
        )
        if config.tie == "all":
            # Two modules with one matrix: each is a stage of its own, with its own positions.
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
        self.monotonic_heads = None
        if config.reader == "monotonic":
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
            path_dependent=True,
            reencodes=config.encoder == "bidirectional",
            aligns=True,
            num_exits=1 if config.exits == "none" else config.decoder_depth,
            halting=config.halting,
            hides_source_end=config.source_marker == "none",
            readiness="none" if self.monotonic_heads is None else "monotonic",
        )

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        """Return [M, D]: the decoder's last states at the sites, which lie on one path each.

        Raises ValueError for two different reads at one position (see `path_of`).
        """
        if sites.depth is not None:
            return self.features_at_depth(batch, sites)
        return self._features(batch, sites, self._memory_for(batch, sites))

    def features_with_delays(self, batch: Batch, sites: PredictionSites) -> tuple[Tensor, Tensor]:
        memory = self._memory_for(batch, sites)
        if not isinstance(memory, MonotonicCache):
            raise self.no_mechanism("monotonic")
        features = self._features(batch, sites, memory)
        return features, memory.delays()

    def _features(self, batch: Batch, sites: PredictionSites, memory: SourceCache) -> Tensor:
        features = self._decode(batch, memory, None)
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
        return dataclasses.replace(state, fed=tokens)

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
        # What the newest tokens' blocks hold depends on the reads: they run again, and their keys
        # and values take the place of those of the proposal before.
        state, memory = self._memory_of(state, reads, rows)
        if rows is None:
            return self._run_blocks(tokens, state, memory, align)
        part = dataclasses.replace(
            state, cache=state.cache.take_rows(rows), heads=take(state.heads, rows)
        )
        step = self._run_blocks(tokens[rows], part, memory, align)
        state.cache.put_newest(rows, part.cache)
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
        """Return the state, and what `rows` [R'] (None: all) may look at of the source."""
        if state.source is not None:
            # A bi-directional encoder's memory is made for just these reads.
            state = self._reread(state, state.source, reads)
        memory = state.memory if state.stream is None else state.stream.memory()
        assert memory is not None
        if rows is not None:
            memory, reads = take(memory, rows), None if reads is None else reads[rows]
        if reads is not None and state.source is None:
            # An encoder that sees no later tokens: what has not been read is masked out.
            memory = memory.limited(reads.view(-1, memory.width))
        if state.heads is not None:
            heads = state.heads if rows is None else take(state.heads, rows)
            memory = self._for_heads(memory, heads)
        return state, memory

    def _run_blocks(
        self, tokens: Tensor, state: TransformerState, memory: SourceCache, align: bool
    ) -> Step:
        """Return the step of `tokens` [R], which the cache holds but does not count yet."""
        features = narrowed(self.target_embedding(tokens[:, None], state.cache.position)[:, 0])
        weights: list[Tensor] | None = [] if align else None
        for block in self.decoder:
            assert isinstance(block, DecoderBlock)
            features = block.step(features, state.cache, memory, weights)
        logits = self.classify(self.decoder_norm(features))
        alignment = None if weights is None else self._alignment(weights, memory)
        if not isinstance(memory, MonotonicCache) or state.heads is None:
            return Step(logits, state, alignment)
        heads = dataclasses.replace(state.heads, proposed=memory.positions())
        state = dataclasses.replace(state, heads=heads)
        return Step(logits, state, alignment, readiness=memory.readiness())

    def _attention(self, batch: Batch) -> Tensor:
        weights: list[Tensor] = []
        memory = self._for_heads(self._remember(self._encode(batch.source, batch.source_lengths)))
        self._decode(batch, memory, weights)
        return self._alignment(weights, memory).float()

    def report(self, source_length: float, target_length: float) -> Report:
        """Return properties and cost for sentences of these lengths.

        Attention counts all L^2 pairs of positions, masked ones too; all exits predict.
        """
        config, source, target = self.config, source_length, target_length
        size, width, inner = config.size, config.source_size, 4.0 * config.feed_forward_size
        # Self-attention has four projections; a decoder block's attention to the source two of its
        # own (queries, output), while keys and values cost products for each source token.
        encoder = source * (8.0 * width * width + inner * width) + 4.0 * source * source * width
        decoder = target * (12.0 * size * size + inner * size) + 4.0 * target * target * size
        decoder += source * 4.0 * size * width + 4.0 * target * source * size
        if self.monotonic_heads is not None:
            # Queries, keys and energies of selection.
            decoder += 2.0 * size * (target * size + source * width + target * source)
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
        )

    def counterparts(self) -> dict[str, str | None]:
        """Return those of exits, and that monotonic heads stay as drawn."""
        heads = [name for name in self.state_dict() if name.startswith("monotonic_heads.")]
        return {**super().counterparts(), **dict.fromkeys(heads)}

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

    def _decode(self, batch: Batch, memory: SourceCache, weights: list[Tensor] | None) -> Tensor:
        """Return the last decoder block's states [B, T, D]; attention goes to `weights`."""
        features = narrowed(self.target_embedding(batch.target_input))
        for block in self.decoder:
            features = block(features, memory, weights)
        return features

    def _alignment(self, weights: list[Tensor], memory: SourceCache) -> Tensor:
        """Return the mean of all heads; what goes to a marker before the source is left out."""
        last = self.config.alignment == "last"
        return without_lead(weights[-1] if last else torch.stack(weights).mean(0), memory.lead)
