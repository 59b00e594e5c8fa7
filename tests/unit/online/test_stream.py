"""Streams of words by hand; the invariant is in tests/invariants/test_streaming.py."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmtgrid.base.errors import ConfigError
from nmtgrid.online.policies import Bounded, Threshold, WaitK
from nmtgrid.online.stream import LineStream, StreamTranslator, TokenStream
from nmtgrid.search.api import SearchPlan
from nmtgrid.text.bpe import Codes
from nmtgrid.text.moses import is_invisible
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import END, Vocabulary
from tests.unit.helpers.tiny_online import translator, units_of_words

CODES = Codes(["H u", "n d</w>"])
TYPES = Vocabulary(["a"])


def _text(**facts: object) -> Pipeline:
    return Pipeline(TextFacts("de", "en", **facts), TYPES, TYPES, CODES)  # type: ignore[arg-type]


# What a stream knows of its words.


def test_each_word_alone() -> None:
    """By itself an abbreviation ends a line, so its full stop is split off."""
    result = units_of_words(_text(), "Hr. Hund geht's 5.000,50 usw.")
    assert result == [
        ["H@@", "r", "."], ["Hu@@", "nd"], ["g@@", "e@@", "h@@", "t", "&@@", "a@@", "p@@", "o@@",
        "s@@", ";", "s"], ["5@@", ".@@", "0@@", "0@@", "0@@", ",@@", "5@@", "0"],
        ["u@@", "s@@", "w", "."],
    ]  # fmt: skip


def _is_its_words(line: str, **facts: object) -> bool:
    pipeline = _text(**facts)
    words = units_of_words(pipeline, line)
    return [unit for word in words for unit in word] == pipeline.source.tokens(line)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
def test_a_line_is_its_words(line: str) -> None:
    # A word of zero-width characters alone has no units; within a tokenised line it stays.
    if not any(map(is_invisible, line.split())):
        assert _is_its_words(line, tokenize="none")


@given(st.text(st.characters(categories=["L", "Zs"]), max_size=30))
def test_a_tokenised_line_of_letters_is_its_words(line: str) -> None:
    """Without punctuation nothing depends on what stands around a word."""
    if not any(map(is_invisible, line.split())):
        assert _is_its_words(line) and _is_its_words(line, lowercase=True)


def test_words_and_joiners() -> None:
    assert units_of_words(_text(), " \u2028 ") == []
    assert units_of_words(_text(), "\x01 a") == [[], ["a"]]
    assert _text().target_joiner == "@@"
    plain = Pipeline(TextFacts("de", "en", subwords="words"), TYPES, TYPES)
    assert plain.target_joiner == ""
    line = "Dr. Hund"
    assert _text().source.moses.tokenize(line) == "Dr. Hund"
    assert [_text().source.moses.tokenize(word) for word in line.split()] == ["Dr .", "Hund"]


# When it reads although its agent would write.


def test_limits_of_length() -> None:
    """floor(1.5 + 0.5 |x|): 2 tokens for |x| = 1 or 2, 3 for 3, 4 for 5."""
    plan = SearchPlan(max_length_a=1.5, max_length_b=0.5)
    single = torch.ones(1, dtype=torch.int64)
    agent = Bounded(WaitK(1), plan)
    eager = Bounded(Threshold(0.5), plan)
    rho = torch.zeros(1, 20)
    for step, reads in enumerate([1, 1, 3, 5, 7, 9]):
        assert int(eager.next_reads(step, single - 1, single, single * 20, rho)) == reads
        assert int(agent.next_reads(step, single - 1, single, single * 20, None)) == max(
            reads, step + 1
        )
    assert int(eager.next_reads(4, single - 1, single, single * 6, rho)) == 6, (
        "the whole source is enough"
    )
    single = torch.ones(1, dtype=torch.int64)
    agent = Bounded(Threshold(0.5), SearchPlan(max_length_a=3, max_length_b=0))
    assert int(agent.next_reads(9, single - 1, single, single * 20, torch.zeros(1, 20))) == 1
    ends = Bounded(Threshold(0.5), SearchPlan(), end_is_hidden=True)
    assert int(ends.next_reads(4, single - 1, single, single * 20, torch.zeros(1, 20))) == 5


# What it writes.


def _stream(k: float, arch: str = "pervasive", **settings: Any) -> LineStream:
    loaded = translator(arch, **settings)
    return StreamTranslator(loaded.models, loaded.pipeline, WaitK(k), loaded.plan).begin()


def test_words_are_final_with_their_last_unit() -> None:
    stream = _stream(2)
    words: list[str] = []
    for word in ["ab", "cd", "abe", "e"]:
        words += stream.read(word)
        units = " ".join(stream.target).replace("@@ ", "").split()
        whole = units[:-1] if stream.target and stream.target[-1].endswith("@@") else units
        assert words == whole
    words += stream.end()
    assert stream.is_finished and stream.end() == []
    with pytest.raises(ConfigError, match=r"The line has ended\. Call `begin\(\)`"):
        stream.read("f")
    with pytest.raises(ConfigError, match=r"`f g` is more than one word\. Hand over its words"):
        _stream(2).read("f g")
    with pytest.raises(TypeError, match="word must be a string, but is None"):
        stream.read(None)  # type: ignore[arg-type]
    result = stream.hypothesis()
    assert stream.word_sizes[:4] == [1, 2, 3, 1]
    assert len(result.tokens) == len(stream.target) and result.reads is not None
    assert stream.token_delays() == [min(z, 7) for z in result.reads[:-1]]
    assert len(stream.word_delays()) == len(words)
    arrived = [0, 1, 2, 2, 3, 3, 3, 4, 4]  # whole words that have come with so many units
    assert set(stream.word_delays()) <= {arrived[z] for z in result.reads}


def test_offline_is_what_the_translator_writes() -> None:
    for arch in ("pervasive", "transformer"):
        loaded = translator(arch)
        for line in ("ab cd e", "a", "fgh ab ab c"):
            stream = StreamTranslator(
                loaded.models, loaded.pipeline, WaitK(math.inf), loaded.plan
            ).begin()
            for word in line.split():
                assert stream.read(word) == []
            assert " ".join(stream.end()) == loaded.translate([line])[0]


def test_a_source_without_words_or_a_shown_end() -> None:
    stream = _stream(1)
    assert stream.end() == [] and stream.token_delays() == stream.word_delays() == []
    stream = _stream(2, "transformer", source_marker="none")
    for word in ("ab", "cd", "e"):
        stream.read(word)
    stream.end()
    assert len(stream.target) == 4 and stream.hypothesis().reads == [2, 3, 4, 5, 5]


def test_the_end_of_the_source() -> None:
    loaded = translator("pervasive")
    agent = WaitK(1, finish_reading=True)
    stream = TokenStream(loaded.models, agent, loaded.plan)
    for token in (4, 5, 6, 7, 8, 9):
        stream.read([token])
        assert not stream.is_finished and len(stream.tokens) == len(stream.reads)
    stream.end()
    assert stream.reads[-1] == 7 or len(stream.tokens) == 4 + 9
    # A stream reads the end symbol as it reads a word; what follows it is never read.
    loaded = translator("transformer")
    stream = TokenStream(loaded.models, WaitK(3), loaded.plan)
    assert stream.read([4]) == stream.read([5]) == []
    stream.read([END])
    assert stream.is_finished and set(stream.reads) == {3}


@pytest.mark.parametrize(
    ("settings", "agent", "what"),
    [
        ({"source_causal": False}, WaitK(2), "both directions"),
        ({}, Threshold(0.5), "has no reader"),
    ],
)
def test_models_that_cannot(settings: dict[str, Any], agent: object, what: str) -> None:
    loaded = translator("pervasive", **settings)
    with pytest.raises(ConfigError, match=what):
        StreamTranslator(loaded.models, loaded.pipeline, agent, loaded.plan).begin()  # type: ignore[arg-type]
