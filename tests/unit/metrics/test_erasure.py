"""Erasure and final delays, by hand."""

import math

import pytest

from nmtgrid.metrics.erasure import common_prefix, erased_tokens, final_delays, normalised_erasure


@pytest.mark.parametrize(
    ("outputs", "count"),
    [
        ([[4, 5, 6]], 3),
        ([[4, 5, 6], [4, 5, 7, 8]], 2),
        ([[4, 5, 6], [4, 5, 6, 7], [4, 5]], 2),
        ([[4, 5], [4, 6], [5, 6]], 0),
        ([[4, 5], []], 0),
        ([[4, 5, 6], [4, 9, 6]], 1),  # the third token is the same, but not a part of a prefix
    ],
)
def test_the_longest_common_prefix(outputs: list[list[int]], count: int) -> None:
    assert common_prefix(outputs) == common_prefix(outputs[::-1]) == count


def test_erasure_and_delays_by_hand() -> None:
    """`bc` is erased with the second output, nothing with the third, `e` with the fourth."""
    outputs = [[*letters] for letters in ("abc", "ad", "ade", "ad", "adf")]
    assert erased_tokens(outputs) == 2 + 0 + 1 + 0
    assert final_delays(outputs, [1, 2, 3, 4, 5]) == [1, 2, 5]
    # The fourth token stood there from the start, but is final only with the second one.
    outputs = [[*"abcd"], [*"axcd"]]
    assert final_delays(outputs, [2, 6]) == [2, 6, 6, 6]
    assert erased_tokens(outputs) == 3
    # It was there, went, and came back: final when it came back.
    assert final_delays([["a"], ["b"], ["a"]], [1, 2, 3]) == [3]
    assert erased_tokens([["a"], ["b"], ["a"]]) == 2


def test_what_only_grows_is_not_erased() -> None:
    outputs = [[], [4], [4], [4, 5], [4, 5, 6]]
    assert erased_tokens(outputs) == 0 == erased_tokens([[4, 5]])
    assert final_delays(outputs, [1, 2, 3, 4, 5]) == [2, 4, 5]
    assert final_delays([[4, 5], []], [1, 2]) == []


def test_normalised_erasure_is_that_of_the_corpus() -> None:
    """3 tokens erased of 2 + 4 final ones; the mean of the sentences' would be 1/2 * 3/2."""
    assert normalised_erasure([3, 0], [2, 4]) == 0.5
    assert math.isnan(normalised_erasure([2], [0])) and math.isnan(normalised_erasure([], []))


def test_what_does_not_match_is_refused() -> None:
    with pytest.raises(ValueError, match="1 sentences with erasure, but 2 with a length"):
        normalised_erasure([1], [2, 3])
    with pytest.raises(ValueError, match="2 outputs, but 1 numbers of reads"):
        final_delays([[1], [1]], [1])
    with pytest.raises(ValueError, match="0 outputs"):
        final_delays([], [])
