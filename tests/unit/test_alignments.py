"""Entropy (3.24), coverage (3.25) and links, by hand."""

from __future__ import annotations

import math

import numpy
import pytest

from nmtgrid.analysis.alignments import (
    coverage,
    entropy,
    links,
    pharaoh,
    statistics,
    words_of_units,
)
from nmtgrid.search.traces import Trace


def trace(
    source: list[str], target: list[str], shares: list[list[float]] | None, line: int = 1
) -> Trace:
    held = None if shares is None else numpy.array(shares, dtype=numpy.float32)
    return Trace(line, source, target, "", [], 0.0, 0.0, held)


FIRST = trace(["a"], ["x", "y"], [[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]])
SECOND = trace(["a", "b"], [], [[0.0, 0.0, 1.0]])


def test_entropy_by_hand() -> None:
    assert FIRST.alignment is not None
    quarter = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert entropy(FIRST.alignment).tolist() == pytest.approx([math.log(2), 0.0, quarter])


def test_coverage_by_hand() -> None:
    assert FIRST.alignment is not None
    # 0.5 + 1 + 0.25 = 1.75 counts as 1; 0.5 + 0 + 0.75 = 1.25 counts as 1.
    assert coverage(FIRST.alignment).tolist() == [1.0, 1.0]
    assert coverage(numpy.array([[0.25, 0.75]])).tolist() == [0.25, 0.75]


def test_statistics_average_over_tokens_of_the_corpus() -> None:
    found = statistics([FIRST, trace(["q"], ["r"], None), SECOND])
    assert found is not None
    total = math.log(2) - (0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert found.entropy == pytest.approx(total / 4)
    assert found.coverage == pytest.approx((1 + 1 + 0 + 0 + 1) / 5)
    assert (found.sentences, found.source_tokens, found.target_tokens) == (2, 5, 4)
    assert statistics([trace([], [], None)]) is None


def test_words_of_units() -> None:
    assert words_of_units(["a@@", "b", "c", "d@@", "e@@", "f"]) == [0, 0, 1, 2, 2, 2]
    assert words_of_units([]) == []


def test_links_join_units_to_words() -> None:
    shares = [
        [0.1, 0.6, 0.2, 0.1],  # x@@ -> second unit of word 0
        [0.7, 0.1, 0.1, 0.1],  # y   -> first unit of word 0: the same link of words
        [0.1, 0.1, 0.7, 0.1],  # z   -> word 1
        [0.2, 0.2, 0.2, 0.4],  # w   -> the end symbol: no link
        [0.9, 0.0, 0.0, 0.1],  # the end symbol's row links nothing
    ]
    one = trace(["a@@", "b", "c"], ["x@@", "y", "z", "w"], shares)
    assert links(one) == [(0, 0), (1, 1)]
    assert pharaoh(one) == "0-0 1-1"


def test_no_alignment_no_links() -> None:
    assert pharaoh(trace(["a"], ["b"], None)) == ""
    assert pharaoh(SECOND) == ""
