"""Text: BPE, filters, word counts and workers; words as they come, and raw text as it grows."""

from __future__ import annotations

import contextlib
import gzip
import io
import operator
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from subword_nmt.learn_bpe import learn_bpe

from nmtgrid.base.config import check
from nmtgrid.base.errors import ConfigError, InputError, NmtgridError
from nmtgrid.base.io.text import open_writer, read_lines
from nmtgrid.base.io.workers import chunks, map_ordered
from nmtgrid.data.subwords import WordCounts, count_units, most_frequent
from nmtgrid.text import shards
from nmtgrid.text.bpe import Codes, remove_bpe
from nmtgrid.text.bpe_learning import learn
from nmtgrid.text.cleaning import Cleaner, Filters, PairShard
from nmtgrid.text.incremental import IncrementalDetokenizer, IncrementalWords, stream_words
from nmtgrid.text.moses import Moses
from nmtgrid.text.shards import LineShard, read_shards, segment_lines

COUNTS = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
# Pair counts at the start: e+s and s+t</w> 9 each (the greater pair wins), l+o 7, then 6: n+e, ...
MERGES = [
    "s t</w>", "e st</w>", "l o", "w est</w>", "n e", "ne west</w>", "lo w</w>",
]  # fmt: skip


def test_merges_and_segments_by_hand() -> None:
    assert learn(COUNTS, 7).merges == MERGES
    codes = Codes(MERGES)
    assert codes.segment(["lowest", "low", "newer", "x", "est"]) == [
        "lo@@", "west", "low", "ne@@", "w@@", "e@@", "r", "x", "est",
    ]  # fmt: skip
    assert codes.segment([]) == []
    assert learn({"ab": 2, "xyz": 1}, 10).merges == ["a b</w>"]
    seen: list[int] = []
    learn(COUNTS, 3, seen.append)
    assert seen == [1, 2, 3]

    nothing: list[dict[str, int]] = [{}, {"a": 5, "b": 2}]
    for counts in nothing:
        with pytest.raises(ConfigError, match="nothing to learn"):
            learn(counts, 5)


def test_file_formats(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    Codes(MERGES).save(path)
    assert path.read_text() == "#version: 0.2\n" + "\n".join(MERGES) + "\n"
    read = Codes.load(path)
    assert (read.merges, len(read)) == (MERGES, 7)
    path.write_text("a b\n")
    assert Codes.load(path).segment(["cab"]) == ["c@@", "ab"]
    path.write_text("#version: 0.2\na b\n")
    assert Codes.load(path).segment(["cab"]) == ["c@@", "a@@", "b"]
    path = tmp_path / "dict.txt"
    path.write_text("the 512\nof@@ 77\n")
    with pytest.raises(InputError, match="words with their counts"):
        Codes.load(path)
    path.write_text("1 0\n10 e\n")  # merges of digits
    assert len(Codes.load(path)) == 2
    path.write_text("#version: 0.2\n1 2\n12 3\n1 4\n")
    assert Codes.load(path).merges == ["1 2", "12 3", "1 4"]
    for text, line in (("#version: 0.2\na b\nabc\n", 3), ("#version: 9\na b\n", 1), ("a b c\n", 1)):
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            Codes.load(path)
        assert caught.value.line == line


WORD = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=12).filter(
    lambda word: "@@" not in word and not word.endswith("@") and not word.startswith("@")
)


@given(st.lists(WORD, max_size=8))
def test_undo_gives_the_words_back(words: list[str]) -> None:
    units = Codes(MERGES).segment(words)
    assert remove_bpe(" ".join(units)) == " ".join(words)


def test_undo_of_cut_sentences_and_very_long_words() -> None:
    assert remove_bpe("a@@ b c@@") == "ab c"
    word = "newestlower" * 2000
    units = Codes(MERGES).segment([word, "low"])
    assert remove_bpe(" ".join(units)) == f"{word} low"
    assert units[-1] == "low"


