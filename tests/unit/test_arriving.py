"""Words as they come, and raw text as it grows."""

from __future__ import annotations

import gzip
import io
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtgrid.base.errors import InputError
from nmtgrid.text.incremental import IncrementalDetokenizer, IncrementalWords, stream_words
from nmtgrid.text.moses import Moses


class Pieces(io.RawIOBase):
    """Standard input that brings one piece of bytes at a time."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = list(pieces)

    def read1(self, size: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def _words(pieces: list[bytes]) -> tuple[list[str | None], list[str]]:
    """Return what arrives on standard input, and the warnings."""
    warnings: list[str] = []
    before = sys.stdin
    sys.stdin = SimpleNamespace(buffer=Pieces(pieces))
    try:
        return list(stream_words("-", warnings.append)), warnings
    finally:
        sys.stdin = before


def test_a_word_comes_with_the_white_space_behind_it() -> None:
    source = Pieces([b"ei", b"n Hu", b"nd", b"\t", b"bellt\nja", b"\n"])
    before = sys.stdin
    sys.stdin = SimpleNamespace(buffer=source)
    try:
        words = stream_words("-", pytest.fail)
        seen = [(next(words), len(source.pieces)) for _ in range(6)]
    finally:
        sys.stdin = before
    assert seen == [("ein", 4), ("Hund", 2), ("bellt", 1), (None, 1), ("ja", 0), (None, 0)]


text = st.text(st.sampled_from("aä😀 \t\n\r\u2028\ufeff.") | st.characters(codec="utf-8"))


@given(text, st.lists(st.integers(1, 5), max_size=30))
def test_however_it_is_cut_the_words_are_those_of_the_lines(line: str, sizes: list[int]) -> None:
    raw = line.replace("\0", "").encode()
    pieces, place = [], 0
    for size in sizes:
        pieces.append(raw[place : place + size])
        place += size
    found, _ = _words([piece for piece in [*pieces, raw[place:]] if piece])
    lines = raw.decode().lstrip("\ufeff").split("\n")
    wanted: list[str | None] = []
    for each in lines if lines[-1] else lines[:-1]:
        wanted += [*each.split(), None]
    if not raw.decode().strip("\ufeff"):
        assert found in ([], [None])
    else:
        assert found == wanted


def test_what_is_no_text_is_replaced_and_told_once_a_line() -> None:
    found, told = _words([b"gut\nso \xff\xfe \xc3\n", b"\0x\n", "ü".encode()[:1], "ü".encode()[1:]])
    assert found == ["gut", None, "so", "\ufffd\ufffd", "\ufffd", None, "\ufffdx", None, "ü", None]
    assert [text.partition(": ")[0] for text in told] == [
        "standard input, line 2", "standard input, line 3", "standard input, line 4",
    ]  # fmt: skip
    assert "no UTF-8" in told[0] and "last word may not be whole" in told[2]


@pytest.mark.parametrize(
    ("raw", "words", "what"),
    [
        (b"", [], ""),
        (b"\n", [None], ""),
        (b"a b\n", ["a", "b", None], ""),
        (b"a b", ["a", "b", None], "its last word may not be whole"),
        (b"a b ", ["a", "b", None], ""),
        (b"a\n ", ["a", None, None], ""),
        (b"a\n\xe2\x82", ["a", None, "\ufffd\ufffd", None], "in the middle of a character"),
        (b"a\xe2", ["a\ufffd", None], "in the middle of a character"),
    ],
)
def test_how_a_stream_may_end(raw: bytes, words: list[str | None], what: str) -> None:
    found, told = _words([raw])
    assert found == words
    assert len(told) == bool(what) and what in "".join(told)


def test_files_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfa b\r\nc\n"))
    assert list(stream_words(path, pytest.fail)) == ["a", "b", None, "c", None]
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match="damaged"):
        list(stream_words(path, pytest.fail))
    with pytest.raises(InputError, match="no such file"):
        list(stream_words(tmp_path / "no", pytest.fail))


@pytest.mark.parametrize(
    ("language", "words", "pieces"),
    [
        ("en", "a dog , yes .", ["a", " dog", ",", " yes", "."]),
        ("en", "( it &apos;s", ["(", "it", "'s"]),
        ("en", "say &quot; no &quot; &amp; go", ["say", ' "', "no", '"', " &", " go"]),
        ("fr", "l&apos; eau", ["l'", "eau"]),
        ("en", "costs $ 5", ["costs", " $", "5"]),
    ],
)
def test_raw_text_grows(language: str, words: str, pieces: list[str]) -> None:
    """The pieces by hand; together they are what the whole detokenised is."""
    grown = IncrementalDetokenizer(Moses(language))
    assert [grown.add(word) for word in words.split()] == pieces
    assert grown.text == "".join(pieces) == Moses(language).detokenize(words)


def test_what_has_been_said_stays() -> None:
    """A detokeniser that changes its mind: the word stands apart, and it goes on from there."""

    class Fickle(Moses):
        def detokenize(self, text: str) -> str:
            words = text.split()
            return "-".join(reversed(words)) if words[:1] == ["a"] else "".join(words)

    grown = IncrementalDetokenizer(Fickle("en"))
    assert [grown.add(word) for word in ("a", "b", "c")] == ["a", " b", "c"]
    assert grown.text == "a bc"
    plain = IncrementalDetokenizer(Moses("en", tokenize=False))
    assert [plain.add(word) for word in ("a", ",")] == ["a", " ,"]


def test_raw_words_come_when_the_next_one_begins() -> None:
    words = IncrementalWords(Moses("fr"))
    found = [words.add(word) for word in ["l&apos;", "eau", ",", "dit", "@-@", "il", "?"]]
    assert found == [[], [], [], ["l'eau,"], [], [], ["dit-il"]]
    assert words.end() == ["?"] and words.end() == [] == IncrementalWords(Moses("fr")).end()


PARTS = ("a", "it", "&apos;s", "&quot;", ".", ",", "(", ")", "$", "5", "@-@", "'", "l'", "-")


@given(st.lists(st.sampled_from(PARTS), max_size=12))
def test_nothing_worse_than_tokenised_text(words: list[str]) -> None:
    for language in ("en", "fr", "cs", "fi"):
        grown = IncrementalDetokenizer(Moses(language))
        for word in words:
            grown.add(word)
        unescaped = "".join(words).replace("&apos;", "'").replace("&quot;", '"')
        assert grown.text.replace(" ", "").replace("@", "") == unescaped.replace("@", "")
        raw = IncrementalWords(Moses(language))
        assert [one for word in words for one in raw.add(word)] + raw.end() == grown.text.split()


class Whole:
    """Raw text that grows by detokenising all words anew with each."""

    def __init__(self, moses: Moses) -> None:
        self.moses, self.words, self.shown, self.text = moses, list[str](), "", ""

    def add(self, word: str) -> str:
        self.words.append(word)
        text = self.moses.detokenize(" ".join(self.words))
        more = text[len(self.shown) :]
        if not text.startswith(self.shown):
            self.words = [word]
            text = self.moses.detokenize(word)
            more = f" {text}"
        self.shown = text
        self.text += more
        return more


MARKS = (
    *PARTS, "[", "&#91;", "&#93;", "„", "“", "”", "``", "''", "`", "@-@", "?", ":", "%", "'s",
    "&amp;", "&amp;quot;", "«", "—", "-", "€", "&apos;t", "qu&apos;", "...", "/",
)  # fmt: skip
PLAIN = ("dogs", "is", "7", "EU", "n", "Šípů", "да", "हिन्दी", "犬", "かな", "a@-@b", "x")


@pytest.mark.parametrize("language", ["en", "de", "fr", "it", "ga", "fi", "cs", "ru", "zh", "ko"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.7])
def test_words_that_are_forgotten_had_no_say(language: str, share: float) -> None:
    """Word for word what detokenising everything again and again would give."""
    draw = random.Random(f"{language} {share}")
    moses = Moses(language)
    for _ in range(3):
        grown, whole = IncrementalDetokenizer(moses), Whole(moses)
        for _ in range(150):
            word = draw.choice(MARKS if draw.random() < share else PLAIN)
            assert grown.add(word) == whole.add(word)
        assert grown.text == whole.text


def test_a_long_line_costs_as_much_a_word_as_a_short_one() -> None:
    """Also where a quotation stays open to its end."""

    class Counted(Moses):
        seen = 0

        def detokenize(self, text: str) -> str:
            self.seen += text.count(" ") + 1
            return super().detokenize(text)

    moses = Counted("en")
    grown = IncrementalDetokenizer(moses)
    for place in range(1000):
        grown.add(("&quot;", "it", "&apos;s", ",", "(")[place % 5] if place < 5 else "word")
    assert moses.seen < 30 * 1000
    assert grown.add("&quot;") + grown.add("yes") == '" yes'
