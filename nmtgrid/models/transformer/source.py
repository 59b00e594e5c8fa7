"""The source side of a Transformer: three encoders, source markers, limited reads, and streams.

What a target position may look at is a `SourceMemory`. A uni-directional encoder makes one for the
whole source and shows each position its part; a bi-directional one makes one for each prefix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nmtgrid.base.masks import is_token
from nmtgrid.data.batches import Batch
from nmtgrid.layers.attention import source_mask, window_mask
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.source_cache import SourceMemory
from nmtgrid.layers.static_cache import FixedMemory, FixedTokens
from nmtgrid.layers.static_position import Place
from nmtgrid.layers.transformer.attention import SourceProjection
from nmtgrid.layers.transformer.blocks import DecoderBlock, EncoderBlock
from nmtgrid.layers.transformer.early_exit import LazyMemory
from nmtgrid.layers.transformer.exit_maps import ExitMaps
from nmtgrid.layers.transformer.kv_cache import TokenCache
from nmtgrid.models.api import ExitModel, Sites, path_of
from nmtgrid.models.transformer.mixture import StateMixtures
from nmtgrid.models.transformer.prefixes import PrefixMemory, PrefixPlan
from nmtgrid.models.transformer.source_stream import SourceStream
from nmtgrid.models.transformer.transformer_config import SourceMarker, TransformerConfig
from nmtgrid.text.vocabulary import BEGIN, END, PAD

Shape = Callable[[SourceMemory], SourceMemory]
"""Makes of a memory the one that a batch's positions see."""


@dataclasses.dataclass(frozen=True)
class TransformerState:
    """What decoding keeps: the source's keys and values, and those of the tokens written.

    A bi-directional encoder needs the source [R, S] again at each READ; `reads` [R] is how much of
    it the memory now holds (None: all). `memory` is None where it has to be made first: in a
    stream, whose source the others keep in `stream`. Models with exits keep maps of their own, and
    `chosen` [R] (int64), the exit for a whole sentence, where the source says it (5.11).
    """

    memory: SourceMemory | None
    cache: TokenCache
    source: Tensor | None = None
    reads: Tensor | None = None
    stream: SourceStream | None = None
    maps: ExitMaps | None = None
    chosen: Tensor | None = None

    def fixed(self, place: Place, rows: Tensor, width: int) -> TransformerState | None:
        """Return the fixed form (layers/static_cache.py) of `rows` [R], `width` of each sentence.

        None before the first token, with exits, in streams and once reads were limited.
        """
        grows = (self.maps, self.stream, self.reads)
        if self.memory is None or not self.cache.filled or grows != (None, None, None):
            return None
        place.move(self.cache.filled)
        memory = FixedMemory.of(self.memory, rows, width)
        return TransformerState(memory, FixedTokens.of(self.cache, place, rows))

    def with_room(self, position: int) -> TransformerState:
        """Return this fixed state, or, where `position` has no room in it, a larger copy."""
        assert isinstance(self.cache, FixedTokens)
        cache = self.cache.with_room(position)
        return self if cache is self.cache else dataclasses.replace(self, cache=cache)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """An encoder's states [B, S', D] of a marked source.

    `read` is what decoder blocks read, the same for all or one for each, and `last` the last
    block's; `hidden` is the additive mask over them or None, `is_seen` [B, S'] what may be looked
    at, and `is_real` [B, S] the tokens of the source as it came.
    """

    read: Tensor | list[Tensor]
    last: Tensor
    hidden: Tensor | None
    is_seen: Tensor
    is_real: Tensor

    def detached(self) -> Encoded:
        """Return the same without a gradient into the encoder."""
        read = self.read
        cut = read.detach() if isinstance(read, Tensor) else [state.detach() for state in read]
        return dataclasses.replace(self, read=cut, last=self.last.detach())


