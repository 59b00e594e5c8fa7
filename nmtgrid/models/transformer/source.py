"""The source side of a Transformer: encoders, source markers, limited reads, streams (4.3.1).

A `SourceCache` is the source that target positions may read. A uni-directional encoder, Eq. (4.17),
(4.18), makes one for the whole source and masks what a position has not read; a bi-directional one
re-encodes each prefix, Eq. (4.16) (`ReencodedPrefixes`). A stream's source grows by a column for
each READ (`SourceStream`). `TransparentAttention` (the poster) mixes all encoder blocks' states for
each decoder block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nmtgrid.base.rows import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.attention import source_mask, window_mask
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.static_cache import StaticPosition
from nmtgrid.layers.transformer.attention import SourceProjection
from nmtgrid.layers.transformer.blocks import DecoderBlock, EncoderBlock
from nmtgrid.layers.transformer.early_exit import ExitKVProjection, LazySourceCache
from nmtgrid.layers.transformer.information import (
    Information,
    InformationCache,
    ReadingState,
    with_information,
)
from nmtgrid.layers.transformer.kv_cache import KVCache, StaticKVCache
from nmtgrid.layers.transformer.monotonic import HeadPositions, MonotonicCache, MonotonicHeads
from nmtgrid.layers.transformer.transport import Transport, TransportCache
from nmtgrid.models.api import ExitModel, PredictionSites, path_of
from nmtgrid.models.transformer.config import SourceMarker, TransformerConfig
from nmtgrid.text.vocabulary import BEGIN, END, PAD


class TransparentAttention(nn.Module):
    """m mixtures of n states: a learnt m x n matrix W, its rows normalised by softmax.

    As in the published system W starts at zero, so each mixture starts as the plain mean, and
    dropout is applied to W + 1/n before the softmax, once for all sentences.
    """

    vector_parameters = ("weight",)

    def __init__(self, mixtures: int, states: int, dropout_rate: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(mixtures, states))
        self.dropout_rate = dropout_rate

    def forward(self, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return m mixtures [B, S, D] of n states [B, S, D]."""
        stacked = torch.stack(list(states))
        # One product of [m, n] with the n flattened states, instead of n scaled sums for each
        # mixture.
        shares = self.shares().to(stacked.dtype)
        mixed: tuple[Tensor, ...] = (
            (shares @ stacked.flatten(1)).unflatten(1, states[0].shape).unbind(0)
        )
        return mixed

    def shares(self) -> Tensor:
        """Return the weights [m, n] of the states in the mixtures."""
        scores = self.weight + 1.0 / self.weight.shape[1]
        return nn.functional.dropout(scores, self.dropout_rate, self.training).softmax(-1)


@dataclasses.dataclass(frozen=True)
class SourceStream:
    """Caches of the source read so far; `is_seen` [R, S] are the columns visible to the decoder.

    `encoder` holds keys and values for later source tokens, `decoder` those for target tokens; the
    first `lead` columns precede the source.
    """

    is_seen: Tensor
    encoder: KVCache
    decoder: KVCache
    lead: int

    def grown(self, column: SourceCache, is_seen: Tensor) -> SourceStream:
        """Return the stream with one more column, [R, H, 1, d] for each attention."""
        for block, (keys, values) in enumerate(zip(column.keys, column.values, strict=True)):
            self.decoder.push(block, keys[:, :, 0], values[:, :, 0])
        self.decoder.advance()
        return dataclasses.replace(self, is_seen=torch.cat([self.is_seen, is_seen[:, None]], 1))

    def memory(self) -> SourceCache:
        """Return the source read so far, for the decoder."""
        pairs = [self.decoder.read(block) for block in range(self.decoder.blocks)]
        # Rows of unequal lengths are padded; in a single stream all columns are seen, without a
        # mask.
        keys, values = zip(*pairs, strict=True)
        return SourceCache(keys, values, source_mask(self.is_seen, keys[0]), lead=self.lead)


