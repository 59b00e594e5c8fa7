"""Latency against values worked out by hand."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.own_code import import_files
from nmtgrid.metrics.latency import (
    METRICS,
    Convention,
    latency,
    read_metrics,
    reference_words,
    sentence_latency,
    word_delays,
    words_arrived,
)

# Delays, source length, reference length, convention; figures worked out by hand.
BY_HAND: list[tuple[list[float], int, int | None, Convention, dict[str, float]]] = [
    # Wait-3 with |x| = |y|: lags 3 3 3 up to the cut-off; DAL keeps them at 3.
    ([3, 4, 5, 5, 5], 5, None, "thesis", {
        "al": 3, "dal": 3, "laal": 3, "ap": 22 / 25, "cw": 5 / 3, "max_cw": 3,
        "yaal": (3 - 0 + 4 - 1) / 2,
    }),
    # The ideal reads 2 for each unit; z' = 1, max(4, 3), max(6, 6) gives the same DAL as AL.
    ([1, 4, 6], 6, None, "thesis", {
        "al": 5 / 3, "dal": 5 / 3, "ap": 11 / 18, "cw": 2, "max_cw": 3, "yaal": (1 + 2) / 2,
    }),
    # DAL keeps what was late: z' = 1 4 5 6, lags 1 3 3 3.
    ([1, 4, 4, 4], 4, None, "thesis", {"dal": 10 / 4, "al": (1 + 3) / 2, "cw": 2, "max_cw": 3}),
    # Appendix C: wait-1 with |x| = 2|y| lags by 1 0 -1 -2, so 2 - (|y| + 1) / 2; the last unit is
    # the cut-off, as not all was read. DAL: z' = 1 3 5 7, lags 1 1 1 1.
    ([1, 2, 3, 4], 8, None, "thesis", {"al": -0.5, "yaal": -0.5, "dal": 1, "cw": 1}),
    # Offline there is no YAAL; z' = 5, 5 + 5/3, 5 + 10/3: every lag is 5.
    ([5, 5, 5], 5, None, "thesis", {
        "ap": 1, "al": 5, "cw": 5, "max_cw": 5, "yaal": math.nan, "dal": 5,
    }),
    # Writing before reading.
    ([0, 0, 0], 3, None, "thesis", {"cw": 0, "max_cw": 0, "ap": 0, "al": (0 - 1 - 2) / 3}),
    # 2 units for a reference of 4: the rate is 2 by the hypothesis, 1 by the reference.
    ([2, 4], 4, 4, "thesis", {
        "al": (2 - 0 + 4 - 2) / 2, "ap": 6 / 8, "laal": 2.5, "dal": 2, "yaal": 2,
    }),
    ([2, 4], 4, 4, "simuleval", {
        "al": (2 - 0 + 4 - 1) / 2, "ap": 6 / 16, "laal": 2.5, "dal": 2, "yaal": 2,
    }),
    # 6 units for a reference of 3, |x| = 3: LAAL's rate is 1/2, SimulEval's AL's is 1.
    ([1, 1, 2, 2, 3, 3], 3, 3, "simuleval", {
        "al": (1 + 0 + 0 - 1 - 1) / 5, "laal": (1 + 0.5 + 1 + 0.5 + 1) / 5,
        "yaal": (1 + 0.5 + 1 + 0.5) / 4,
    }),
    # Delays beyond the source: SimulEval takes the first for AL and LAAL, the thesis never any.
    ([4, 4], 3, 2, "simuleval", {
        "al": 4, "laal": 4, "ap": 8 / 6, "dal": (4 + (5.5 - 1.5)) / 2,
    }),
    ([4, 4], 3, 2, "thesis", {"al": 3, "ap": 1, "max_cw": 3}),
    # AL and LAAL add (5 - 3/2) to (1 - 0) and stop there, as 5 is no less than |x| = 3. AP is
    # (1 + 5) / (3 * 2); of DAL z' is 1, max(5, 1 + 3/2). A third unit comes after the cut-off.
    ([1, 5], 3, 2, "simuleval", {
        "al": (1 + 3.5) / 2, "laal": (1 + 3.5) / 2, "dal": (1 + 3.5) / 2, "ap": 1,
    }),
    ([1, 5, 9], 3, 2, "simuleval", {"al": (1 + 3.5) / 2}),
    # An empty reference is one word in SimulEval.
    ([2, 2], 2, 0, "simuleval", {"ap": 4 / 2}),
]  # fmt: skip


@pytest.mark.parametrize(("delays", "source", "reference", "convention", "expected"), BY_HAND)
def test_values_by_hand(
    delays: list[float], source: int, reference: int | None, convention: Convention,
    expected: dict[str, float],
) -> None:  # fmt: skip
    references = None if reference is None else [reference]
    result = latency([delays], [source], references, unit="word", convention=convention)
    values = {name: getattr(result, name) for name in expected}
    assert values == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_words_of_references() -> None:
    assert reference_words("") == 1 and reference_words("a  b") == 3 and reference_words("a b") == 2


def test_empty_sentences_are_skipped_and_counted() -> None:
    result = latency([[1, 2], [], [1, 1], []], [2, 3, 0, 0], [2, 4, 1, 1], unit="word")
    assert (result.sentences, result.skipped, result.yaal_skipped) == (4, 3, 3)
    assert result.al == pytest.approx(1) and result.ap == pytest.approx(3 / 4)
    assert result.length_ratio == pytest.approx(4 / 8)
    alone = sentence_latency([[1, 2], []], [2, 3])
    assert alone.al[0] == 1 and math.isnan(alone.al[1])


@pytest.mark.parametrize("delays", [[], [[]]])
def test_nothing_to_average(delays: list[list[float]]) -> None:
    result = latency(delays, [3] * len(delays))
    assert all(result.values()[name] is None for name in METRICS)
    assert result.values()["length_ratio"] is None
    assert result.sentences == result.skipped == len(delays)


def test_average_is_over_sentences_not_over_units() -> None:
    assert latency([[1, 2, 3, 4], [1]], [4, 1]).ap == pytest.approx((10 / 16 + 1) / 2)


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
    result = sentence_latency(rows, [11] * len(rows))
    assert (result.dal >= result.al - 1e-12).all()
    assert (result.dal >= [row[0] for row in rows]).all()
    assert (result.ap > 0).all() and (result.ap <= 1).all()


def test_names_units_and_convention() -> None:
    result = latency([[1]], [1], unit="word", convention="simuleval")
    values = result.values()
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
    with pytest.raises(ValueError, match=r"a sentence needs|delays must be finite"):
        latency(delays, sources, references)
    with pytest.raises(ValueError, match="counts words"):
        latency([[1]], [1], convention="simuleval")
    with pytest.raises(ValueError, match="convention must be 'thesis' or 'simuleval', but is 'Sim"):
        latency([[1]], [1], unit="word", convention="SimulEval")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unit must be 'token' or 'word', but is 'words'"):
        latency([[1]], [1], unit="words")  # type: ignore[arg-type]


def test_words_arrive_whole() -> None:
    assert words_arrived([2, 1, 3]) == [0, 1, 1, 2, 3, 3, 3, 3]
    assert words_arrived([]) == [0, 0]
    # A word without pieces arrives with what follows, the last one with the end symbol.
    assert words_arrived([0, 1, 0, 2, 0]) == [0, 2, 4, 4, 5]
    assert word_delays([1, 2, 2, 2], [1, 0], ["x", "y", "z"], "@@") == [1, 2, 2]
    assert word_delays([1, 1], [1, 0], ["x@@"], "@@") == [1]


def test_word_delays() -> None:
    """`xy` is written with its second piece, when 3 pieces (2 words) have been read."""
    source = [2, 1, 3]
    assert word_delays([1, 3, 3, 5, 6], source, ["x@@", "y", "z", "u@@", "v"], "@@") == [2, 2, 3]
    # Written with a part of the first word; and beyond the source.
    assert word_delays([1, 9], source, ["x", "y"], "@@") == [1, 3]
    assert word_delays([1, 1], [1], ["▁"], "▁") == []
    assert word_delays([], source, [], "@@") == [] == word_delays([4], source, [], "@@")
    # A word that seems to go on is final with the end symbol, where that one's delay is known.
    assert word_delays([1, 2], source, ["x@@", "y@@"], "@@") == [1]
    assert word_delays([1, 2, 4], source, ["x@@", "y@@"], "@@") == [3]
    assert word_delays([1, 2, 4], source, ["x@@", "y@@"], "") == [1, 1]
    with pytest.raises(ValueError, match="1 delays for 2"):
        word_delays([1], source, ["x", "y"], "@@")


def test_a_metric_of_ones_own() -> None:
    """The last delay over the target's length; delays end with the source, but in SimulEval's."""

    def last(delays: Sequence[float], source: float, target: float) -> float:
        assert source in (4, 2)
        return delays[-1] / target if delays[-1] > 1 else math.nan

    columns = [[1, 5], [2, 2, 2, 2], [1], []], [4, 4, 2, 3], [4, 2, 1, 1]
    thesis = sentence_latency(*columns, unit="word", own={"last": last})
    expected = [4 / 2, 2 / 4, math.nan, math.nan]
    assert thesis.own["last"] == pytest.approx(expected, nan_ok=True)
    assert thesis.mean().own == {"last": 1.25}
    assert thesis.mean().values()["own"] == {"last": 1.25}
    assert "own" not in latency(*columns).values()
    simuleval = latency(*columns, unit="word", convention="simuleval", own={"last": last})
    assert simuleval.own == {"last": (5 / 4 + 2 / 2) / 2}
    nothing = latency([[]], [1], own={"last": last})
    assert nothing.values()["own"] == {"last": None}


OWN = """
import math


