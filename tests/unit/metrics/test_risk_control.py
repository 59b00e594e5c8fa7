"""Guarantees by Learn then Test: p-values, fixed-sequence testing, losses."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any
from unittest.mock import Mock

import numpy
import pytest

from nmtgrid.base.errors import ConfigError
from nmtgrid.metrics.risk_control import (
    Guarantee,
    agreement_losses,
    binomial_cdf,
    bleu_losses,
    edit_distance,
    fixed_sequence,
    halves,
    hoeffding_bentkus,
    least_count,
)


def at_most(successes: int, count: int, chance: Fraction) -> Fraction:
    chances = (chance**n * (1 - chance) ** (count - n) for n in range(successes + 1))
    return sum((math.comb(count, n) * each for n, each in enumerate(chances)), Fraction(0))


@pytest.mark.parametrize("chance", [Fraction(1, 200), Fraction(1, 10), Fraction(7, 8)])
def test_binomial_sums(chance: Fraction) -> None:
    for count in (1, 7, 60):
        for successes in range(count + 1):
            exact = float(at_most(successes, count, chance))
            assert binomial_cdf(successes, count, float(chance)) == pytest.approx(exact)


def test_p_values() -> None:
    for count, mean, bound in ((50, 0.0, 0.1), (50, 0.06, 0.2), (400, 0.015, 0.05), (9, 0.5, 0.6)):
        total = math.ceil(Fraction(str(mean)) * count)
        bentkus = math.e * float(at_most(total, count, Fraction(str(bound))))
        power = (bound / mean) ** mean if mean else 1.0
        hoeffding = (power * ((1 - bound) / (1 - mean)) ** (1 - mean)) ** count
        assert hoeffding_bentkus(mean, count, bound) == pytest.approx(min(1.0, bentkus, hoeffding))
    assert hoeffding_bentkus(0.2, 1000, 0.1) == 1.0
    # A mean loss at the bound passes at most as often as the confidence says.
    draw = numpy.random.default_rng(5)
    for bound, count in ((0.1, 100), (0.3, 40)):
        coins = draw.binomial(count, bound, 4_000) / count
        # Losses between 0 and 1 with the same mean: a beta distribution's.
        others = draw.beta(2 * bound, 2 * (1 - bound), (2_000, count)).mean(1)
        for means in (coins, others):
            for level in (0.05, 0.2):
                passed = numpy.mean(
                    [hoeffding_bentkus(float(mean), count, bound) <= level for mean in means]
                )
                assert passed <= level + 3 * math.sqrt(level * (1 - level) / len(means))


def test_least_counts_of_sentences() -> None:
    for allowed, confidence, needed in ((0.005, 0.95, 598), (0.5, 0.9, 4)):
        assert least_count(allowed, confidence) == needed
        assert (
            hoeffding_bentkus(0.0, needed, allowed)
            <= 1 - confidence
            < hoeffding_bentkus(0.0, needed - 1, allowed)
        )
    some = least_count(0.05, 0.95, 0.02)
    assert some is not None and hoeffding_bentkus(0.02, some, 0.05) <= 0.05
    assert least_count(0.05, 0.95, 0.05) is None
    Guarantee("bleu", 0.5, 0.95).check(598)
    with pytest.raises(ConfigError, match=r"598 are needed") as caught:
        Guarantee("bleu", 0.5, 0.95).check(597)
    assert "1,196 sentences" in caught.value.advice
    with pytest.raises(ConfigError) as caught:
        Guarantee("bleu", 0.0, 1.0).check(10_000)
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize("count", [0, 1, 2, 9, 10])
def test_halves(count: int) -> None:
    items = [f"item {n:02}" for n in range(count)]
    first, second = halves(items, 1)
    assert sorted(first + second) == items and 0 <= len(second) - len(first) <= 1
    assert first == sorted(first) and second == sorted(second), "in their order"
    assert halves(items, 1) == (first, second)
    if count > 8:
        assert len({tuple(halves(items, seed)[0]) for seed in range(9)}) > 1


def test_what_a_calibration_tells() -> None:
    guarantee = Guarantee("bleu", 5.0, 0.95)
    means = {"safe": 0.0, "fast": 0.01, "wild": 0.3}
    calibration = guarantee.test(means, lambda name: numpy.full(1000, means[name]), 1000)
    values = calibration.values(calibration.passed[-1], lambda name: {"name": name})
    assert (values["name"], values["certified"], values["sentences"]) == ("fast", True, 1000)
    assert values["loss"] == pytest.approx(1.0) and values["p_value"] <= 0.05
    assert [row["passed"] for row in values["tested"]] == [True, True, False]
    assert "needed" not in values and "passed" not in values
    nothing = guarantee.test(["wild"], lambda name: numpy.full(9, 0.3), 9)
    values = nothing.values(None, lambda name: {"name": name})
    assert not values["certified"] and values["name"] is values["needed"] is None
    for loss, holds in ((0.04, True), (0.06, False)):
        outside = guarantee.outside("test", numpy.full(3, loss))
        assert outside["holds"] is holds and outside["sentences"] == 3


def test_testing_ends_at_the_first_that_fails() -> None:
    means = {"safe": 0.0, "fast": 0.01, "wild": 0.3, "lucky": 0.0}
    losses = Mock(side_effect=lambda name: numpy.full(1000, means[name]))
    tested = fixed_sequence(means, losses, 0.05, 0.95)
    assert [call.args for call in losses.mock_calls] == [("safe",), ("fast",), ("wild",)]
    assert [outcome.passed for outcome in tested] == [True, True, False]
    assert tested[1].mean_loss == pytest.approx(0.01) and tested[1].p_value <= 0.05


def test_a_sequence_errs_no_more_often_than_one_test() -> None:
    """Many candidates, all worse than the bound: one passes with probability 0.1 at the most."""
    draw, runs = numpy.random.default_rng(2), 1_000
    options: Any = (range(10), lambda _: draw.random(60) < 0.2, 0.2, 0.9)
    wrong = sum(fixed_sequence(*options)[0].passed for _ in range(runs))
    assert wrong / runs <= 0.1 + 3 * math.sqrt(0.09 / runs)


def slow_distance(left: str, other: str) -> int:
    if not left or not other or left[0] == other[0]:
        return slow_distance(left[1:], other[1:]) if left and other else len(left) + len(other)
    parts = (left[1:], other), (left, other[1:]), (left[1:], other[1:])
    return 1 + min(slow_distance(*pair) for pair in parts)


def test_losses_and_edit_distance() -> None:
    assert edit_distance("kitten", "sitting") == 3
    draw = random.Random(1)
    for _ in range(60):
        left, other = ("".join(draw.choices("ab", k=draw.randint(0, 6))) for _ in range(2))
        assert edit_distance(left, other) == slow_distance(left, other)
    full, adaptive = [[1, 2, 3], [4], [], [5, 6]], [[1, 2, 3], [7, 4], [], []]
    assert agreement_losses(full, adaptive).tolist() == [0, 0.5, 0, 1]
    texts = ["a b c d e", "a b c d e", "x"], ["a b c d e", "z", "y"], ["a b c d e"] * 3
    # Nothing lost; all that there was (100 percent) but for what one wrong word gets; nothing won.
    bleu = bleu_losses(*texts, "none")
    assert bleu[0] == 0 and 0.9 < bleu[1] <= 1 and bleu[2] == 0
    better = bleu_losses(texts[1], texts[0], texts[2], "none")
    assert better.tolist() == [0, 0, 0], "a better translation makes up for nothing"


def test_losses_of_text_without_spaces_are_of_characters() -> None:
    best, worse = "我们今天去北京", "我们今天去北海"
    # 6 of 7 characters, 5 of 6 pairs, 4 of 5 triples, 3 of 4 fours.
    expected = 1 - (6 / 7 * 5 / 6 * 4 / 5 * 3 / 4) ** 0.25
    for tokenize in ("zh", "char"):
        lost = bleu_losses([best, worse], [worse, best], [best] * 2, tokenize)
        assert lost == pytest.approx([expected, 0.0])
