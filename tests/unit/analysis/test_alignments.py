"""Word alignments: entropy, coverage and links; the aligner; READ/WRITE paths and difficulty."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy
import pytest

from nmtgrid.analysis.alignment.models import AlignmentOptions, alignments_section, read_models
from nmtgrid.analysis.alignment.soft_alignments import (
    AlignmentStatistics,
    by_words,
    coverage,
    entropy,
    join_units,
    links,
    shares,
    statistics,
    words_of_units,
)
from nmtgrid.analysis.paths import (
    _of_units,
    as_paths,
    given_links,
    learned_links,
    paths_section,
    read_traced,
)
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.cli.app import main
from nmtgrid.search.traces import Trace, read_traces


def trace(source: list[str], target: list[str], table: Any, line: int = 1) -> Trace:
    alignment = None if table is None else numpy.array(table, dtype=numpy.float32)
    return Trace(line, source, target, "", [], 0.0, 0.0, alignment)


FIRST = trace(["a"], ["x", "y"], [[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]])
SECOND = trace(["a", "b"], [], [[0.0, 0.0, 1.0]])


def averages(traces: list[Trace]) -> AlignmentStatistics | None:
    return statistics(weights for weights in map(shares, traces) if weights is not None)


def test_entropy_and_coverage_by_hand() -> None:
    assert FIRST.alignment is not None
    quarter = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert entropy(FIRST.alignment).tolist() == pytest.approx([math.log(2), 0.0, quarter])
    # 0.5 + 1 + 0.25 = 1.75 counts as 1; 0.5 + 0 + 0.75 = 1.25 counts as 1.
    assert coverage(FIRST.alignment).tolist() == [1.0, 1.0]
    assert coverage(numpy.array([[0.25, 0.75]])).tolist() == [0.25, 0.75]


def test_statistics_average_over_tokens_of_the_corpus() -> None:
    measured = averages([FIRST, trace(["q"], ["r"], None), SECOND])
    assert measured is not None
    total = math.log(2) - (0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert measured.entropy == pytest.approx(total / 4)
    assert measured.coverage == pytest.approx((1 + 1 + 0 + 0 + 1) / 5)
    assert (measured.sentences, measured.source_tokens, measured.target_tokens) == (2, 5, 4)
    assert averages([trace([], [], None)]) is None


def test_links_join_units_to_words() -> None:
    assert words_of_units(["a@@", "b", "c", "d@@", "e@@", "f"]) == [0, 0, 1, 2, 2, 2]
    assert words_of_units([]) == []
    table = [
        [0.1, 0.6, 0.2, 0.1],  # x@@ -> second unit of word 0
        [0.7, 0.1, 0.1, 0.1],  # y   -> first unit of word 0: the same link of words
        [0.1, 0.1, 0.7, 0.1],  # z   -> word 1
        [0.2, 0.2, 0.2, 0.4],  # w   -> the end symbol: no link
        [0.9, 0.0, 0.0, 0.1],  # the end symbol's row links nothing
    ]
    single = trace(["a@@", "b", "c"], ["x@@", "y", "z", "w"], table)
    assert links(single) == [(0, 0), (1, 1)]
    assert links(trace(["a"], ["b"], None)) == links(SECOND) == []


def test_energies_count_where_they_raise_the_score() -> None:
    energies = numpy.array([[3.0, 1.0, -5.0], [-1.0, -2.0, -0.5]], dtype=numpy.float32)
    single = Trace(1, ["a", "b"], ["x"], "", [], 0.0, 0.0, energies, "energies")
    third = 1 / 3
    assert shares(single) == pytest.approx(numpy.array([[0.75, 0.25, 0.0], [third] * 3]))
    measured = averages([single])
    assert measured is not None
    quarter = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert measured.entropy == pytest.approx((quarter + math.log(3)) / 2)
    assert measured.coverage == pytest.approx((1.0 + 0.25 + third + third) / 3)
    # Links of the largest energy, also where all are below zero.
    assert links(single) == [(0, 0)]


def test_links_of_units_and_traces_of_words() -> None:
    table = [[0.5, 0.4, 0.1], [0.1, 0.2, 0.7], [0.0, 0.0, 1.0]]
    single = trace(["a@@", "b"], ["x", "y"], table)
    assert links(single, words=False) == [(0, 0)]
    assert links(single, words=False, threshold=0.2) == [(0, 0), (1, 0), (1, 1)]
    assert links(single, threshold=0.2) == [(0, 0), (0, 1)]
    single = by_words(trace(["a@@", "b"], ["x@@", "y"], table))
    assert (single.source, single.target) == (["ab"], ["xy"])
    assert single.alignment == pytest.approx(numpy.array([[0.6, 0.4], [0.0, 1.0]]))
    energies = Trace(1, ["a@@", "b"], ["x@@", "y"], "", [], 0.0, 0.0,
                     numpy.array(table, dtype=numpy.float32), "energies")  # fmt: skip
    assert by_words(energies).alignment == pytest.approx(numpy.array([[1.2, 0.8], [0.0, 1.0]]))
    assert join_units(["a", "b@@"]) == ["a", "b"]


def test_regions_of_pictures_have_no_end_symbol(tmp_path: Path) -> None:
    table = [[0.5, 0.5, 0.0], [0.5, 0.2, 0.3]]
    single = dataclasses.replace(trace(["r1", "r2", "r3"], ["x"], table), source_end=False)
    measured = averages([single])
    assert measured is not None and measured.source_tokens == 3
    assert measured.coverage == pytest.approx((1.0 + 0.7 + 0.3) / 3)
    assert by_words(single).alignment == pytest.approx(numpy.array(table))
    assert links(single, threshold=0.5) == [(0, 0), (1, 0)]
    path = tmp_path / "t.jsonl"
    path.write_text(dataclasses.replace(single, log_probabilities=[-1.0, -1.0]).to_line() + "\n")
    (again,) = read_traces(path)
    assert not again.source_end and again.alignment == pytest.approx(numpy.array(table))


def test_several_models_are_of_the_same_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def whole(source: list[str], target: list[str], table: list[list[float]] | None) -> Trace:
        written = trace(source, target, table)
        return dataclasses.replace(written, log_probabilities=[-1.0, -1.0])

    first = whole(["a@@", "b"], ["x"], [[0.5, 0.3, 0.2]] * 2)
    second = whole(["ab"], ["y"], [[0.5, 0.5]] * 2)
    third = whole(["c"], ["y"], [[0.5, 0.5]] * 2)
    none = whole(["ab"], ["y"], None)
    files = {}
    for name, written in (("first", first), ("second", second), ("third", third), ("none", none)):
        files[name] = tmp_path / f"{name}.jsonl"
        files[name].write_text(f"{written.to_line()}\n")
    gold = tmp_path / "gold"
    gold.write_text("0-0\n")
    models = read_models(
        {name: files[name] for name in ("first", "second")}, AlignmentOptions(), gold
    )
    assert [model.links for model in models] == [[[(0, 0)]], [[(0, 0)]]]
    assert [model.error.aer for model in models if model.error] == [0.0, 0.0]
    report = alignments_section(models, AlignmentOptions())
    assert [row["system"] for row in report.values["systems"]] == ["first", "second"]
    for picture in report.pictures:
        picture.draw(tmp_path / f"{picture.name}.svg")
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "alignments-line-1.svg", "entropy-and-coverage.svg",
    }  # fmt: skip
    for other, words in (("third", "third.jsonl:1: the source of line 1 is not"),
                        ("none", "none.jsonl: the file contains no alignments")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            read_models({"first": files["first"], other: files[other]}, AlignmentOptions())
    assert [model.has_subwords for model in models] == [True, False]
    twice = tmp_path / "twice.jsonl"
    twice.write_text(f"{second.to_line()}\n{dataclasses.replace(second, line=2).to_line()}\n")
    with pytest.raises(InputError, match="it has 1 line, but those of the first model have 2"):
        read_models({"twice": twice, "first": files["first"]}, AlignmentOptions())
    assert main(["analyze", "alignments", str(files["first"]), "--gold", str(gold)]) == 0
    assert "add `--words` if" in " ".join(capsys.readouterr().err.split())
    gold.write_text("0-1\n")
    with pytest.raises(InputError, match="gold:1: the link `0-1` points outside"):
        read_models({"first": files["first"]}, AlignmentOptions(), gold)


SOURCE, TARGET = ["a@@", "b", "c", "d"], ["x", "y@@", "z"]


def path_trace(reads: list[int] | None, line: int = 1, source: list[str] | None = None) -> Trace:
    units = SOURCE if source is None else source
    numbers = [-0.5] * (len(TARGET) + 1)
    return Trace(line, units, TARGET, "x yz", numbers, -2.0, -0.5, None, "weights", reads)


def written(path: Path, *traces: Trace) -> Path:
    path.write_text("".join(f"{trace.to_line()}\n" for trace in traces))
    return path


def test_paths_by_hand(tmp_path: Path) -> None:
    files = {"w": written(tmp_path / "w.jsonl", path_trace([2, 3, 4, 5]))}
    traced = read_traced(files)
    # Of words: x - c, yz - ab. Written x after (a b), y after c, z after d.
    links = {"w": [[(0, 1), (1, 0)]]}
    (tokens,) = as_paths(files, traced, links, "token")
    (path,) = tokens.paths
    assert list(path.delays) == [2, 3, 4] and path.links == [(0, 1), (1, 2), (2, 0)]
    assert path.anticipated == [0]
    numbers = tokens.numbers()
    assert numbers["anticipation_percent"] == pytest.approx(100 / 3)
    assert (numbers["mean_delay"], numbers["unaligned_percent"]) == (3.0, 0.0)
    # AL: all is read at t = 3; (2 - 0) + (3 - 4/3) + (4 - 8/3) over 3.
    assert numbers["al"] == pytest.approx((2 + 5 / 3 + 4 / 3) / 3)
    assert tokens.numbers(0) == {
        "line": 1, **{name: numbers[name] for name in numbers if name != "unaligned_percent"},
    }  # fmt: skip
    (words,) = as_paths(files, traced, links, "word")
    (path,) = words.paths
    # Words ab, c, d: one had been read before x, all three when yz was complete.
    assert (list(path.source), list(path.target)) == (["ab", "c", "d"], ["x", "yz"])
    assert list(path.delays) == [1, 3] and path.anticipated == [0]
    assert words.numbers()["anticipation_percent"] == 50
    # Without links nothing is known of anticipation.
    (bare,) = as_paths(files, traced, None, "token")
    numbers = bare.numbers()
    assert numbers["anticipation_percent"] is numbers["unaligned_percent"] is None
    assert bare.paths[0].anticipated is None
    files = {"w": written(tmp_path / "w.jsonl", path_trace([5, 5, 5, 5]))}
    (late,) = as_paths(files, read_traced(files), {"w": [[]]}, "token")
    assert list(late.paths[0].delays) == [4, 4, 4]
    assert late.numbers()["unaligned_percent"] == 100

    # Words of 3 and 2 units on each side, crossed.
    spread = _of_units([(0, 1), (1, 0)], [0, 0, 0, 1, 1], [0, 0, 0, 1, 1])
    assert spread == [(0, 3), (1, 3), (1, 4), (2, 4), (3, 0), (3, 1), (4, 1), (4, 2)]
    assert _of_units([(0, 0)], [0], [0, 0]) == [(0, 0), (0, 1)]


def test_what_models_look_at_is_shown_as_it_is(tmp_path: Path) -> None:
    shares = numpy.full((4, 5), 0.2, dtype=numpy.float32)
    looking = Trace(1, SOURCE, TARGET, "", [-1.0] * 4, -4.0, -1.0, shares, "weights", [1, 2, 3, 4])
    files = {"w": written(tmp_path / "w.jsonl", looking)}
    traced = read_traced(files)
    (tokens,) = as_paths(files, traced, None, "token")
    assert tokens.paths[0].shares == pytest.approx(numpy.full((3, 4), 0.2))
    (words,) = as_paths(files, traced, None, "word")
    # Two units of a word are added up, the rows of y@@ z averaged.
    assert words.paths[0].shares == pytest.approx(numpy.array([[0.4, 0.2, 0.2]] * 2))
    (tmp_path / "links").write_text("2-2\n")
    # Links are of words: two target words.
    with pytest.raises(InputError, match="links:1: the link `2-2` points outside the sentence"):
        given_links(traced, {"w": tmp_path / "links"})


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ([path_trace([1, 2, 3, 4])], "b.jsonl: it has 1 line, but .*a.jsonl has 2"),
        ([path_trace([1, 2, 3, 4]), path_trace(None, 2)], "b.jsonl:2: it has no `reads`"),
        (
            [path_trace([1, 2, 3, 4]), path_trace([1, 2, 3, 3], 2, ["a", "q"])],
            "b.jsonl:2: its source is not",
        ),
        ([], "b.jsonl: the file is empty"),
    ],
)
def test_bad_traces_are_named(tmp_path: Path, second: list[Trace], words: str) -> None:
    first = written(tmp_path / "a.jsonl", path_trace([1, 2, 3, 4]), path_trace([1, 2, 3, 4], 2))
    other = written(tmp_path / "b.jsonl", *second)
    with pytest.raises(InputError, match=words):
        read_traced({"a": first, "b": other})


def test_sections_of_one_and_of_four_systems(tmp_path: Path) -> None:
    path = written(tmp_path / "w.jsonl", path_trace([2, 3, 4, 5]))
    for count in (1, 4):
        files = {f"system {number}": path for number in range(count)}
        traced = read_traced(files)
        links, origin = learned_links(traced, ([], []), "union", lambda what, done, total: None)
        report = paths_section(as_paths(files, traced, links, "word"), [], "word", origin, ["x yz"])
        assert [row["system"] for row in report.values["systems"]] == list(files)
        assert report.values["unit"] == "tokenised word", "not the raw ones of online evaluation"
        assert report.tables[0].title == "READ/WRITE paths: delays in source tokenised words"
        assert report.values["systems"][0]["lines"][0]["line"] == 1
        (picture,) = report.pictures
        picture.draw(tmp_path / f"{count}.png")
    with pytest.raises(ConfigError, match="no line 7"):
        paths_section(as_paths(files, traced, links, "word"), [7], "word", origin)
