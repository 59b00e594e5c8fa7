"""BPE: merges worked out by hand, subword-nmt's file format, joining."""

from __future__ import annotations

import contextlib
import io
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from subword_nmt.learn_bpe import learn_bpe

from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.text.bpe import Codes, learn, remove_bpe

COUNTS = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
# Pair counts at the start: e+s and s+t</w> 9 each (the greater pair wins), l+o 7, then 6: n+e, ...
MERGES = [
    "s t</w>", "e st</w>", "l o", "w est</w>", "n e", "ne west</w>", "lo w</w>",
]  # fmt: skip


def test_merges_by_hand() -> None:
    assert learn(COUNTS, 7).merges == MERGES


def test_segments_by_hand() -> None:
    codes = Codes(MERGES)
    assert codes.segment(["lowest", "low", "newer", "x", "est"]) == [
        "lo@@", "west", "low", "ne@@", "w@@", "e@@", "r", "x", "est",
    ]  # fmt: skip
    assert codes.segment([]) == []


def test_learning_stops_when_no_pair_occurs_twice() -> None:
    assert learn({"ab": 2, "xyz": 1}, 10).merges == ["a b</w>"]


def test_learning_reports_each_merge() -> None:
    seen: list[int] = []
    learn(COUNTS, 3, seen.append)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("counts", [{}, {"a": 5, "b": 2}])
def test_nothing_to_learn(counts: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="nothing to learn"):
        learn(counts, 5)
    with pytest.raises(ConfigError, match="--merges"):
        learn(COUNTS, 0)


def test_files_have_the_format_of_subword_nmt(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    Codes(MERGES).save(path)
    assert path.read_text() == "#version: 0.2\n" + "\n".join(MERGES) + "\n"
    read = Codes.load(path)
    assert (read.merges, len(read)) == (MERGES, 7)


def test_the_old_format_merges_the_end_of_a_word_last(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_text("a b\n")
    assert Codes.load(path).segment(["cab"]) == ["c@@", "ab"]
    path.write_text("#version: 0.2\na b\n")
    assert Codes.load(path).segment(["cab"]) == ["c@@", "a@@", "b"]


@pytest.mark.parametrize(
    ("text", "line"), [("#version: 0.2\na b\nabc\n", 3), ("#version: 9\na b\n", 1), ("a b c\n", 1)]
)
def test_a_faulty_line_is_named(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "codes"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        Codes.load(path)
    assert caught.value.line == line


def test_a_dictionary_is_no_list_of_merges(tmp_path: Path) -> None:
    path = tmp_path / "dict.txt"
    path.write_text("the 512\nof@@ 77\n")
    with pytest.raises(InputError, match="words with their counts"):
        Codes.load(path)
    path.write_text("1 0\n10 e\n")  # merges of digits
    assert len(Codes.load(path)) == 2


WORD = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=12).filter(
    lambda word: "@@" not in word and not word.endswith("@") and not word.startswith("@")
)


@given(st.lists(WORD, max_size=8))
def test_undo_gives_the_words_back(words: list[str]) -> None:
    units = Codes(MERGES).segment(words)
    assert remove_bpe(" ".join(units)) == " ".join(words)


def test_undo_of_a_cut_sentence() -> None:
    assert remove_bpe("a@@ b c@@") == "ab c"


def test_very_long_words_come_back_too() -> None:
    word = "newestlower" * 2000
    units = Codes(MERGES).segment([word, "low"])
    assert remove_bpe(" ".join(units)) == f"{word} low"
    assert units[-1] == "low"


def test_merges_are_those_of_subword_nmt() -> None:
    """Its own program, on words whose pairs come often and seldom, overlap and tie."""
    draw = random.Random(8)
    letters = "aaabbcdeö"
    counts = {
        "".join(draw.choices(letters, k=draw.randint(1, 9))): 1 + int(draw.paretovariate(0.8))
        for _ in range(1500)
    }
    written = io.StringIO()
    listed = io.StringIO("".join(f"{word} {count}\n" for word, count in counts.items()))
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe(listed, written, 900, is_dict=True)
    seen: list[int] = []
    codes = learn(counts, 900, seen.append)
    assert codes.merges == written.getvalue().splitlines()[1:]
    assert len(codes) > 500 and seen == list(range(1, len(codes) + 1))
