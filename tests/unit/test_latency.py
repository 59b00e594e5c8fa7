"""Latency against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from nmtgrid.metrics.latency import (
    METRICS,
    Convention,
    Unit,
    latency,
    reference_words,
    sentence_latency,
    word_delays,
    words_arrived,
)


def _one(
    delays: list[float],
    source: int,
    reference: int | None = None,
    convention: Convention = "thesis",
    unit: Unit = "word",
) -> dict[str, float]:
    references = None if reference is None else [reference]
    found = latency([delays], [source], references, unit=unit, convention=convention)
    return {name: getattr(found, name) for name in METRICS}


def test_wait_k_of_equal_lengths_lags_by_k() -> None:
    """z = 3 4 5 5 5 of |x| = |y| = 5: lags 3 3 3 up to the cut-off; DAL keeps them at 3."""
    found = _one([3, 4, 5, 5, 5], 5)
    assert found["al"] == found["dal"] == found["laal"] == 3
    assert found["ap"] == pytest.approx(22 / 25)
    assert found["cw"] == pytest.approx(5 / 3) and found["max_cw"] == 3
    assert found["yaal"] == 3  # (3 - 0 + 4 - 1) / 2


def test_lengths_differ() -> None:
    """|x| = 6, |y| = 3, so the ideal reads 2 for each unit; z = 1 4 6.

    AL: (1 - 0 + 4 - 2 + 6 - 4) / 3; z' = 1, max(4, 3), max(6, 6) gives the same DAL.
    """
    found = _one([1, 4, 6], 6)
    assert found["al"] == pytest.approx(5 / 3)
    assert found["dal"] == pytest.approx(5 / 3)
    assert found["ap"] == pytest.approx(11 / 18)
    assert found["cw"] == 2 and found["max_cw"] == 3
    assert found["yaal"] == pytest.approx((1 + 2) / 2)


def test_differentiable_lagging_keeps_what_was_late() -> None:
    """|x| = |y| = 4, z = 1 4 4 4: z' = 1 4 5 6, lags 1 3 3 3."""
    found = _one([1, 4, 4, 4], 4)
    assert found["dal"] == pytest.approx(10 / 4)
    assert found["al"] == pytest.approx((1 + 3) / 2)
    assert found["cw"] == 2 and found["max_cw"] == 3


def test_an_early_end_lags_negatively() -> None:
    """Appendix C: wait-1 with |x| = 2|y|, z = 1..4: lags 1 0 -1 -2, so 2 - (|y| + 1) / 2.

    Everything was not read: the last unit is the cut-off. DAL: z' = 1 3 5 7, lags 1 1 1 1.
    """
    found = _one([1, 2, 3, 4], 8)
    assert found["al"] == pytest.approx(-0.5)
    assert found["yaal"] == pytest.approx(-0.5)
    assert found["dal"] == pytest.approx(1)
    assert found["cw"] == 1


def test_offline_has_no_yaal() -> None:
    found = _one([5, 5, 5], 5)
    assert found["ap"] == 1 and found["al"] == 5 and found["cw"] == found["max_cw"] == 5
    assert math.isnan(found["yaal"])
    # z' = 5, 5 + 5/3, 5 + 10/3: every lag is 5.
    assert found["dal"] == pytest.approx(5)


def test_references_in_both_conventions() -> None:
    """|x| = 4, 2 units written, 4 in the reference: rate 1 by the reference, 2 by the hypothesis.

    By hypothesis AL is (2 - 0 + 4 - 2) / 2, by reference (2 - 0 + 4 - 1) / 2.
    """
    thesis, simuleval = _one([2, 4], 4, 4), _one([2, 4], 4, 4, "simuleval")
    assert thesis["al"] == 2 and simuleval["al"] == 2.5
    assert thesis["ap"] == pytest.approx(6 / 8) and simuleval["ap"] == pytest.approx(6 / 16)
    assert thesis["laal"] == simuleval["laal"] == 2.5
    assert thesis["dal"] == simuleval["dal"] == 2
    assert thesis["yaal"] == simuleval["yaal"] == 2


def test_length_adaptive_lagging_takes_the_longer_one() -> None:
    """6 units for a reference of 3, |x| = 3: LAAL's rate is 1/2, SimulEval's AL's is 1."""
    found = _one([1, 1, 2, 2, 3, 3], 3, 3, "simuleval")
    assert found["al"] == pytest.approx((1 + 0 + 0 - 1 - 1) / 5)
    assert found["laal"] == pytest.approx((1 + 0.5 + 1 + 0.5 + 1) / 5)
    assert found["yaal"] == pytest.approx((1 + 0.5 + 1 + 0.5) / 4)


def test_delays_beyond_the_source() -> None:
    """SimulEval lets them be and takes the first for AL and LAAL; the thesis never counts them."""
    found = _one([4, 4], 3, 2, "simuleval")
    assert found["al"] == found["laal"] == 4
    assert found["ap"] == pytest.approx(8 / 6)
    assert found["dal"] == pytest.approx((4 + (5.5 - 1.5)) / 2)
    thesis = _one([4, 4], 3, 2)
    assert thesis["al"] == 3 and thesis["ap"] == 1 and thesis["max_cw"] == 3


def test_a_delay_that_passes_the_source_is_counted_as_simuleval_does() -> None:
    """Its AL and LAAL add (5 - 3/2) to (1 - 0) and stop there, as 5 is no less than |x| = 3.

    AP is (1 + 5) / (3 * 2); of DAL z' is 1, max(5, 1 + 3/2). The third is written after the cut.
    """
    found = _one([1, 5], 3, 2, "simuleval")
    assert found["al"] == found["laal"] == found["dal"] == pytest.approx((1 + 3.5) / 2)
    assert found["ap"] == 1
    assert _one([1, 5, 9], 3, 2, "simuleval")["al"] == found["al"]


