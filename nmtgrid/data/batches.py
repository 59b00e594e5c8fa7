"""Batches of sentence pairs, limited in tokens and in grid cells, and the plan of an epoch.

Models read `Batch`, objectives add weights and soft targets to it, the trainer walks `BatchPlan`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.errors import DataError
from nmtgrid.base.io.records import Count
from nmtgrid.base.rows import State, cache_on_host, host_values, is_token, ragged_positions, take
from nmtgrid.layers.soft_targets import SoftTargets
from nmtgrid.text.vocabulary import BEGIN, END, PAD


@dataclasses.dataclass(frozen=True)
class SharedSources:
    """The encoded sources of several batches, computed once with one dropout mask.

    Row b of a batch is row rows[b] of the source [B', S] (None: row b).
    """

    source: Tensor
    source_lengths: Tensor
    rows: Tensor | None = None
    cache: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def of_rows(self, rows: Tensor) -> SharedSources:
        """Return these sources for a batch of the selected `rows`."""
        return dataclasses.replace(self, rows=rows if self.rows is None else self.rows[rows])

    def twice(self) -> SharedSources:
        """Return these sources for `Batch.twice`; each of its two passes draws its own dropout."""
        # Cached, so that batches which share these sources share the doubled ones too.
        if "twice" not in self.cache:
            values = host_values(self.source_lengths) * 2
            lengths = cache_on_host(self.source_lengths.repeat(2), values)
            self.cache["twice"] = SharedSources(torch.cat([self.source] * 2), lengths)
        doubled: SharedSources = self.cache["twice"]
        if self.rows is None:
            return doubled
        rows = torch.cat([self.rows, self.rows + len(self.source)])
        return dataclasses.replace(doubled, rows=rows)


@dataclasses.dataclass(frozen=True)
class Batch:
    """B sentence pairs, padded on the right with `<pad>`.

    source [B, S] ends with `</s>`; target_input [B, T] starts with `<s>`, and target_output [B, T]
    is the same shifted by one and ends with `</s>`. The lengths [B] include these symbols.
    `indices` [B] are the positions of the pairs in their split. If a source has several targets,
    `references` [B, K, L] are all of them, padded with `<pad>`, without begin or end symbols.

    Objectives add `weights` [B] of the sentences in the loss (None: 1 each) and `soft_targets` [B,
    T, C], the target distributions (None: target_output). Batches with the same sources encode them
    once through `shared`. `r_drop` is the alpha of R-Drop (None: off). `update` is the number of
    updates done before the one that uses the batch, `fraction_done` the fraction of the run done by
    then (None: not in training).
    """

    source: Tensor
    source_lengths: Tensor
    target_input: Tensor
    target_output: Tensor
    target_lengths: Tensor
    indices: Tensor
    references: Tensor | None = None
    weights: Tensor | None = None
    soft_targets: SoftTargets | None = None
    shared: SharedSources | None = None
    r_drop: float | None = None
    update: int | None = None
    fraction_done: float | None = None

    def __len__(self) -> int:
        return self.source.shape[0]

    @cached_property
    def is_source(self) -> Tensor:
        """[B, S], True on source tokens (end symbol included)."""
        return is_token(self.source_lengths, self.source.shape[1])

    @cached_property
    def is_target(self) -> Tensor:
        """[B, T], True where there is a token to predict (end symbol included)."""
        return is_token(self.target_lengths, self.target_input.shape[1])

    @cached_property
    def token_count(self) -> int:
        """The number of target tokens to predict, end symbols included."""
        return sum(host_values(self.target_lengths))

    @cached_property
    def target_positions(self) -> tuple[Tensor, Tensor]:
        """(sentence, position), each [M], of the target tokens in the order of `nonzero()`."""
        return ragged_positions(self.target_lengths, self.token_count)

    @cached_property
    def source_widths(self) -> Tensor:
        """[M]: the source length at each of the `target_positions`."""
        lengths = host_values(self.source_lengths), host_values(self.target_lengths)
        widths = [s for s, t in zip(*lengths, strict=True) for _ in range(t)]
        return cache_on_host(self.source_lengths[self.target_positions[0]], widths)

    def encode_source(self, encode: Callable[[Tensor, Tensor], State]) -> State:
        """Return the state that a model's `encode` computes from source [B, S] and lengths [B].

        It has one row per sentence (see base/rows.py).
        """
        shared = self.shared
        if shared is None:
            return encode(self.source, self.source_lengths)
        # A state computed without gradients cannot serve where they are needed.
        key = encode, torch.is_grad_enabled()
        if key not in shared.cache:
            shared.cache[key] = encode(shared.source, shared.source_lengths)
        state: State = shared.cache[key]
        return state if shared.rows is None else take(state, shared.rows)

    def with_shared_source(self) -> Batch:
        """Return this batch prepared so that selections from it share its encoded sources."""
        if self.shared is not None:
            return self
        return dataclasses.replace(self, shared=SharedSources(self.source, self.source_lengths))

    def twice(self) -> Batch:
        """Return a batch with each sentence twice [2B], for two passes in one; no soft targets."""
        doubled = self._map(lambda tensor: torch.cat([tensor, tensor]))
        for name in ("source_lengths", "target_lengths"):
            cache_on_host(doubled[name], host_values(getattr(self, name)) * 2)
        shared = None if self.shared is None else self.shared.twice()
        return dataclasses.replace(self, **doubled, soft_targets=None, shared=shared, r_drop=None)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on `device`."""
        # Without blocking: the copy of pinned memory overlaps with the running step.
        moved = self._map(lambda tensor: tensor.to(device, non_blocking=True))
        for name in ("source_lengths", "target_lengths"):
            cache_on_host(moved[name], host_values(getattr(self, name)))
        return dataclasses.replace(self, **moved)

    def pinned(self) -> Batch:
        """Return the batch in page-locked memory, from which a GPU copies asynchronously."""
        return dataclasses.replace(self, **self._map(Tensor.pin_memory))

    def _map(self, fn: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return `fn` of each tensor, by field name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: fn(value) for name, value in values.items() if isinstance(value, Tensor)}

    def repeated(self, times: int) -> tuple[Batch, Tensor]:
        """Return (batch, rows): each sentence `times` times in a row, and its row [B * times]."""
        rows = torch.arange(len(self), device=self.source.device).repeat_interleave(times)
        cache_on_host(rows, [row for row in range(len(self)) for _ in range(times)])
        return self if times == 1 else self.with_shared_source().select(rows), rows

    def select(self, rows: Tensor) -> Batch:
        """Return a batch of the sentences `rows`, cut to their longest lengths."""
        chosen = host_values(rows)
        sources, targets = (
            [values[row] for row in chosen]
            for values in map(host_values, (self.source_lengths, self.target_lengths))
        )
        source_lengths = cache_on_host(self.source_lengths[rows], sources)
        target_lengths = cache_on_host(self.target_lengths[rows], targets)
        # Columns of nothing but padding would only cost time.
        width, height = max(sources), max(targets)
        return dataclasses.replace(
            self,
            source=self.source[rows, :width],
            source_lengths=source_lengths,
            target_input=self.target_input[rows, :height],
            target_output=self.target_output[rows, :height],
            target_lengths=target_lengths,
            indices=self.indices[rows],
            references=None if self.references is None else self.references[rows],
            weights=None if self.weights is None else self.weights[rows],
            soft_targets=None if self.soft_targets is None else self.soft_targets[rows, :height],
            shared=None if self.shared is None else self.shared.of_rows(rows),
        )


def collate(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    indices: Sequence[int] | None = None,
) -> Batch:
    """Return the batch of these pairs of token ids, which have no begin and end symbols yet."""
    source = pad([[*tokens, END] for tokens in sources])
    target_output = pad([[*tokens, END] for tokens in targets])
    target_input = pad([[BEGIN, *tokens] for tokens in targets])
    return Batch(
        source,
        torch.tensor([len(tokens) + 1 for tokens in sources]),
        target_input,
        target_output,
        torch.tensor([len(tokens) + 1 for tokens in targets]),
        torch.tensor(list(range(len(sources)) if indices is None else indices)),
    )


class Pairs(Protocol):
    """A split of a dataset, or anything with the same interface."""

    @property
    def source_lengths(self) -> NDArray[Any]: ...

    @property
    def target_lengths(self) -> NDArray[Any]: ...

    def batch(self, indices: Sequence[int] | NDArray[Any]) -> Batch: ...


def pad(rows: list[list[int]]) -> Tensor:
    """Return the `rows` as [B, longest], padded on the right."""
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


@dataclasses.dataclass(frozen=True)
class DataCursor:
    """The position of a run in its data: the next batch to be read."""

    epoch: Count
    pool: Count
    batch: Count

    @classmethod
    def begin(cls, epoch: int = 0) -> DataCursor:
        """Return the beginning of an epoch."""
        return cls(epoch, 0, 0)


EpochLengths = Callable[[NDArray[Any], int], tuple[NDArray[Any], NDArray[Any]]]
"""Returns the source and target lengths that pairs have in an epoch."""


class BatchPlan:
    """The batches of each epoch and their order.

    Pairs are sorted by target length, then source length, so that there is little padding on both
    sides. The sorted list is cut where a batch would exceed `max_tokens` padded target tokens or
    `max_cells` padded grid cells (0: no limit), and the batches are shuffled. Large corpora are
    divided into pools of a million pairs each, made of random blocks of neighbouring pairs, to
    limit memory. Everything is a function of (seed, epoch), so a run can resume exactly at any
    `DataCursor`. Lengths are passed without end symbols, which are added. Pairs longer than
    `max_length` (0: no limit) on a side, or empty on one, are skipped; `skipped` is their number.

    `resegmented` returns the lengths of pairs [N] in an epoch, if they change (BPE-dropout), for
    cutting batches. These are positive and at most `max_length` if the original ones are.
    """

    def __init__(
        self,
        source_lengths: NDArray[Any],
        target_lengths: NDArray[Any],
        max_tokens: int,
        max_cells: int = 0,
        max_length: int = 0,
        seed: int = 1,
        *,
        resegmented: EpochLengths | None = None,
        pool_size: int = 1_000_000,
        block_size: int = 1000,
    ) -> None:
        self.source_lengths = numpy.asarray(source_lengths)
        self.target_lengths = numpy.asarray(target_lengths)
        self.max_tokens, self.max_cells = max_tokens, max_cells
        self.max_length, self.seed = max_length, seed
        self._resegmented = resegmented
        self.pool_size, self.block_size = pool_size, min(block_size, pool_size)
        usable = self._is_usable(slice(None))
        self.count = int(usable.sum())
        self.skipped = len(usable) - self.count

    def epoch_lengths(self, pairs: NDArray[Any], epoch: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the source and target lengths of these pairs [N] in an epoch."""
        if self._resegmented is not None:
            return self._resegmented(pairs, epoch)
        return self.source_lengths[pairs], self.target_lengths[pairs]

    def lengths(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the source and target lengths of the pairs that are not skipped."""
        usable = self._is_usable(slice(None))
        return self.source_lengths[usable], self.target_lengths[usable]

    def epoch(self, number: int) -> list[NDArray[Any]]:
        """Return the batches (arrays of indices) of epoch `number`."""
        return [indices for _, indices in self.walk(DataCursor.begin(number), epochs=1)]

    def walk(
        self, start: DataCursor, epochs: int | None = None
    ) -> Iterator[tuple[DataCursor, NDArray[Any]]]:
        """Yield (cursor after the batch, batch) from `start` on."""
        if not self.count:
            return
        epoch = start.epoch
        while epochs is None or epoch < start.epoch + epochs:
            pools = self._pools(epoch)
            for pool in range(start.pool if epoch == start.epoch else 0, len(pools)):
                batches = self._cut_pool(pools[pool], epoch, pool)
                at_start = epoch == start.epoch and pool == start.pool
                for batch in range(start.batch if at_start else 0, len(batches)):
                    following = DataCursor(epoch, pool, batch + 1)
                    if following.batch == len(batches):
                        following = self._next_pool(pools, epoch, pool)
                    yield following, batches[batch]
            epoch += 1

    def has(self, cursor: DataCursor) -> bool:
        """Return whether the plan has a batch at `cursor`."""
        pools = self._pools(cursor.epoch)
        return cursor.pool < len(pools) and cursor.batch < len(
            self._cut_pool(pools[cursor.pool], cursor.epoch, cursor.pool)
        )

    def _pools(self, epoch: int) -> list[NDArray[Any]]:
        """Return the blocks (their numbers) of each pool."""
        blocks = -(-len(self.source_lengths) // self.block_size)
        # Seeded by epoch, so that a resumed run can start at any epoch without the earlier ones.
        order = numpy.random.default_rng([self.seed, epoch]).permutation(blocks)
        size = max(1, self.pool_size // self.block_size)
        return [order[first : first + size] for first in range(0, blocks, size)]

    def epochs_done(self, cursor: DataCursor, pairs_per_batch: float) -> float:
        """Return approximately how many epochs precede `cursor`, for batches of this mean size."""
        pools = cursor.pool * self.pool_size / max(len(self.source_lengths), 1)
        batches = cursor.batch * pairs_per_batch / max(self.count, 1)
        return cursor.epoch + min(1.0, pools + batches)

    def cells(self, indices: NDArray[Any]) -> int:
        """Return the grid cells of the batch of these pairs, padding and end symbols included.

        The lengths are the original ones, without resegmentation.
        """
        height, width = self.target_lengths[indices].max(), self.source_lengths[indices].max()
        return len(indices) * (int(height) + 1) * (int(width) + 1)

    def _next_pool(self, pools: list[NDArray[Any]], epoch: int, pool: int) -> DataCursor:
        """Return the cursor of the next pool with usable pairs, or of the next epoch."""
        for later in range(pool + 1, len(pools)):
            if len(self._usable_pairs(pools[later])):
                return DataCursor(epoch, later, 0)
        return DataCursor.begin(epoch + 1)

    def _is_usable(self, pairs: slice | NDArray[Any]) -> NDArray[Any]:
        source, target = self.source_lengths[pairs], self.target_lengths[pairs]
        usable = (source > 0) & (target > 0)
        if self.max_length:
            usable &= (source <= self.max_length) & (target <= self.max_length)
        return numpy.asarray(usable)

    def _usable_pairs(self, blocks: NDArray[Any]) -> NDArray[Any]:
        size = self.block_size
        pairs = (blocks[:, None] * size + numpy.arange(size)[None, :]).reshape(-1)
        pairs = pairs[pairs < len(self.source_lengths)]
        return numpy.asarray(pairs[self._is_usable(pairs)])

    def _cut_pool(self, blocks: NDArray[Any], epoch: int, pool: int) -> list[NDArray[Any]]:
        pairs = self._usable_pairs(blocks)
        generator = numpy.random.default_rng([self.seed, epoch, pool + 1])
        # The sort is stable: pairs of equal lengths are grouped anew in each epoch.
        generator.shuffle(pairs)
        lengths = self.epoch_lengths(pairs, epoch)
        batches = cut_by_length(*lengths, numpy.arange(len(pairs)), self.max_tokens, self.max_cells)
        return [pairs[batches[index]] for index in generator.permutation(len(batches))]


def check_usable(plan: BatchPlan) -> None:
    """Raise DataError if the limits of `plan` leave no pair."""
    if not plan.count:
        raise DataError(
            f"All {plan.skipped:,} training pairs are empty or longer than {plan.max_length} "
            "tokens.",
            "Set a larger `batches.max_length`.",
        )


def cut_by_length(
    source_lengths: NDArray[Any],
    target_lengths: NDArray[Any],
    pairs: NDArray[Any],
    max_tokens: int,
    max_cells: int = 0,
) -> list[NDArray[Any]]:
    """Return the `pairs` sorted by length and cut into batches; ties keep the order of `pairs`.

    Source lengths alternate between rising and falling from one target length to the next, so that
    neighbours have similar lengths. A pair that exceeds a limit forms a batch by itself.
    """
    source, target = source_lengths[pairs].astype(int), target_lengths[pairs].astype(int)
    # lexsort sorts by its last key first.
    order = numpy.lexsort((numpy.where(target % 2 == 1, source, -source), target))
    pairs = pairs[order]
    widths, heights = (source[order] + 1).tolist(), (target[order] + 1).tolist()
    batches, first, widest = [], 0, 0
    for index, (width, height) in enumerate(zip(widths, heights, strict=True)):
        widest = max(widest, width)
        # Target lengths only grow along the order: this pair's height is the batch's.
        tokens = (index + 1 - first) * height
        if index > first and (tokens > max_tokens or (max_cells and tokens * widest > max_cells)):
            batches.append(pairs[first:index])
            first, widest = index, width
    if len(pairs):
        batches.append(pairs[first:])
    return batches
