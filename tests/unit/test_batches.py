"""Batches: limits, completeness, order, and places to resume from."""

from __future__ import annotations

import itertools

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmtgrid.data.batches import BatchPlan, DataCursor, collate, cut_by_length


def plan(count: int = 300, **changes: int) -> BatchPlan:
    draw = numpy.random.default_rng(1)
    lengths = draw.integers(1, 30, (2, count))
    settings = {"max_tokens": 120, "max_cells": 1500, **changes}
    return BatchPlan(lengths[0], lengths[1], **settings)


def test_collate_writes_begin_and_end_and_pads_on_the_right() -> None:
    batch = collate([[5, 6], [7]], [[8], [9, 10, 11]], [3, 1])
    assert batch.source.tolist() == [[5, 6, 2], [7, 2, 0]]
    assert batch.target_input.tolist() == [[1, 8, 0, 0], [1, 9, 10, 11]]
    assert batch.target_output.tolist() == [[8, 2, 0, 0], [9, 10, 11, 2]]
    assert batch.source_lengths.tolist() == [3, 2]
    assert batch.target_lengths.tolist() == [2, 4]
    assert batch.is_target.tolist() == [[True, True, False, False], [True] * 4]


def test_select_cuts_to_the_longest_of_the_chosen() -> None:
    batch = collate([[5, 6], [7]], [[8], [9, 10, 11]], [3, 1]).select(torch.tensor([0]))
    assert batch.source.tolist() == [[5, 6, 2]]
    assert batch.target_output.tolist() == [[8, 2]]
    assert batch.indices.tolist() == [3]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60),
    st.integers(1, 200),
    st.integers(0, 2000),
)
def test_each_pair_comes_once_and_limits_hold(
    pairs: list[tuple[int, int]], max_tokens: int, max_cells: int
) -> None:
    source, target = (numpy.array(side) for side in zip(*pairs, strict=True))
    batches = cut_by_length(source, target, numpy.arange(len(pairs)), max_tokens, max_cells)
    assert sorted(numpy.concatenate(batches).tolist()) == list(range(len(pairs)))
    for batch in batches:
        tokens = len(batch) * (int(target[batch].max()) + 1)
        cells = tokens * (int(source[batch].max()) + 1)
        assert len(batch) == 1 or (tokens <= max_tokens and (not max_cells or cells <= max_cells))


def test_lengths_count_the_end_symbol() -> None:
    # Four targets of 4 tokens are 5 positions each: 20 fit, 19 do not.
    lengths = numpy.full(4, 4)
    assert [len(b) for b in cut_by_length(lengths, lengths, numpy.arange(4), 20)] == [4]
    assert [len(b) for b in cut_by_length(lengths, lengths, numpy.arange(4), 19)] == [3, 1]
    assert [len(b) for b in cut_by_length(lengths, lengths, numpy.arange(4), 99, 100)] == [4]
    assert [len(b) for b in cut_by_length(lengths, lengths, numpy.arange(4), 99, 99)] == [3, 1]


def test_epochs_differ_and_repeat_for_the_same_seed() -> None:
    first, again = plan().epoch(0), plan().epoch(0)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    other_epoch, other_seed = plan().epoch(1), plan(seed=2).epoch(0)
    for other in (other_epoch, other_seed):
        assert [b.tolist() for b in other] != [b.tolist() for b in first]
        assert sorted(numpy.concatenate(other)) == list(range(300))


def test_pairs_that_are_too_long_or_empty_are_skipped_and_counted() -> None:
    source, target = numpy.array([1, 9, 3, 0, 5]), numpy.array([1, 2, 9, 4, 5])
    made = BatchPlan(source, target, 100, max_length=8)
    assert made.skipped == 3 and made.count == 2
    assert sorted(numpy.concatenate(made.epoch(0)).tolist()) == [0, 4]


@pytest.mark.parametrize("pool_size", [1_000_000, 64])
def test_a_walk_goes_on_from_any_place(pool_size: int) -> None:
    lengths = numpy.random.default_rng(2).integers(1, 9, (2, 200))
    made = BatchPlan(lengths[0], lengths[1], 60, pool_size=pool_size, block_size=16)
    whole = list(itertools.islice(made.walk(DataCursor()), 2 * len(made.epoch(0)) + 3))
    for taken in range(len(whole)):
        place = DataCursor() if taken == 0 else whole[taken - 1][0]
        _, following = next(made.walk(place))
        assert following.tolist() == whole[taken][1].tolist()


def test_the_part_of_an_epoch_that_is_done_grows_evenly() -> None:
    """To one, over pools and batches; with pairs that are skipped too."""
    lengths = numpy.tile([5, 7, 9, 200], 300)
    plan = BatchPlan(lengths, lengths, 80, max_length=100, pool_size=400, block_size=100)
    following = [place for place, _ in plan.walk(DataCursor(2), epochs=1)]
    each = plan.count / len(following)
    for done, place in enumerate(following, start=1):
        assert plan.epochs_done(place, each) == pytest.approx(2 + done / len(following), abs=0.02)
    assert plan.epochs_done(following[-1], each) == 3


def test_an_epoch_ends_with_its_last_usable_pair() -> None:
    """Also where the pools that would come after it hold none."""
    lengths = numpy.full((2, 40), 4)
    lengths[0, 10:30] = 0
    made = BatchPlan(lengths[0], lengths[1], 25, pool_size=10, block_size=10)
    is_last = []
    for epoch in range(20):
        *_, (following, indices) = made.walk(DataCursor(epoch), epochs=1)
        assert following == DataCursor(epoch + 1)
        is_last.append(int(indices[0]) // 10)
    # Either block of usable pairs has come last, with empty ones behind it or not.
    assert set(is_last) == {0, 3}


def test_pools_hold_each_pair_once_and_whole_blocks() -> None:
    lengths = numpy.full((2, 1000), 4)
    made = BatchPlan(lengths[0], lengths[1], 50, pool_size=100, block_size=10)
    epoch = made.epoch(3)
    assert sorted(numpy.concatenate(epoch).tolist()) == list(range(1000))
    first_pool = numpy.concatenate(epoch[:10])
    assert len(set((first_pool // 10).tolist())) == 10


def test_fill_is_high_on_lengths_that_go_together() -> None:
    draw = numpy.random.default_rng(4)
    target = draw.integers(3, 40, 5000)
    source = numpy.maximum(1, target + draw.integers(-6, 7, 5000))
    made = BatchPlan(source, target, 1500, 24000)
    valid = int(((source + 1) * (target + 1)).sum())
    padded = sum(len(b) * (source[b].max() + 1) * (target[b].max() + 1) for b in made.epoch(0))
    assert valid / padded > 0.85