def tardiness(delays, source_length, target_length):
    return 1


def broken(delays, source_length, target_length):
    return 1 / (source_length - len(delays) + 1)


def words(delays, source_length, target_length):
    return "many"


def sentence(delays, source_length, target_length):
    raise ValueError("This is a sentence.")


def endless(delays, source_length, target_length):
    return math.inf


def al(delays, source_length, target_length):
    return 1


class Tardy:
    pass


number = 3
"""


def test_what_is_wrong_with_ones_own_metric_is_told(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    # A name of its own: what any test imports is known to all that run after it in the process.
    with pytest.raises(ConfigError, match=r"no latency metric `tardiness`.*--import FILE"):
        read_metrics(["tardiness"])
    import_files([path])
    (tardiness,) = read_metrics(["tardiness"]).values()
    assert tardiness([1.0], 1, 1) == 1
    for text, message in (
        ("tardines", "no latency metric `tardines`.*`tardiness`"),
        ("number", "no latency metric `number`"),
        ("Tardy", r"own\.py:\d+: `Tardy` is not a latency metric: .* Write `def Tardy\(delays, "),
        ("broken", r"`broken` failed at a trial.*ZeroDivisionError: .*\. It is called as"),
        ("words", "failed at a trial.*ValueError"),
        ("sentence", r"ValueError: This is a sentence\. It is called"),
        ("endless", "infinite"),
        ("al", "two latency metrics `al`"),
    ):
        with pytest.raises(ConfigError, match=f"(?s){message}") as caught:
            read_metrics(["tardiness", text, "tardiness"])
        assert len(caught.value.faults) == 2
        assert "`tardiness` is given twice" in caught.value.faults[1]
    broken = {"broken": lambda delays, source, target: 1 / (source - 4)}
    with pytest.raises(ConfigError, match="`broken` failed at sentence 2: ZeroDivisionError"):
        latency([[1], [1]], [3, 4], own=broken)