def _merges_of_subword_nmt(counts: dict[str, int], merges: int) -> list[str]:
    written = io.StringIO()
    listed = io.StringIO("".join(f"{word} {count}\n" for word, count in counts.items()))
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe(listed, written, merges, is_dict=True)
    return written.getvalue().splitlines()[1:]


def test_merges_are_those_of_subword_nmt() -> None:
    """Its own program, on words whose pairs come often and seldom, overlap and tie."""
    draw = random.Random(8)
    letters = "aaabbcdeö"
    counts = {
        "".join(draw.choices(letters, k=draw.randint(1, 9))): 1 + int(draw.paretovariate(0.8))
        for _ in range(1500)
    }
    seen: list[int] = []
    codes = learn(counts, 900, seen.append)
    assert codes.merges == _merges_of_subword_nmt(counts, 900)
    assert len(codes) > 500 and seen == sorted(set(seen)) and seen[-1] == len(codes)


@pytest.mark.parametrize("seed", range(60))
def test_merges_of_words_that_tie_and_repeat_themselves(seed: int) -> None:
    """Runs of one letter and of several, beside each other; small counts, so that most tie."""
    draw = random.Random(seed)
    letters = "abcd𝄞"[: draw.randint(1, 5)]

    def word() -> str:
        parts = ("".join(draw.choices(letters, k=draw.randint(1, 3))) for _ in range(4))
        return "".join(part * draw.randint(0, 5) for part in parts)

    counts = {word() or "a": draw.randint(1, 4) for _ in range(draw.randint(2, 60))}
    counts |= {"aa": 2}
    merges = draw.choice([1, 7, 40, 200])
    codes = learn(counts, merges)
    assert codes.merges == _merges_of_subword_nmt(counts, merges)
    # The segmentation that learning leaves behind is that of the merges.
    assert codes.segment(counts) == Codes(codes.merges).segment(counts)


def test_filters_at_their_edges() -> None:
    for reason, *pairs in (
        ("empty", ("a", ""), ("", "")),
        ("ratio", ("a b c d", "a b"), ("a", "a b")),
        ("too_long", ("a " * 176, "b " * 175), ("a " * 175, "b " * 176)),
        ("long_word", ("a" * 1001, "b")),
        ("", ("a b c", "a b"), ("a " * 175, "b " * 175), ("a" * 1000, "b")),
    ):
        for source, target in pairs:
            assert Filters().refuse(source.strip(), target.strip()) == reason, (source, target)


def test_faulty_filters_and_the_cleaner() -> None:
    with pytest.raises(ConfigError) as caught:
        check(Filters(max_words=0, max_ratio=float("nan")))
    assert len(caught.value.faults) == 2
    part = PairShard(
        LineShard(b"A dog.\nYes\nNo\n"), LineShard(b"Un chien.\nOui, oui!\n\n"), ["x", "y", "z"]
    )
    cleaned = Cleaner(Moses("en"), Moses("fr"), Filters())(part)
    assert cleaned.text == (b"A dog .\n", b"Un chien .\n")
    assert cleaned.raw == (b"A dog.\n", b"Un chien.\n")
    assert cleaned.truth == b"x\n"
    assert (cleaned.pairs_read, cleaned.pairs_kept) == (3, 1)
    assert cleaned.dropped == {"ratio": 1, "empty": 1}
    whole = Cleaner(Moses("en"), Moses("fr"), None, raw=False)(part)
    assert whole.text == (b"A dog .\nYes\nNo\n", b"Un chien .\nOui , oui !\n\n")
    assert whole.raw == (b"", b"") and whole.pairs_kept == 3


@pytest.mark.parametrize("ending", [b"\n", b""])
@pytest.mark.parametrize("first", [1, 7])
def test_a_part_is_read_as_its_file_is(tmp_path: Path, first: int, ending: bytes) -> None:
    """Byte-order marks, carriage returns and separators, as `read_lines` sees them."""
    raw = "\ufeffa\r\n\nb\u2028c\r\r\n\x0b\n\r\nö".encode() + ending
    path = tmp_path / "x"
    path.write_bytes(b"-\n" * (first - 1) + raw)
    expected: Counter[str] = Counter()
    lines = list(read_lines(path, expected))[first - 1 :]
    counted: Counter[str] = Counter()
    assert LineShard(raw, "x", first).read(counted) == lines
    assert counted == expected


