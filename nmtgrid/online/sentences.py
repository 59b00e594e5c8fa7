"""The sentences of a split as online evaluation reads them: words, each with its units."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from nmtgrid.data.dataset import Split
from nmtgrid.online.settings import SourceText
from nmtgrid.text.pipeline import Pipeline


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A source as a stream would bring it, and its reference; an empty line has no words.

    `words` are the raw line's, or the tokenised line's, `sizes` how many of the `units` each of
    them makes. `reference` is tokenised, `raw_reference` as it stood; `source` and `target` are
    ids.
    """

    line: int
    words: list[str]
    sizes: list[int]
    units: list[str]
    source: list[int]
    target: list[int]
    reference: str
    raw_reference: str


def read_sentences(
    pipeline: Pipeline,
    split: Split,
    count: int | None = None,
    longest: int = 512,
    warn: Callable[[str], None] = lambda text: None,
    source_text: SourceText = "words",
) -> list[Sentence]:
    """Return the first `count` sentences of a split (None: all).

    A line that is tokenised whole has the dataset's units, of which a few need words to come: a
    full stop after an abbreviation is the word's or not by what follows.

    Sources are cut after `longest` units, at the end of a word where there is one, and `warn` is
    told so: a stream that is evaluated cannot be taken in pieces.
    """
    columns = zip(
        split.raw_source(), split.raw_target(), split.tokenized_target(), strict=True
    )  # fmt: skip
    found: list[Sentence] = []
    cut: list[int] = []
    for line, (source, raw, tokenized) in enumerate(columns, start=1):
        if count is not None and line > count:
            break
        held = _units(pipeline, source, source_text)
        kept = _within(held, longest)
        if sum(len(units) for _, units in kept) < sum(len(units) for _, units in held):
            cut.append(line)
        units = [unit for _, of_word in kept for unit in of_word]
        found.append(
            Sentence(
                line,
                [word for word, _ in kept],
                [len(of_word) for _, of_word in kept],
                units,
                pipeline.source_vocabulary.encode(units),
                pipeline.target.encode_words(tokenized.split()),
                tokenized,
                raw,
            )
        )
    if cut:
        shown = ", ".join(map(str, cut[:10])) + (", ..." if len(cut) > 10 else "")
        warn(f"long-line: longer than {longest:,} source units and cut: line {shown}.")
    return found


def _units(pipeline: Pipeline, line: str, source_text: SourceText) -> list[tuple[str, list[str]]]:
    """Return a source's words with the units of each."""
    if source_text == "words":
        return list(zip(line.split(), pipeline.source_words(line), strict=True))
    words = pipeline.source.moses.tokenize(line).split()
    return [(word, pipeline.source.units([word])) for word in words]


def _within(held: list[tuple[str, list[str]]], longest: int) -> list[tuple[str, list[str]]]:
    kept: list[tuple[str, list[str]]] = []
    room = longest
    for word, units in held:
        if len(units) > room:
            # One endless word is cut itself: something must be left to translate.
            return kept or [(word, units[:room])]
        kept.append((word, units))
        room -= len(units)
    return kept