class TransformerSource(ExitModel):
    """What a Transformer does with its source; the subclass sets the parts named here."""

    config: TransformerConfig
    source_embedding: Embedding
    encoder: nn.ModuleList
    decoder: nn.ModuleList
    mixtures: StateMixtures | None
    encoder_norm: nn.Module
    source_projection: SourceProjection
    halting_map: nn.Module | None

    def begin(self, source: Tensor, source_lengths: Tensor) -> TransformerState:
        """Return the state before the first token, for source [R, S] and lengths [R].

        A source of no columns begins a stream: see `extend`.
        """
        cache = TokenCache(self.config.decoder_depth)
        maps = self._exit_maps()
        if not source.shape[1]:
            return dataclasses.replace(self._begin_stream(source, cache), maps=maps)
        encoded = self._read_whole(source, source_lengths)
        # Where blocks may never be reached, their part of the memory is made when they are.
        memory = self._remember(encoded, is_lazy=maps is not None).ready()
        kept = source.masked_fill(~encoded.is_real, PAD) if self.traits.reencodes else None
        chosen = None
        if self.config.halting == "sequence":
            chosen = self._source_logits(encoded).argmax(1) + 1
        return TransformerState(memory, cache, kept, maps=maps, chosen=chosen)

    def extend(self, tokens: Tensor, state: TransformerState) -> TransformerState:
        """Return the state with one more source token [R]; `<pad>` adds nothing to its row.

        A bi-directional encoder waits for the next step and then encodes all that has been read.
        """
        if state.source is not None:
            source = torch.cat([state.source, tokens[:, None]], 1)
            return dataclasses.replace(state, source=source, memory=None)
        if state.stream is None:
            raise ValueError("a stream begins with a source of no columns")
        return dataclasses.replace(state, stream=self._read_column(tokens, state.stream))

    def _encode(self, source: Tensor, is_source: Tensor) -> SourceMemory:
        """Return the keys and values of source [B, S] for all decoder blocks."""
        return self._remember(self._read(source, is_source))

    def _read_whole(self, source: Tensor, source_lengths: Tensor) -> Encoded:
        """Return the encoder's states of source [B, S] with lengths [B]."""
        return self._read(source, is_token(source_lengths, source.shape[1]))

    def _read(self, source: Tensor, is_source: Tensor) -> Encoded:
        """Return the encoder's states of source [B, S]."""
        marked, is_seen = _marked(source, is_source, self.config.source_marker)
        states = [narrowed(self.source_embedding(marked))]
        hidden = source_mask(is_seen, states[0])
        mask, causal = hidden, self.config.encoder == "unidirectional"
        if causal:
            mask = None  # Padding stands behind all real tokens, so causality hides it too.
        elif self.config.encoder == "window":
            mask = window_mask(marked.shape[1], self.config.window, states[0])
        for block in self.encoder:
            states.append(block(states[-1], mask, causal=causal))
        read = self._mixed(states)
        last = read if isinstance(read, Tensor) else self.encoder_norm(states[-1])
        return Encoded(read, last, hidden, is_seen, is_source)

    def _remember(self, encoded: Encoded, *, is_lazy: bool = False) -> SourceMemory:
        """Return what the decoder reads of the source."""
        memory: SourceMemory
        if is_lazy:
            memory = LazyMemory.over(self.source_projection, encoded.read, encoded.hidden)
        else:
            memory = self.source_projection(encoded.read, encoded.hidden)
        if self.config.source_marker == "add-zero":
            return memory.led_by_zero()
        return dataclasses.replace(memory, lead=self._lead)

    def _mixed(self, states: list[Tensor]) -> Tensor | list[Tensor]:
        """Return what the decoder's blocks read of h_0 .. h_N [B, S, D], all the same or each."""
        if self.mixtures is None:
            last: Tensor = self.encoder_norm(states[-1])
            return last
        return [self.encoder_norm(mixed) for mixed in self.mixtures(states)]

    def _source_logits(self, encoded: Encoded) -> Tensor:
        """Return [B, N], Eq. (5.11), before the softmax: of the mean source state."""
        assert self.halting_map is not None
        shares = encoded.is_seen / encoded.is_seen.sum(1, keepdim=True)
        mean = (shares[:, None].to(encoded.last.dtype) @ encoded.last)[:, 0]
        found: Tensor = self.halting_map(mean)
        return found

    def _exit_maps(self) -> ExitMaps | None:
        """Return what steps that rows leave early need, or None without exits."""
        if self.traits.num_exits == 1:
            return None
        return ExitMaps([block for block in self.decoder if isinstance(block, DecoderBlock)])

    def _read_for(self, batch: Batch, sites: Sites) -> tuple[Encoded, Shape]:
        """Return the source, or its prefixes, as `sites` read it, and how to show them a memory."""
        if sites.reads is None:
            return batch.encoded(self._read_whole), _whole
        path = path_of(batch, sites)
        if not self.traits.reencodes:
            return batch.encoded(self._read_whole), lambda memory: memory.limited(path)
        plan = PrefixPlan.make(path)
        size = int(plan.reads.max())
        encoded = self._read(batch.source[plan.sentence, :size], is_token(plan.reads, size))
        return encoded, lambda memory: PrefixMemory.over(memory, plan)

    def _memory_for(self, batch: Batch, sites: Sites) -> SourceMemory:
        """Return the memory that shows each target position what its site lets it read."""
        encoded, shape = self._read_for(batch, sites)
        return shape(self._remember(encoded))

    @property
    def _lead(self) -> int:
        """Columns before the source, which the decoder sees before the first READ."""
        return int(self.config.source_marker in ("begin", "add-zero"))

    def _begin_stream(self, source: Tensor, cache: TokenCache) -> TransformerState:
        if self.traits.reencodes:
            return TransformerState(None, cache, source)
        caches = TokenCache(self.config.encoder_depth), TokenCache(self.config.decoder_depth)
        stream = SourceStream(source.bool(), *caches, self._lead)
        if self.config.source_marker == "begin":
            stream = self._read_column(source.new_full((len(source),), BEGIN), stream)
        return TransformerState(None, cache, stream=stream)

    def _read_column(self, tokens: Tensor, stream: SourceStream) -> SourceStream:
        """Encode the newest source token [R] of each row beside those before it."""
        states = [narrowed(self.source_embedding(tokens[:, None], stream.encoder.filled)[:, 0])]
        is_first = stream.encoder.filled == 0
        window = self.config.window if self.config.encoder == "window" else None
        for place, block in enumerate(self.encoder):
            assert isinstance(block, EncoderBlock)
            states.append(block.step(states[-1], stream.encoder, place, window))
        stream.encoder.advance()
        read = self._mixed([state[:, None] for state in states])
        column: SourceMemory = self.source_projection(read, None)
        is_seen = tokens != PAD
        if self.config.source_marker == "none" and not is_first:
            is_seen = is_seen & (tokens != END)
        if self.config.source_marker == "add-zero" and is_first:
            zeros = tuple(map(torch.zeros_like, column.keys))
            stream = stream.grown(SourceMemory(zeros, zeros, None), torch.ones_like(is_seen))
        return stream.grown(column, is_seen)

    def _reread(
        self, state: TransformerState, source: Tensor, reads: Tensor | None
    ) -> TransformerState:
        """Encode anew what rows have read where it is not what the memory holds, Eq. (4.16)."""
        if reads is None and state.reads is None and state.memory is not None:
            return state
        whole = (source != PAD).sum(1)
        reads = whole if reads is None else torch.minimum(reads, whole)
        if state.memory is None:
            memory = self._encode(source, is_token(reads, source.shape[1])).ready()
            return dataclasses.replace(state, memory=memory, reads=reads)
        rows = (reads != (whole if state.reads is None else state.reads)).nonzero()[:, 0]
        if not len(rows):
            return state
        size = int(reads[rows].max())
        part = self._encode(source[rows, :size], is_token(reads[rows], size))
        return dataclasses.replace(state, memory=state.memory.written(rows, part), reads=reads)


def _whole(memory: SourceMemory) -> SourceMemory:
    return memory


def _marked(source: Tensor, is_source: Tensor, marker: SourceMarker) -> tuple[Tensor, Tensor]:
    """Return the tokens [B, S'] that are encoded and which of them may be seen [B, S']."""
    if marker == "begin":
        first = source.new_full((len(source), 1), BEGIN)
        return torch.cat([first, source], 1), pad(is_source, (1, 0), value=True)
    if marker == "none":
        is_word = source != END
        is_word[:, :1] = True
        return source, is_source & is_word
    return source, is_source


def narrowed(features: Tensor) -> Tensor:
    """Return `features` in autocast's type where that is on, so that no block has to convert."""
    device = features.device.type
    if not torch.is_autocast_enabled(device) or features.dtype is torch.float64:
        return features
    return features.to(torch.get_autocast_dtype(device))