def test_what_is_no_text_is_named_by_its_line() -> None:
    for raw in (b"a\n\xe9\n", b"a\n\0\n"):
        with pytest.raises(InputError, match="x:8: "):
            LineShard(raw, "x", 7).read(Counter())


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_parts_of_a_file_are_cut_as_its_lines_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(shards, "_READ_SIZE", 9)
    path = tmp_path / f"x{ending}"
    with open_writer(path) as file:
        file.write(b"abc ab\n\nc  abc\r\nab")
    parts = list(read_shards(path))
    assert len(parts) == (1 if ending else 2)
    cut = b"".join(lines for lines, _ in map(partial(segment_lines, Codes(["a b"])), parts))
    assert cut == b"ab@@ c a@@ b\n\nc ab@@ c\na@@ b\n"
    (tmp_path / "none").write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        list(read_shards(tmp_path / "none"))


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_the_input_is_not_read_ahead(workers: int) -> None:
    parts = iter(range(30))
    for done, (part, result) in enumerate(map_ordered(operator.neg, parts, workers)):
        taken = 30 - operator.length_hint(parts)
        assert (part, result) == (done, -done) and taken <= done + 1 + 2 * workers
    assert done == 29
    assert list(chunks(range(5), 2)) == [[0, 1], [2, 3], [4]]
    answers = iter([True, False, False, True, False])  # not asked where a list is full
    assert list(chunks(range(6), 3, lambda: next(answers))) == [[0], [1, 2, 3], [4], [5]]


def test_a_dead_process_is_told() -> None:
    die = partial(signal.raise_signal, signal.SIGKILL)
    with pytest.raises(NmtgridError, match="worker process died"):
        list(map_ordered(operator.call, [die], 2))


