"""READ/WRITE paths over alignments: delays and anticipation by hand, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from nmtgrid.analysis.paths import (
    _of_units,
    as_paths,
    given_links,
    learned_links,
    paths_section,
    read_traced,
)
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.search.traces import Trace

SOURCE, TARGET = ["a@@", "b", "c", "d"], ["x", "y@@", "z"]


def trace(reads: list[int] | None, line: int = 1, source: list[str] | None = None) -> Trace:
    held = SOURCE if source is None else source
    numbers = [-0.5] * (len(TARGET) + 1)
    return Trace(line, held, TARGET, "x yz", numbers, -2.0, -0.5, None, "weights", reads)


def written(path: Path, *traces: Trace) -> Path:
    path.write_text("".join(f"{one.to_line()}\n" for one in traces))
    return path


def test_numbers_by_hand(tmp_path: Path) -> None:
    files = {"w": written(tmp_path / "w.jsonl", trace([2, 3, 4, 5]))}
    traced = read_traced(files)
    # Of words: x - c, yz - ab. Written x after (a b), y after c, z after d.
    links = {"w": [[(0, 1), (1, 0)]]}
    (tokens,) = as_paths(files, traced, links, "token")
    (one,) = tokens.paths
    assert list(one.delays) == [2, 3, 4]
    assert one.links == [(0, 1), (1, 2), (2, 0)]
    assert one.anticipated == [0]
    assert tokens.anticipation == pytest.approx(1 / 3)
    assert (tokens.mean_delay, tokens.unaligned) == (3.0, 0.0)
    # AL: all is read at t = 3; (2 - 0) + (3 - 4/3) + (4 - 8/3) over 3.
    assert tokens.mean_lagging == pytest.approx((2 + 5 / 3 + 4 / 3) / 3)
    (words,) = as_paths(files, traced, links, "word")
    (one,) = words.paths
    # Words ab, c, d: one had been read before x, all three when yz was complete.
    assert (list(one.source), list(one.target)) == (["ab", "c", "d"], ["x", "yz"])
    assert list(one.delays) == [1, 3]
    assert one.anticipated == [0]
    assert words.anticipation == 0.5
    # Without links nothing is known of anticipation.
    (bare,) = as_paths(files, traced, None, "token")
    assert (bare.anticipation, bare.unaligned, bare.paths[0].anticipated) == (None, None, None)


def test_links_of_words_are_spread_over_their_units() -> None:
    # Words of 3 and 2 units on each side, crossed.
    found = _of_units([(0, 1), (1, 0)], [0, 0, 0, 1, 1], [0, 0, 0, 1, 1])
    assert found == [(0, 3), (1, 3), (1, 4), (2, 4), (3, 0), (3, 1), (4, 1), (4, 2)]
    assert _of_units([(0, 0)], [0], [0, 0]) == [(0, 0), (0, 1)]


def test_delays_count_no_end_symbol(tmp_path: Path) -> None:
    files = {"w": written(tmp_path / "w.jsonl", trace([5, 5, 5, 5]))}
    (found,) = as_paths(files, read_traced(files), {"w": [[]]}, "token")
    assert list(found.paths[0].delays) == [4, 4, 4]
    assert found.unaligned == 1.0


def test_what_models_look_at_is_shown_as_it_is(tmp_path: Path) -> None:
    shares = numpy.full((4, 5), 0.2, dtype=numpy.float32)
    held = Trace(1, SOURCE, TARGET, "", [-1.0] * 4, -4.0, -1.0, shares, "weights", [1, 2, 3, 4])
    files = {"w": written(tmp_path / "w.jsonl", held)}
    traced = read_traced(files)
    (tokens,) = as_paths(files, traced, None, "token")
    assert tokens.paths[0].shares == pytest.approx(numpy.full((3, 4), 0.2))
    (words,) = as_paths(files, traced, None, "word")
    # Two units of a word are added up, the rows of y@@ z averaged.
    assert words.paths[0].shares == pytest.approx(numpy.array([[0.4, 0.2, 0.2]] * 2))


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ([trace([1, 2, 3, 4])], "b.jsonl: it has 1 lines, but .*a.jsonl has 2"),
        ([trace([1, 2, 3, 4]), trace(None, 2)], "b.jsonl:2: there are no `reads`"),
        ([trace([1, 2, 3, 4]), trace([1, 2, 3, 3], 2, ["a", "q"])], "b.jsonl:2: its source is not"),
        ([], "b.jsonl: the file is empty"),
    ],
)
def test_bad_traces_are_named(tmp_path: Path, second: list[Trace], told: str) -> None:
    first = written(tmp_path / "a.jsonl", trace([1, 2, 3, 4]), trace([1, 2, 3, 4], 2))
    other = written(tmp_path / "b.jsonl", *second)
    with pytest.raises(InputError, match=told):
        read_traced({"a": first, "b": other})


def test_bad_links_are_named(tmp_path: Path) -> None:
    files = {"w": written(tmp_path / "w.jsonl", trace([1, 2, 3, 4]))}
    links = tmp_path / "links"
    links.write_text("2-2\n")
    # Links are of words: two target words.
    with pytest.raises(InputError, match="links:1: the link `2-2` points outside the sentence"):
        given_links(read_traced(files), {"w": links})


def test_sections_of_one_and_of_four_systems(tmp_path: Path) -> None:
    path = written(tmp_path / "w.jsonl", trace([2, 3, 4, 5]))
    for count in (1, 4):
        files = {f"system {number}": path for number in range(count)}
        traced = read_traced(files)
        links, told = learned_links(traced, ([], []), "union", lambda what, done, total: None)
        found = paths_section(as_paths(files, traced, links, "word"), [], "word", told, ["x yz"])
        assert [row["system"] for row in found.values["systems"]] == list(files)
        assert found.values["unit"] == "tokenised word", "not the raw ones of online evaluation"
        assert found.tables[0].title == "READ/WRITE paths: delays in source tokenised words"
        assert found.values["systems"][0]["lines"][0]["line"] == 1
        (picture,) = found.pictures
        picture.draw(tmp_path / f"{count}.png")
    with pytest.raises(ConfigError, match="no line 7"):
        paths_section(as_paths(files, traced, links, "word"), [7], "word", told)
