"""Lists of numbers as they are typed."""

import math

import pytest

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.spans import decimals, real_number, whole_number, whole_numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1..9", [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("1..9:2", [1, 3, 5, 7, 9]),
        ("1..8:3", [1, 4, 7]),
        ("1,3,5", [1, 3, 5]),
        ("7", [7]),
        ("4..4", [4]),
        ("9,1..3,inf", [9, 1, 2, 3, math.inf]),
        ("inf", [math.inf]),
        (" 1 .. 3 : 2 , 5 ", [1, 3, 5]),
    ],
)
def test_whole_numbers(text: str, expected: list[float]) -> None:
    values = whole_numbers(text, "--k", least=1, infinite=True)
    assert values == expected
    assert all(isinstance(value, int) for value in values if value != math.inf)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1..0.9:0.1", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
        ("0.2..0.9:0.3", [0.2, 0.5, 0.8]),
        ("0.5,.25", [0.5, 0.25]),
        ("0.7..0.71:0.005", [0.7, 0.705, 0.71]),
        ("0,1", [0.0, 1.0]),
    ],
)
def test_decimals_are_exact(text: str, expected: list[float]) -> None:
    assert decimals(text, "--oracle", 0) == expected
    assert decimals("-1..1:0.5,0.75", "--lambda") == [-1.0, -0.5, 0.0, 0.5, 1.0, 0.75]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "at least 1, but one is 0"),
        ("0..3", "at least 1, but one is 0"),
        ("-3", "at least 1, but one is -3"),
        ("", "a number is missing"),
        ("1,,3", "a number is missing"),
        ("1,2,", "a number is missing"),
        ("one", "`one` is not a whole number"),
        ("1.5", "`1.5` is not a whole number"),
        ("1..", "`` in `1..` is not a whole number"),
        ("1...3", "`.3` in `1...3` is not a whole number"),
        ("1..3..5", "`3..5` in `1..3..5` is not"),
        ("1:3", "`1:3` is not a whole number"),
        ("9..1", "`9..1` runs backwards"),
        ("1..9:0", "step of `1..9:0` must be greater than 0"),
        ("1..9:-1", "must be greater than 0"),
        ("1,2,1", "1 is listed twice"),
        ("1..4,3..6", "3 is listed twice"),
        ("1..inf", "`inf` in `1..inf` is not a whole number"),
        ("nan", "`nan` is not a whole number"),
        ("1_0", "`1_0` is not a whole number"),
        ("٣", "is not a whole number"),
        ("9" * 5000, f"`{'9' * 20}...` is too long a number (at most 15 digits)"),
    ],
)
def test_faults_of_whole_numbers(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        whole_numbers(text, "--k", least=1, infinite=True)
    assert words in str(caught.value)
    assert "`--k`" in caught.value.problem and "1..9:2" in caught.value.advice


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.1..0.9", "`0.1..0.9` needs a step"),
        ("-1", "at least 0, but one is -1"),
        ("-0.5..0.5:0.1", "at least 0, but one is -0.5"),
        ("0.5,0.50", "0.5 is listed twice"),
        ("1e-3", "`1e-3` is not a number of a list: write it without an exponent."),
        ("0.1..1:1E-1", "`1E-1` in `0.1..1:1E-1` is not a number of a list: write it without"),
        ("one", "`one` is not a number."),
        ("inf", "`inf` is not a number"),
        ("0.1..0.9:0.000001", "has 800,001 numbers, more than 1,000"),
    ],
)
def test_faults_of_decimals(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decimals(text, "--oracle", 0)
    assert words in str(caught.value)


def test_single_numbers_that_are_too_long() -> None:
    assert whole_number("9" * 18) == 10**18 - 1 and real_number("1" + "0" * 29) == 1e29
    with pytest.raises(ValueError, match=r"9\.\.\.` is too long a number \(at most 18 digits\)"):
        whole_number("9" * 19)
    with pytest.raises(ValueError, match=r"is too long a number \(at most 30 digits\)"):
        real_number("0." + "3" * 31)


def test_advice_and_limits() -> None:
    with pytest.raises(ConfigError, match=r"at least 0") as caught:
        decimals("-1", "--oracle", 0, such_as="0,1")
    assert caught.value.advice == "Write 0,1."
    with pytest.raises(ConfigError, match="`inf` is not a whole number"):
        whole_numbers("inf", "--seeds")
    with pytest.raises(ConfigError) as caught:
        whole_numbers("x,9..1,0", "--k", least=1)
    assert len(caught.value.faults) == 3
    with pytest.raises(ConfigError, match="1,000,000 numbers, more than 1,000"):
        whole_numbers("1..1000000", "--k")
    with pytest.raises(ConfigError, match="there are more than 5 numbers"):
        whole_numbers("1..3,4..6", "--k", limit=5)
