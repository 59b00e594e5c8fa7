"""Entropy (3.24), coverage (3.25) and links, by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy
import pytest

from nmtgrid.analysis.alignment.models import AlignmentOptions, alignments_section, read_models
from nmtgrid.analysis.alignment.soft_alignments import (
    by_words,
    coverage,
    entropy,
    join_units,
    links,
    pharaoh,
    shares,
    statistics,
    words_of_units,
)
from nmtgrid.base.errors import InputError
from nmtgrid.search.traces import Trace, read_traces


def trace(
    source: list[str], target: list[str], table: list[list[float]] | None, line: int = 1
) -> Trace:
    held = None if table is None else numpy.array(table, dtype=numpy.float32)
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
    table = [
        [0.1, 0.6, 0.2, 0.1],  # x@@ -> second unit of word 0
        [0.7, 0.1, 0.1, 0.1],  # y   -> first unit of word 0: the same link of words
        [0.1, 0.1, 0.7, 0.1],  # z   -> word 1
        [0.2, 0.2, 0.2, 0.4],  # w   -> the end symbol: no link
        [0.9, 0.0, 0.0, 0.1],  # the end symbol's row links nothing
    ]
    one = trace(["a@@", "b", "c"], ["x@@", "y", "z", "w"], table)
    assert links(one) == [(0, 0), (1, 1)]
    assert pharaoh(one) == "0-0 1-1"


def test_no_alignment_no_links() -> None:
    assert pharaoh(trace(["a"], ["b"], None)) == ""
    assert pharaoh(SECOND) == ""


def test_energies_count_where_they_raise_the_score() -> None:
    held = numpy.array([[3.0, 1.0, -5.0], [-1.0, -2.0, -0.5]], dtype=numpy.float32)
    one = Trace(1, ["a", "b"], ["x"], "", [], 0.0, 0.0, held, "energies")
    third = 1 / 3
    assert shares(one) == pytest.approx(numpy.array([[0.75, 0.25, 0.0], [third] * 3]))
    found = statistics([one])
    assert found is not None
    quarter = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert found.entropy == pytest.approx((quarter + math.log(3)) / 2)
    assert found.coverage == pytest.approx((1.0 + 0.25 + third + third) / 3)
    # Links of the largest energy, also where all are below zero.
    assert links(one) == [(0, 0)]


def test_links_of_units_and_above_a_threshold() -> None:
    table = [[0.5, 0.4, 0.1], [0.1, 0.2, 0.7], [0.0, 0.0, 1.0]]
    one = trace(["a@@", "b"], ["x", "y"], table)
    assert links(one, words=False) == [(0, 0)]
    assert links(one, words=False, threshold=0.2) == [(0, 0), (1, 0), (1, 1)]
    assert links(one, threshold=0.2) == [(0, 0), (0, 1)]


def test_traces_of_words_add_sources_and_average_targets() -> None:
    table = [[0.5, 0.4, 0.1], [0.1, 0.2, 0.7], [0.0, 0.0, 1.0]]
    one = by_words(trace(["a@@", "b"], ["x@@", "y"], table))
    assert (one.source, one.target) == (["ab"], ["xy"])
    assert one.alignment == pytest.approx(numpy.array([[0.6, 0.4], [0.0, 1.0]]))
    energies = Trace(1, ["a@@", "b"], ["x@@", "y"], "", [], 0.0, 0.0,
                     numpy.array(table, dtype=numpy.float32), "energies")  # fmt: skip
    assert by_words(energies).alignment == pytest.approx(numpy.array([[1.2, 0.8], [0.0, 1.0]]))
    assert join_units(["a", "b@@"]) == ["a", "b"]


def test_regions_of_pictures_have_no_end_symbol(tmp_path: Path) -> None:
    table = [[0.5, 0.5, 0.0], [0.5, 0.2, 0.3]]
    one = dataclasses.replace(trace(["r1", "r2", "r3"], ["x"], table), source_end=False)
    found = statistics([one])
    assert found is not None
    assert found.source_tokens == 3
    assert found.coverage == pytest.approx((1.0 + 0.7 + 0.3) / 3)
    assert by_words(one).alignment == pytest.approx(numpy.array(table))
    assert links(one, threshold=0.5) == [(0, 0), (1, 0)]
    path = tmp_path / "t.jsonl"
    path.write_text(dataclasses.replace(one, log_probabilities=[-1.0, -1.0]).to_line() + "\n")
    (again,) = read_traces(path)
    assert not again.source_end and again.alignment == pytest.approx(numpy.array(table))


def test_several_models_are_of_the_same_source(tmp_path: Path) -> None:
    def whole(source: list[str], target: list[str], table: list[list[float]] | None) -> Trace:
        one = trace(source, target, table)
        return dataclasses.replace(one, log_probabilities=[-1.0, -1.0])

    first = whole(["a@@", "b"], ["x"], [[0.5, 0.3, 0.2]] * 2)
    second = whole(["ab"], ["y"], [[0.5, 0.5]] * 2)
    third = whole(["c"], ["y"], [[0.5, 0.5]] * 2)
    none = whole(["ab"], ["y"], None)
    files = {}
    for name, one in (("first", first), ("second", second), ("third", third), ("none", none)):
        files[name] = tmp_path / f"{name}.jsonl"
        files[name].write_text(f"{one.to_line()}\n")
    gold = tmp_path / "gold"
    gold.write_text("0-0\n")
    models = read_models(
        {name: files[name] for name in ("first", "second")}, AlignmentOptions(), gold
    )
    assert [model.links for model in models] == [[[(0, 0)]], [[(0, 0)]]]
    assert [model.error.aer for model in models if model.error] == [0.0, 0.0]
    found = alignments_section(models)
    assert [row["system"] for row in found.values["systems"]] == ["first", "second"]
    for picture in found.pictures:
        picture.draw(tmp_path / f"{picture.name}.svg")
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "alignments-line-1.svg", "entropy-and-coverage.svg",
    }  # fmt: skip
    for other, told in (("third", "third.jsonl:1: the source of line 1 is not"),
                        ("none", "none.jsonl: there is no alignment")):  # fmt: skip
        with pytest.raises(InputError, match=told):
            read_models({"first": files["first"], other: files[other]})
    gold.write_text("0-1\n")
    with pytest.raises(InputError, match="gold:1: the link `0-1` points outside"):
        read_models({"first": files["first"]}, AlignmentOptions(), gold)