@dataclasses.dataclass(frozen=True)
class PrefixPlan:
    """The prefixes that a path [B, T] needs, and the positions that read each of them.

    sentence and reads [P] identify the prefixes; slots [P, W] are the indices b * T + t into a flat
    [B * T] of the positions that read a prefix (unused slots are arbitrary), and slot_of [B * T]
    the slot of each position.
    """

    sentence: Tensor
    reads: Tensor
    slots: Tensor
    slot_of: Tensor

    @classmethod
    def make(cls, path: Tensor) -> PrefixPlan:
        """Return the plan for the reads `path` [B, T]."""
        # A prefix is a number, sentence * base + reads: equal ones are encoded once.
        base = int(path.max()) + 1
        sentence = torch.arange(len(path), device=path.device)[:, None]
        distinct, prefix, sizes = torch.unique(
            (sentence * base + path).flatten(), return_inverse=True, return_counts=True
        )
        # Positions are numbered among those that read the same prefix, in order, and each prefix's
        # queries are padded to the largest such group: [P, W] without a loop.
        order = prefix.argsort(stable=True)
        starts = sizes.cumsum(0) - sizes
        rank = torch.empty_like(prefix)
        rank[order] = torch.arange(len(order), device=path.device) - starts[prefix[order]]
        width = int(sizes.max())
        slot_of = prefix * width + rank
        slots = prefix.new_zeros(len(distinct) * width)
        slots[slot_of] = torch.arange(len(slot_of), device=path.device)
        sentence = torch.div(distinct, base, rounding_mode="floor")
        return cls(sentence, distinct - sentence * base, slots.view(len(distinct), width), slot_of)


@dataclasses.dataclass(frozen=True)
class ReencodedPrefixes(SourceCache):
    """Keys and values of P prefixes, read in teacher forcing by the positions of a plan."""

    plan: PrefixPlan = dataclasses.field(kw_only=True)

    def attend_all(self, block: int, query: Tensor, *, rate: float = 0.0) -> Tensor:
        return self._collect(super().attend_all(block, self._spread(query), rate=rate), query)

    def weights_all(self, block: int, query: Tensor) -> Tensor:
        return self._collect(super().weights_all(block, self._spread(query)), query)

    def _spread(self, query: Tensor) -> Tensor:
        """Return the queries [P, H, W, d], grouped by the prefixes that they read."""
        flat = query.transpose(1, 2).flatten(0, 1)
        slots = self.plan.slots
        spread: Tensor = flat.index_select(0, slots.flatten()).unflatten(0, slots.shape)
        return spread.transpose(1, 2)

    def _collect(self, read: Tensor, query: Tensor) -> Tensor:
        """Return the results [P, H, W, .] in the order of the queries, [B, H, T, .]."""
        # Results of unused slots are dropped.
        flat = read.transpose(1, 2).flatten(0, 1).index_select(0, self.plan.slot_of)
        collected: Tensor = flat.unflatten(0, (query.shape[0], query.shape[2]))
        return collected.transpose(1, 2)


@dataclasses.dataclass(frozen=True)
class InformedPrefixes(ReencodedPrefixes, InformationCache):
    """Prefixes whose target positions have information, target [P, W]."""

    @classmethod
    def of(cls, memory: ReencodedPrefixes, target: Tensor) -> InformedPrefixes:
        """Return `memory`, which has the source's information, for target tokens [B, T]."""
        slots = memory.plan.slots
        spread = target.flatten().index_select(0, slots.flatten()).view(slots.shape)
        return cls.over(memory, plan=memory.plan, target=spread)


ReadLimit = Callable[[SourceCache], SourceCache]
"""Limits a memory to the source read at each target position of a batch."""


@dataclasses.dataclass(frozen=True)
class TransformerState:
    """Decoding state: keys and values of the source and of the tokens written.

    A bi-directional encoder re-encodes `source` [R, S] at each READ; `reads` [R] is the number of
    its tokens in the memory (None: all). In streams `memory` is None: a bi-directional encoder
    makes it in the next step, the others keep the source in `stream`. Models with exits have their
    key and value projections in `maps` and, if the source decides (5.11), the exits of sentences in
    `sentence_exits` [R] (int64). `fed` [R] are the tokens of a step in progress, `reading` is the
    state of a reading mechanism, and `heads` are the positions of monotonic heads.
    """

    memory: SourceCache | None
    cache: KVCache
    source: Tensor | None = None
    reads: Tensor | None = None
    stream: SourceStream | None = None
    maps: ExitKVProjection | None = None
    sentence_exits: Tensor | None = None
    fed: Tensor | None = None
    reading: ReadingState | None = None
    heads: HeadPositions | None = None

    def to_static(
        self, position: StaticPosition, rows: Tensor, width: int
    ) -> TransformerState | None:
        """Return the static form (layers/static_cache.py) of `rows` [R], `width` of each sentence.

        Returns None before the first token, with exits or a reading mechanism, in streams, and
        after limited reads.
        """
        # CUDA graphs replay fixed shapes; these change from step to step.
        changing = self.maps, self.stream, self.reads, self.reading, self.heads
        changes = any(value is not None for value in changing)
        if self.memory is None or not self.cache.filled or changes:
            return None
        position.move(self.cache.filled)
        memory = self.memory.to_static(rows, width)
        return TransformerState(memory, StaticKVCache.of(self.cache, position, rows))

    def with_room(self, position: int) -> TransformerState:
        assert isinstance(self.cache, StaticKVCache)
        cache = self.cache.with_room(position)
        return self if cache is self.cache else dataclasses.replace(self, cache=cache)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """An encoder's states [B, S', D] of a marked source.

    `read` are the states that decoder blocks read, one tensor for all or one for each, and `last`
    those of the last encoder block; `hidden` is the additive mask over them or None, `is_seen`
    [B, S'] marks visible tokens, `is_real` [B, S] the tokens of the source before marking, and
    `information` [B, S'] is that of the tokens, in models that have it.
    """

    read: Tensor | list[Tensor]
    last: Tensor
    hidden: Tensor | None
    is_seen: Tensor
    is_real: Tensor
    information: Tensor | None = None

    def detached(self) -> Encoded:
        """Return the same without a gradient into the encoder."""
        read = self.read
        cut = read.detach() if isinstance(read, Tensor) else [state.detach() for state in read]
        return dataclasses.replace(self, read=cut, last=self.last.detach())


