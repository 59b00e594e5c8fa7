"""Promises on losses: the p-value against binomial sums, its validity by simulation, the losses."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy
import pytest

from nmtgrid.adaptive.calibrate import (
    agreement_losses,
    binomial_cdf,
    bleu_losses,
    check_promise,
    edit_distance,
    fixed_sequence,
    least_count,
    p_value,
)
from nmtgrid.base.errors import ConfigError


def at_most(successes: int, count: int, chance: Fraction) -> Fraction:
    """Return the probability of at most so many successes, exactly."""
    return sum(
        (
            math.comb(count, number) * chance**number * (1 - chance) ** (count - number)
            for number in range(successes + 1)
        ),
        Fraction(0),
    )


@pytest.mark.parametrize("chance", [Fraction(1, 200), Fraction(1, 10), Fraction(7, 8)])
def test_binomial_sums(chance: Fraction) -> None:
    for count in (1, 7, 60):
        for successes in range(count + 1):
            exact = float(at_most(successes, count, chance))
            assert binomial_cdf(successes, count, float(chance)) == pytest.approx(exact)


def test_the_p_value_is_the_smaller_of_both_bounds() -> None:
    for count, mean, bound in ((50, 0.0, 0.1), (50, 0.06, 0.2), (400, 0.015, 0.05), (9, 0.5, 0.6)):
        total = math.ceil(Fraction(str(mean)) * count)
        bentkus = math.e * float(at_most(total, count, Fraction(str(bound))))
        power = (bound / mean) ** mean if mean else 1.0
        hoeffding = (power * ((1 - bound) / (1 - mean)) ** (1 - mean)) ** count
        assert p_value(mean, count, bound) == pytest.approx(min(1.0, bentkus, hoeffding))
    assert p_value(0.2, 1000, 0.1) == 1.0


def test_it_is_valid() -> None:
    """A mean loss at the bound passes at most as often as the confidence says."""
    draw = numpy.random.default_rng(5)
    for bound, count in ((0.1, 100), (0.3, 40)):
        coins = draw.binomial(count, bound, 4_000) / count
        # Losses between 0 and 1 with the same mean: a beta distribution's.
        others = draw.beta(2 * bound, 2 * (1 - bound), (2_000, count)).mean(1)
        for means in (coins, others):
            for level in (0.05, 0.2):
                passed = numpy.mean([p_value(float(mean), count, bound) <= level for mean in means])
                assert passed <= level + 3 * math.sqrt(level * (1 - level) / len(means))


def test_how_many_sentences_are_needed() -> None:
    for allowed, confidence, needed in ((0.005, 0.95, 598), (0.5, 0.9, 4)):
        assert least_count(allowed, confidence) == needed
        assert p_value(0.0, needed, allowed) <= 1 - confidence < p_value(0.0, needed - 1, allowed)
    some = least_count(0.05, 0.95, 0.02)
    assert some is not None and p_value(0.02, some, 0.05) <= 0.05
    assert least_count(0.05, 0.95, 0.05) is None


def test_what_cannot_be_promised() -> None:
    check_promise(0.5, 0.95, 598)
    with pytest.raises(ConfigError, match=r"598 are needed") as caught:
        check_promise(0.5, 0.95, 597)
    assert "1,196 sentences" in caught.value.advice
    with pytest.raises(ConfigError) as caught:
        check_promise(0.0, 1.0, 10_000)
    assert len(caught.value.faults) == 2


def test_testing_ends_at_the_first_that_fails() -> None:
    asked: list[str] = []
    means = {"safe": 0.0, "fast": 0.01, "wild": 0.3, "lucky": 0.0}

    def losses(name: str) -> numpy.typing.NDArray[numpy.float64]:
        asked.append(name)
        return numpy.full(1000, means[name])

    found = fixed_sequence(means, losses, 0.05, 0.95)
    assert asked == ["safe", "fast", "wild"]
    assert [one.passed for one in found] == [True, True, False]
    assert found[1].mean_loss == pytest.approx(0.01) and found[1].p_value <= 0.05


def test_a_sequence_errs_no_more_often_than_one_test() -> None:
    """Many candidates, all worse than the bound: one passes with probability 0.1 at the most."""
    draw = numpy.random.default_rng(2)
    bound, runs = 0.2, 1_000
    wrong = 0
    for _ in range(runs):
        found = fixed_sequence(range(10), lambda _: draw.random(60) < bound, bound, 0.9)
        wrong += found[0].passed
    assert wrong / runs <= 0.1 + 3 * math.sqrt(0.09 / runs)


def slow_distance(one: str, other: str) -> int:
    if not one or not other:
        return len(one) + len(other)
    if one[0] == other[0]:
        return slow_distance(one[1:], other[1:])
    parts = (one[1:], other), (one, other[1:]), (one[1:], other[1:])
    return 1 + min(slow_distance(*pair) for pair in parts)


def test_edit_distance() -> None:
    assert edit_distance("kitten", "sitting") == 3
    draw = random.Random(1)
    for _ in range(60):
        one, other = ("".join(draw.choices("ab", k=draw.randint(0, 6))) for _ in range(2))
        assert edit_distance(one, other) == slow_distance(one, other)


def test_losses() -> None:
    full, adaptive = [[1, 2, 3], [4], [], [5, 6]], [[1, 2, 3], [7, 4], [], []]
    assert agreement_losses(full, adaptive).tolist() == [0, 0.5, 0, 1]
    texts = ["a b c d e", "a b c d e", "x"], ["a b c d e", "z", "y"], ["a b c d e"] * 3
    # Nothing lost; all that there was (100 percent) but for what one wrong word gets; nothing won.
    found = bleu_losses(*texts)
    assert found[0] == 0 and 0.9 < found[1] <= 1 and found[2] == 0
    better = bleu_losses(texts[1], texts[0], texts[2])
    assert better.tolist() == [0, 0, 0], "a better translation makes up for nothing"