def test_an_empty_reference_is_one_word_in_simuleval() -> None:
    assert reference_words("") == 1 and reference_words("a  b") == 3 and reference_words("a b") == 2
    assert _one([2, 2], 2, 0, "simuleval")["ap"] == pytest.approx(4 / 2)


def test_empty_sentences_are_skipped_and_counted() -> None:
    found = latency([[1, 2], [], [1, 1], []], [2, 3, 0, 0], [2, 4, 1, 1], unit="word")
    assert (found.sentences, found.skipped, found.yaal_skipped) == (4, 3, 3)
    assert found.al == pytest.approx(1) and found.ap == pytest.approx(3 / 4)
    assert found.length_ratio == pytest.approx(4 / 8)
    alone = sentence_latency([[1, 2], []], [2, 3])
    assert alone.al[0] == 1 and math.isnan(alone.al[1])


@pytest.mark.parametrize("delays", [[], [[]]])
def test_nothing_to_average(delays: list[list[float]]) -> None:
    found = latency(delays, [3] * len(delays))
    assert all(found.values()[name] is None for name in METRICS)
    assert found.values()["length_ratio"] is None
    assert found.sentences == found.skipped == len(delays)


def test_writing_before_reading() -> None:
    found = _one([0, 0, 0], 3)
    assert found["cw"] == found["max_cw"] == found["ap"] == 0
    assert found["al"] == pytest.approx((0 - 1 - 2) / 3)


def test_average_is_over_sentences_not_over_units() -> None:
    found = latency([[1, 2, 3, 4], [1]], [4, 1])
    assert found.ap == pytest.approx((10 / 16 + 1) / 2)


def test_order_and_neighbours_do_not_matter() -> None:
    """Sentences are worked on in blocks by length; each is as if it were alone."""
    rows = [[min(k + t, 7) for t in range(1, length + 1)] for k, length in
            [(0, 9), (3, 2), (1, 7), (2, 1), (0, 3), (5, 12)]]  # fmt: skip
    together = sentence_latency(rows, [7] * 6, [5] * 6)
    for index, row in enumerate(rows):
        alone = sentence_latency([row], [7], [5])
        for name in METRICS:
            assert getattr(together, name)[index] == pytest.approx(
                getattr(alone, name)[0], abs=1e-12, nan_ok=True
            )


def test_bounds_of_the_thesis() -> None:
    """DAL is at least AL and at least z_1; AP lies in (0, 1]."""
    rows = [[min(1 + (t * step) // 3, 11) for t in range(length)]
            for step in range(9) for length in range(1, 15)]  # fmt: skip
    found = sentence_latency(rows, [11] * len(rows))
    assert (found.dal >= found.al - 1e-12).all()
    assert (found.dal >= [row[0] for row in rows]).all()
    assert (found.ap > 0).all() and (found.ap <= 1).all()


def test_names_units_and_convention() -> None:
    found = latency([[1]], [1], unit="word", convention="simuleval")
    assert found.heading("al") == "AL (source words)" and found.heading("ap") == "AP (share)"
    assert found.heading("max_cw") == "max-CW (source words)"
    values = found.values()
    assert values["unit"] == "word" and values["convention"] == "simuleval"
    assert values["yaal"] is None and values["yaal_skipped"] == 1 and values["skipped"] == 0


@pytest.mark.parametrize(
    ("delays", "sources", "references"),
    [([[1], [1]], [1], None), ([[1]], [1], [1, 2]), ([[2, 1]], [3], None),
     ([[-1]], [3], None), ([[math.nan]], [3], None), ([[math.inf]], [3], None)],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    delays: list[list[float]], sources: list[int], references: list[int] | None
) -> None:
    with pytest.raises(ValueError, match=r"a sentence needs|delays are finite"):
        latency(delays, sources, references)


def test_simuleval_counts_words_only() -> None:
    with pytest.raises(ValueError, match="counts words"):
        latency([[1]], [1], convention="simuleval")


def test_words_arrive_whole() -> None:
    assert words_arrived([2, 1, 3]) == [0, 1, 1, 2, 3, 3, 3, 3]
    assert words_arrived([]) == [0, 0]


def test_a_word_without_pieces_arrives_with_what_follows() -> None:
    """The first one with the second, the last one with the end symbol, after which z = |x|."""
    assert words_arrived([0, 1, 0, 2, 0]) == [0, 2, 4, 4, 5]
    assert word_delays([1, 2, 2, 2], [1, 0], ["x", "y", "z"], "@@") == [1, 2, 2]
    assert word_delays([1, 1], [1, 0], ["x@@"], "@@") == [1]


def test_word_delays() -> None:
    """`xy` is written with its second piece, when 3 pieces (2 words) have been read."""
    source = [2, 1, 3]
    assert word_delays([1, 3, 3, 5, 6], source, ["x@@", "y", "z", "u@@", "v"], "@@") == [2, 2, 3]
    # Written with a part of the first word; and beyond the source.
    assert word_delays([1, 9], source, ["x", "y"], "@@") == [1, 3]
    assert word_delays([], source, [], "@@") == [] == word_delays([4], source, [], "@@")
    # A word that seems to go on is final with the end symbol, where that one's delay is known.
    assert word_delays([1, 2], source, ["x@@", "y@@"], "@@") == [1]
    assert word_delays([1, 2, 4], source, ["x@@", "y@@"], "@@") == [3]
    assert word_delays([1, 2, 4], source, ["x@@", "y@@"], "") == [1, 1]
    with pytest.raises(ValueError, match="1 delays for 2"):
        word_delays([1], source, ["x", "y"], "@@")