class TransformerSource(ExitModel):
    """The source side of a Transformer; the subclass sets the attributes declared here."""

    config: TransformerConfig
    source_embedding: Embedding
    encoder: nn.ModuleList
    decoder: nn.ModuleList
    mixtures: TransparentAttention | None
    encoder_norm: nn.Module
    source_projection: SourceProjection
    transport: Transport | None
    source_information: Information | None
    monotonic_heads: MonotonicHeads | None
    halting_map: nn.Linear | None

    def begin(self, source: Tensor, source_lengths: Tensor) -> TransformerState:
        """Return the state before the first token, for source [R, S] and lengths [R].

        A source of no columns begins a stream: see `extend`.
        """
        cache = KVCache(self.config.decoder_depth)
        maps = reading = heads = None
        if self.monotonic_heads is not None:
            heads = HeadPositions.at_start(len(source), self.monotonic_heads)
        if self.config.reader in ("transport", "information"):
            informed = self.source_information is not None
            reading = ReadingState.at_start(len(source), source.device, informed=informed)
        if self.traits.num_exits > 1:
            blocks = [block for block in self.decoder if isinstance(block, DecoderBlock)]
            maps = ExitKVProjection(blocks)
        if not source.shape[1]:
            # A bi-directional encoder has nothing to cache: it waits for tokens (`_reread`).
            if self.traits.reencodes:
                return TransformerState(None, cache, source, maps=maps, reading=reading)
            caches = KVCache(self.config.encoder_depth), KVCache(self._entries)
            stream = SourceStream(source.bool(), *caches, self._lead)
            if self.config.source_marker == "begin":
                stream = self._read_column(source.new_full((len(source),), BEGIN), stream)
            return TransformerState(
                None, cache, stream=stream, maps=maps, reading=reading, heads=heads
            )
        encoded = self._encode(source, source_lengths)
        # With exits some blocks may never run: their keys and values are projected once they do.
        memory = self._remember(encoded, is_lazy=maps is not None)
        # A reading mechanism has its own scores for each column.
        memory = memory.padded() if self.config.reader == "none" else memory.contiguous()
        tokens = source.masked_fill(~encoded.is_real, PAD) if self.traits.reencodes else None
        exits = None
        if self.config.halting == "sequence":
            exits = self._source_logits(encoded).argmax(1) + 1
        return TransformerState(
            memory, cache, tokens, maps=maps, sentence_exits=exits, reading=reading, heads=heads
        )

    def extend(self, tokens: Tensor, state: TransformerState) -> TransformerState:
        """Return the state with one more source token [R]; `<pad>` adds nothing to its row.

        A bi-directional encoder waits for the next step and then encodes all that has been read.
        """
        if state.source is not None:
            # All READs between two WRITEs together cost one encoding.
            source = torch.cat([state.source, tokens[:, None]], 1)
            return dataclasses.replace(state, source=source, memory=None)
        if state.stream is None:
            raise ValueError("a stream begins with a source of no columns")
        return dataclasses.replace(state, stream=self._read_column(tokens, state.stream))

    def _encode(self, source: Tensor, source_lengths: Tensor) -> Encoded:
        is_source = is_token(source_lengths, source.shape[1])
        marked, is_seen = _marked(source, is_source, self.config.source_marker)
        states = [narrowed(self.source_embedding(marked))]
        hidden = source_mask(is_seen, states[0])
        mask, causal = hidden, self.config.encoder == "unidirectional"
        if causal:
            mask = None  # Padding comes after all real tokens, so causality hides it too.
        elif self.config.encoder == "window":
            mask = window_mask(marked.shape[1], self.config.window, states[0])
        information = None
        if self.source_information is not None:
            information = self.source_information(states[0])
        focus = None if information is None else information - 1.0
        for block in self.encoder:
            states.append(block(states[-1], mask, causal=causal, focus=focus))
        read = self._mixed(states)
        last = read if isinstance(read, Tensor) else self.encoder_norm(states[-1])
        return Encoded(read, last, hidden, is_seen, is_source, information)

    def _remember(self, encoded: Encoded, *, is_lazy: bool = False) -> SourceCache:
        memory: SourceCache
        if is_lazy:
            memory = LazySourceCache.of_states(self.source_projection, encoded.read, encoded.hidden)
        else:
            memory = self._project(encoded.read, encoded.hidden, encoded.information)
        if self.config.source_marker == "add-zero":
            # The pair goes in front of the projected keys and values: it is not a token.
            return memory.led_by_zero()
        return dataclasses.replace(memory, lead=self._lead)

    def _project(
        self, states: Tensor | list[Tensor], mask: Tensor | None, information: Tensor | None
    ) -> SourceCache:
        """Return keys and values of source states [B, S, D], one for all blocks or one for each."""
        memory: SourceCache = self.source_projection(states, mask)
        if self.transport is not None:
            return self.transport.with_keys(memory, states)
        if self.monotonic_heads is not None:
            return self.monotonic_heads.with_keys(memory, states)
        return memory if information is None else with_information(memory, information)

    @property
    def _entries(self) -> int:
        """Number of pairs of keys and values that `_project` returns."""
        blocks = self.config.decoder_depth
        if self.transport is not None or self.monotonic_heads is not None:
            return 2 * blocks
        return blocks + (self.source_information is not None)

    def _source_information(self, batch: Batch) -> Tensor | None:
        """Return the information [B, S] of source tokens, 0 for those that are not visible."""
        if self.source_information is None:
            return None
        marked, is_seen = _marked(batch.source, batch.is_source, self.config.source_marker)
        if self.traits.reencodes:
            # It depends only on embeddings, so no prefix has to be encoded.
            information = self.source_information(narrowed(self.source_embedding(marked)))
        else:
            information = batch.encode_source(self._encode).information
        assert information is not None
        whole: Tensor = information * is_seen
        return whole[:, marked.shape[1] - batch.source.shape[1] :]

    def _for_reader(
        self,
        memory: SourceCache,
        target: Tensor | None,
        threshold: float | None = None,
        positions: HeadPositions | None = None,
    ) -> SourceCache:
        """Return the memory, wrapped for the model's reading mechanism if it has one.

        target [B, T] ([B, width] in a step) is the information of target tokens; `threshold` is as
        in `TransportCache`. `positions` are those of monotonic heads in a step. Without them, for
        all target positions at once, these heads have expected alignments in training and hard
        decisions, as in a search, in evaluation mode.
        """
        heads = self.monotonic_heads
        if heads is not None:
            if positions is None:
                return MonotonicCache.over(memory, heads=heads, is_expected=self.training)
            return MonotonicCache.over(
                memory, heads=heads, start=positions.columns, threshold=positions.threshold
            )
        if self.transport is not None:
            return TransportCache.over(memory, network=self.transport, threshold=threshold)
        if target is None:
            return memory
        if isinstance(memory, ReencodedPrefixes):
            return InformedPrefixes.of(memory, target)
        return InformationCache.over(memory, target=target)

    def _mixed(self, states: list[Tensor]) -> Tensor | list[Tensor]:
        """Return the states that decoder blocks read, one for all or each, from h_0 .. h_N."""
        if self.mixtures is None:
            last: Tensor = self.encoder_norm(states[-1])
            return last
        return [self.encoder_norm(mixed) for mixed in self.mixtures(states)]

    def _source_logits(self, encoded: Encoded) -> Tensor:
        """Return the logits [B, N] of Eq. (5.11), from the mean source state."""
        assert self.halting_map is not None
        # The mean over visible tokens, as one product with their shares.
        shares = encoded.is_seen / encoded.is_seen.sum(1, keepdim=True)
        mean = (shares[:, None].to(encoded.last.dtype) @ encoded.last)[:, 0]
        logits: Tensor = self.halting_map(mean)
        return logits

    def _read_for(self, batch: Batch, sites: PredictionSites) -> tuple[Encoded, ReadLimit]:
        """Return the encoded source, or its prefixes, and a function that limits memories to reads.

        Separately, because `exit_features` makes two memories from one encoding.
        """
        if sites.reads is None:
            return batch.encode_source(self._encode), lambda memory: memory
        path = path_of(batch, sites)
        if not self.traits.reencodes:
            return batch.encode_source(self._encode), lambda memory: memory.limited(path)
        # The P truncated sources form a separate batch, cut at the longest prefix.
        plan = PrefixPlan.make(path)
        size = int(plan.reads.max())
        encoded = self._encode(batch.source[plan.sentence, :size], plan.reads)
        return encoded, lambda memory: ReencodedPrefixes.over(memory, plan=plan)

    def _memory_for(self, batch: Batch, sites: PredictionSites) -> SourceCache:
        encoded, limited = self._read_for(batch, sites)
        return limited(self._remember(encoded))

    @property
    def _lead(self) -> int:
        """Number of columns before the source, which the decoder sees before the first READ."""
        return int(self.config.source_marker in ("begin", "add-zero"))

    def _read_column(self, tokens: Tensor, stream: SourceStream) -> SourceStream:
        """Encode the newest source token [R] of each row, given those before it."""
        states = [narrowed(self.source_embedding(tokens[:, None], stream.encoder.filled)[:, 0])]
        is_first = stream.encoder.filled == 0
        window = self.config.window if self.config.encoder == "window" else None
        information = focus = None
        if self.source_information is not None:
            information = self.source_information(states[0])[:, None]
            focus = information[:, 0] - 1.0
        for number, block in enumerate(self.encoder):
            assert isinstance(block, EncoderBlock)
            states.append(block.step(states[-1], stream.encoder, number, window, focus))
        stream.encoder.advance()
        read = self._mixed([state[:, None] for state in states])
        column = self._project(read, None, information)
        is_seen = tokens != PAD
        # The end symbol is read but not visible, unless it is the only token (an empty source).
        if self.config.source_marker == "none" and not is_first:
            is_seen = is_seen & (tokens != END)
        # The zero pair precedes the source and is always visible: fairseq's `add_zero_attn`.
        if self.config.source_marker == "add-zero" and is_first:
            zeros = tuple(map(torch.zeros_like, column.keys))
            stream = stream.grown(SourceCache(zeros, zeros, None), torch.ones_like(is_seen))
        return stream.grown(column, is_seen)

    def _reread(
        self, state: TransformerState, source: Tensor, reads: Tensor | None, rows: Tensor | None
    ) -> TransformerState:
        """Re-encode the source that rows have read unless the memory holds it, Eq. (4.16).

        `reads` are those of `rows` (None: of all); those of other rows have not changed.
        """
        if reads is None and state.reads is None and state.memory is not None:
            return state
        # Three cases: no limit now or before (above); a stream without a memory; otherwise only the
        # rows whose reads have changed are re-encoded.
        whole = (source != PAD).sum(1)
        before = whole if state.reads is None else state.reads
        if reads is not None and rows is not None:
            reads = before.index_copy(0, rows, reads)
        reads = whole if reads is None else torch.minimum(reads, whole)
        if state.memory is None:
            memory = self._remember(self._encode(source, reads)).contiguous()
            return dataclasses.replace(state, memory=memory, reads=reads)
        rows = (reads != before).nonzero()[:, 0]
        if not len(rows):
            return state
        size = int(reads[rows].max())
        part = self._remember(self._encode(source[rows, :size], reads[rows]))
        return dataclasses.replace(state, memory=state.memory.with_rows(rows, part), reads=reads)


def _marked(source: Tensor, is_source: Tensor, marker: SourceMarker) -> tuple[Tensor, Tensor]:
    """Return the tokens [B, S'] to encode, and a mask [B, S'] of those that are visible."""
    if marker == "begin":
        first = source.new_full((len(source), 1), BEGIN)
        return torch.cat([first, source], 1), pad(is_source, (1, 0), value=True)
    if marker == "none":
        is_word = source != END
        is_word[:, :1] = True  # an empty source keeps its end symbol: attention needs one token
        return source, is_source & is_word
    return source, is_source


def narrowed(features: Tensor) -> Tensor:
    """Return `features` in autocast's type if autocast is on, so that no block has to convert."""
    # Embeddings come out in fp32 under autocast. Doubles stay: they are for exact comparisons.
    device = features.device.type
    if not torch.is_autocast_enabled(device) or features.dtype is torch.float64:
        return features
    return features.to(torch.get_autocast_dtype(device))
