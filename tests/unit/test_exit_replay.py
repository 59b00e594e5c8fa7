"""Replaying thresholds on records, against walking through tokens one by one."""

from __future__ import annotations

import random

import numpy
import pytest

from nmtgrid.adaptive import exit_traces as module
from nmtgrid.adaptive.exit_traces import exits_of, replay


def walk(scores: list[float], thresholds: list[float]) -> int:
    """Return the exit of one token, as section 5.3.2 tells it."""
    for exit, (score, threshold) in enumerate(zip(scores, thresholds, strict=True), 1):
        if score > threshold:
            return exit
    return len(thresholds) + 1


def test_by_hand() -> None:
    scores = numpy.array([[0.9, 0.1], [0.2, 0.8], [0.2, 0.3]])
    hits = numpy.array([[1, 0, 1], [0, 1, 1], [1, 1, 0]], dtype=bool)
    thresholds = numpy.array([[0.5, 0.5], [0.1, 0.0], [1.0, 1.0], [0.9, 0.25]])
    found = replay(scores, hits, thresholds)
    # Exits 1 2 3; then all at once at 1; then all at the end; then 3 (0.9 does not exceed 0.9) 2 2.
    assert found.average_exit.tolist() == pytest.approx([2, 1, 3, 7 / 3])
    assert found.agreement.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 1])
    assert exits_of(scores, thresholds[0]).tolist() == [1, 2, 3]
    assert exits_of(scores, thresholds[3]).tolist() == [3, 2, 2]


@pytest.mark.parametrize("digits", [1, 6])
def test_equals_walking(monkeypatch: pytest.MonkeyPatch, digits: int) -> None:
    """Whatever the pieces in which tokens and vectors are taken, and whether values repeat."""
    monkeypatch.setattr(module, "_TOKENS", 70)
    monkeypatch.setattr(module, "_VECTORS", 7)
    draw = random.Random(digits)
    scores = [[round(draw.random(), digits) for _ in range(4)] for _ in range(150)]
    hits = [[draw.random() < 0.6 for _ in range(5)] for _ in scores]
    thresholds = [[round(draw.random(), digits) for _ in range(4)] for _ in range(30)]
    found = replay(numpy.array(scores), numpy.array(hits), numpy.array(thresholds))
    single = numpy.array(scores, dtype=numpy.float32).tolist()
    for place, vector in enumerate(numpy.array(thresholds, dtype=numpy.float32).tolist()):
        exits = [walk(one, vector) for one in single]
        right = [of_one[exit - 1] for of_one, exit in zip(hits, exits, strict=True)]
        assert found.average_exit[place] == pytest.approx(sum(exits) / len(exits))
        assert found.agreement[place] == pytest.approx(sum(right) / len(right))
        assert exits_of(numpy.array(scores), numpy.array(vector)).tolist() == exits


def test_one_threshold_and_no_token() -> None:
    found = replay(numpy.zeros((0, 1)), numpy.zeros((0, 2), dtype=bool), numpy.array([[0.5]]))
    assert found.average_exit.tolist() == [1] and found.agreement.tolist() == [0]