def test_processes_leave_with_the_one_that_started_them(project: Path) -> None:
    code = (
        "import os, operator, signal\n"
        "from nmtgrid.base.io.workers import map_ordered\n"
        "if __name__ == '__main__':\n"
        "    for _, process in map_ordered(operator.call, [os.getpid] * 9, 2):\n"
        "        print(process, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # Standard output ends only when the last process that holds it has left.
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(project)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL and int(done.stdout.split()[0]) > 0


def test_word_counts() -> None:
    counts = WordCounts(largest=4)
    counts.add(Counter("aaabbcd"))
    assert counts.counts == Counter(a=3, b=2, c=1, d=1)
    counts.add(Counter("ea"))
    assert counts.counts == Counter(a=4, b=2)
    assert counts.pruned == 3
    five = {"a": 1, "b": 3, "c": 2, "d": 2, "e": 2}
    assert most_frequent(five, 3) == {"b": 3, "c": 2, "d": 2} and most_frequent(five, 9) == five
    done: list[int] = []
    segmented = {"abc": ""}
    units = count_units({"abc": 3, "c": 2}, Codes(["a b"]), 1, segmented, done.append)
    assert units == {"ab@@": 3, "c": 5} and segmented == {"abc": "ab@@ c"} and done == [2]
    assert count_units({"abc": 3}, None, 1, segmented, done.append) == {"abc": 3}
    assert segmented == {"abc": "abc"}


class Pieces(io.RawIOBase):
    """Standard input that brings one piece of bytes at a time."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = list(pieces)

    def read1(self, size: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def _words(pieces: list[bytes]) -> tuple[list[str | None], list[str]]:
    warnings: list[str] = []
    before = sys.stdin
    sys.stdin = SimpleNamespace(buffer=Pieces(pieces))
    try:
        return list(stream_words("-", warnings.append)), warnings
    finally:
        sys.stdin = before


def test_a_word_comes_with_the_white_space_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Pieces([b"ei", b"n Hu", b"nd", b"\t", b"bellt\nja", b"\n"])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=source))
    words = stream_words("-", pytest.fail)
    seen = [(next(words), len(source.pieces)) for _ in range(6)]
    assert seen == [("ein", 4), ("Hund", 2), ("bellt", 1), (None, 1), ("ja", 0), (None, 0)]


text = st.text(st.sampled_from("aä😀 \t\n\r\u2028\ufeff.") | st.characters(codec="utf-8"))


@given(text, st.lists(st.integers(1, 5), max_size=30))
def test_however_it_is_cut_the_words_are_those_of_the_lines(line: str, sizes: list[int]) -> None:
    raw = line.replace("\0", "").encode()
    ends = [0, *accumulate(sizes), len(raw)]
    pieces = [raw[a:b] for a, b in pairwise(ends) if raw[a:b]]
    if b"\n" not in raw and b"\r" in raw.rstrip(b"\r"):
        with pytest.raises(InputError, match="carriage returns only"):
            _words(pieces)
        return
    arrived, _ = _words(pieces)
    lines = raw.decode().lstrip("\ufeff").split("\n")
    expected: list[str | None] = []
    for each in lines if lines[-1] else lines[:-1]:
        expected += [*each.split(), None]
    if not raw.decode().strip("\ufeff"):
        assert arrived in ([], [None])
    else:
        assert arrived == expected


def test_what_is_no_text_is_replaced_and_reported_once() -> None:
    words, warnings = _words([b"gut\nso \xff\xfe \xc3\n", b"\0x\n", b"\xc3", b"\xbc"])
    assert words == ["gut", None, "so", "\ufffd\ufffd", "\ufffd", None, "\ufffdx", None, "ü", None]
    assert [text.partition(": ")[0] for text in warnings] == [
        "standard input, line 2", "standard input", "standard input, line 4",
    ]  # fmt: skip
    assert "some bytes are not valid UTF-8" in warnings[0] and "convert it" in warnings[0]
    assert warnings[1] == "standard input: 2 lines are not valid UTF-8 text."
    assert "last word may not be whole" in warnings[2]


def test_nul_bytes_are_called_so() -> None:
    words, warnings = _words([b"a \0b\n"])
    assert words == ["a", "\ufffdb", None]
    (warning,) = warnings
    assert "line 1: NUL bytes are not text" in warning and "not valid" not in warning


def test_utf_16_is_reported_once() -> None:
    words, warnings = _words(["la lo\n".encode("utf-16-le")] * 50)
    assert words.count(None) == 51  # a NUL follows the last line feed
    assert [text.partition(":")[0] for text in warnings] == [
        "standard input, line 1", "standard input", "standard input, line 51",
    ]  # fmt: skip
    assert warnings[1] == "standard input: 51 lines are not valid UTF-8 text."


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
    arrived, warnings = _words([raw])
    assert arrived == words
    assert len(warnings) == bool(what) and what in "".join(warnings)


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


def test_what_has_been_said_stays_and_raw_words_wait() -> None:
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
    words = IncrementalWords(Moses("fr"))
    written = [words.add(word) for word in ["l&apos;", "eau", ",", "dit", "@-@", "il", "?"]]
    assert written == [[], [], [], ["l'eau,"], [], [], ["dit-il"]]
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
        assert [
            written for word in words for written in raw.add(word)
        ] + raw.end() == grown.text.split()


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
    class Counted(Moses):
        seen = 0

        def detokenize(self, text: str) -> str:
            self.seen += text.count(" ") + 1
            return super().detokenize(text)

    moses = Counted("en")
    grown = IncrementalDetokenizer(moses)
    for index in range(1000):
        grown.add(("&quot;", "it", "&apos;s", ",", "(")[index % 5] if index < 5 else "word")
    assert moses.seen < 30 * 1000
    assert grown.add("&quot;") + grown.add("yes") == '" yes'
