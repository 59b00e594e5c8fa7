"""Raw text: IWSLT's XML, and Moses' words as the Perl tokenizer escapes them."""

import multiprocessing
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacremoses import MosesTokenizer

from nmtgrid.base.errors import InputError
from nmtgrid.text import moses
from nmtgrid.text.iwslt import read_xml
from nmtgrid.text.moses import Moses

SEGMENTS = """<?xml version="1.0" encoding="UTF-8"?>
<mteval>
<doc docid="1" genre="lectures">
<url>http://example.org</url>
<title>No text</title>
<seg id="1"> One dog’s day. </seg>
<seg id="2">R&amp;D <b>bold</b></seg>
<seg id="3"></seg>
</doc>
</mteval>"""

TAGS = """<url>http://example.org</url>
<keywords>dogs</keywords>
<speaker>A. Dog</speaker>
<talkid>1</talkid>
<title>A day</title>
<description>What happens.</description>
 First dog’s line.
<reviewer href="x">B</reviewer>
<translator href="y">C</translator>

Last <i>line</i>."""


def test_segments_without_tags_and_outer_spaces() -> None:
    """Also without the head of their file: what is left may begin as `train.tags` files do."""
    for first in (0, 2, 3, 4, 5):
        lines = SEGMENTS.split("\n") if first == 0 else ["", *SEGMENTS.split("\n")[first:]]
        assert list(read_xml(lines)) == ["One dog's day.", "R&amp;D <b>bold</b>", ""]


def test_tags_keep_title_description_and_text() -> None:
    assert list(read_xml(TAGS.split("\n"))) == [
        "A day", "What happens.", " First dog’s line.", "", "Last <i>line</i>.",
    ]  # fmt: skip
    lines = ['<doc docid="1" genre="lectures">', *TAGS.split("\n")[:7], "</doc>"]
    assert list(read_xml(lines)) == ["A day", "What happens.", " First dog’s line."]


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        (["<mteval>", '<seg id="1"> One', "dog </seg>"], 2, "does not end"),
        (["<mteval>", '<seg id="1"> a </seg><seg id="2"> b </seg>'], 2, "two `<seg>` on this line"),
        (["<mteval>", "</mteval>"], None, "no line of text"),
        (["A dog.", "", "2 < 3 <b>dogs</b>."], None, "plain text.*[Ll]eave out `--xml`"),
        ([], None, "no line of text"),
    ],
)
def test_faulty_files_are_refused(lines: list[str], line: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        list(read_xml(lines, "dev.xml"))
    assert line is None or (caught.value.path, caught.value.line) == ("dev.xml", line)


@pytest.mark.parametrize(
    ("language", "raw", "words"),
    [
        ("en", "It's a dog.", "It &apos;s a dog ."),
        ("en", 'He "said" & left [now].', "He &quot; said &quot; &amp; left &#91; now &#93; ."),
        ("de", "Wie geht's?", "Wie geht &apos; s ?"),
        ("fr", "L'eau, c'est 5,3 l", "L&apos; eau , c&apos; est 5,3 l"),
        ("en", "Mr. Dog, e.g. Rex... barks", "Mr. Dog , e.g. Rex ... barks"),
        ("qa", "a-b  c", "a-b c"),
        ("en", "", ""),
        ("en", "   ", ""),
        # The last full stop is always split off.
        ("en", "in the U.S.", "in the U.S ."),
        ("en", "The U.S. is big", "The U.S. is big"),
        ("de", "und so weiter usw.", "und so weiter usw ."),
        ("de", "am 5. Mai", "am 5. Mai"),
        ("en", "No. 5", "No. 5"),
        ("en", "No. Five", "No . Five"),
        ("en", "so. it goes", "so. it goes"),
    ],
)
def test_tokenise(language: str, raw: str, words: str) -> None:
    assert Moses(language).tokenize(raw) == words


def test_separators_become_spaces_and_case_falls() -> None:
    raw = "Ä\u2028B\u00a0c\x85d\te"
    assert Moses("de", lowercase=True).tokenize(raw) == "ä b c d e"
    assert Moses("de", tokenize=False, lowercase=True).tokenize(raw) == "ä b c d e"
    assert Moses("de", tokenize=False).tokenize(" It's  on ") == "It's on"
    assert Moses("en").detokenize("It &apos;s R &amp; D , yes .") == "It's R & D, yes."
    assert Moses("en", tokenize=False).detokenize("a  ,") == "a ,"
    moses = Moses("en", lowercase=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(moses.tokenize, ("A dog.",)) == "a dog ."


class _RuleByRule(moses._PerlTokenizer):
    """sacremoses itself, with the full stops of the Perl tokenizer; no word is remembered."""

    def tokenize_line(self, line: str) -> str:
        return " ".join(MosesTokenizer.tokenize(self, line, return_str=True).split())


_PIECES = [
    "'", ",", ".", "..", "...", "-", "&", "(", ")", "[", "]", "<", ">", "|", "/", "%", "`", '"',
    " ", " ", " ", "  ", "\t", "\x01", "\u2028", "a", "B", "\xe9", "5", "12", "s", "\xb2", "\u4e2d",
    "\u0301", "\u0663", "Mr", "No", "usw", "z.B", "u.s.w.", "MULTI", "DOT",
]  # fmt: skip


@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_remembered_words_are_cut_as_whole_lines_are(language: str) -> None:
    """What is kept of a word holds beside any other word, and at the edges of a line."""
    draw = random.Random(5)
    rule_by_rule, remembering = _RuleByRule(language), moses._PerlTokenizer(language)
    for _ in range(2500):
        line = "".join(draw.choices(_PIECES, k=draw.randint(1, 14)))
        assert remembering.tokenize_line(line) == rule_by_rule.tokenize_line(line), repr(line)


def test_the_memory_of_words_is_emptied_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moses, "_LARGEST_CACHE", 3)
    tokenizer = moses._PerlTokenizer("en")
    for number in range(10):
        assert tokenizer.tokenize_line(f"x{number}, y") == f"x{number} , y"
        assert len(tokenizer._cache) <= 3
    long = "x" * 100
    assert tokenizer.tokenize_line(f"{long} a.") == f"{long} a ."
    assert long not in tokenizer._cache


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
def test_words_never_hold_what_others_split_at(raw: str) -> None:
    words = Moses("en").tokenize(raw)
    assert words.split() == words.split(" ") or words == ""
    assert words.splitlines() in ([words], [])


@pytest.mark.parametrize(
    ("words", "raw"),
    [
        # As the Perl detokenizer joins them; sacremoses raises TypeError there.
        ("je x&apos; - li to", "je x'-li to"),
        ("je x' – li", "je x'–li"),
        ("x' - mailem", "x'-mailem"),
        ("x' - limit", "x' - limit"),
        # Only a number and a mark before it join one, as in Perl, whatever the line ends in.
        ("V roce 1918 žilo 500 lidí , dnes 2015 .", "V roce 1918 žilo 500 lidí, dnes 2015."),
        ("Kapitola 3 , verš 16 .", "Kapitola 3, verš 16."),
        ("asi 3 , 5 z 10 .", "asi 3,5 z 10."),
        ("„ rok 1918 “", "„rok 1918“"),
        ("&quot; a &quot;", '"a"'),
        ("x", "x"),
        ("", ""),
    ],
)
def test_czech(words: str, raw: str) -> None:
    assert Moses("cs").detokenize(words) == raw
