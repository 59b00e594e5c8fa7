"""Several sentences in one line: as if each had a line of its own, for every architecture."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from nmtgrid.data.dataset import Split
from nmtgrid.models.directory import LengthPercentiles, LoadedModel, TrainingLengths
from nmtgrid.online.evaluate import OnlineDecoder, Sentence, delays_of_tokens, read_sentences
from nmtgrid.online.oracle import refuse_oracle
from nmtgrid.online.policies import WaitK
from nmtgrid.online.settings import Setting
from nmtgrid.online.stream import LineStream, StreamTranslator
from nmtgrid.search import engine
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.translate import Translator
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import Vocabulary
from tests.invariants.helpers import Case, basic_cases, online_cases

TYPES = ["a", "b", "c", "d", "e", "f", ".", ",", "!"]
# The training text of the models, as recorded in their directories.
LENGTHS = TrainingLengths(LengthPercentiles(1, 2, 3, 4, 4, 4, 6))
SENTENCES = ["a b .", "c d e f .", "f !", "b", "a c , e b d c f a ."]
PLAN = SearchPlan(max_length_a=3, max_length_b=1)

online = [case for case in online_cases() if len(case.settings) < 2]
of_text = [case for case in basic_cases() if not case.traits.source_features]


def _translator(case: Case, lengths: TrainingLengths | None = LENGTHS, **plan: Any) -> Translator:
    facts = TextFacts("qa", "qb", tokenize="none", subwords="words")
    pipeline = Pipeline(facts, Vocabulary(TYPES), Vocabulary(TYPES))
    size = len(pipeline.source_vocabulary)
    torch.manual_seed(1)
    model = case.build(size, size)
    loaded = LoadedModel(model, pipeline, {}, Path("model"), lengths=lengths)
    search = SearchPlan(max_length_a=3, max_length_b=1, **plan)
    return Translator([loaded], search, warn=WARNINGS.append)


WARNINGS: list[str] = []


@pytest.mark.parametrize("case", of_text, ids=str)
@pytest.mark.parametrize("beam", [1, 3])
def test_a_line_is_its_sentences(case: Case, beam: int) -> None:
    translator = _translator(case, beam=beam)
    WARNINGS.clear()
    alone = list(translator.translations(SENTENCES[:4]))
    assert not WARNINGS
    (line,) = translator.translations([" ".join(SENTENCES[:4])])
    assert [warning.split(":")[0] for warning in WARNINGS] == ["long-line"]
    best = line.hypotheses[0]
    parts = [translation.hypotheses[0] for translation in alone]
    assert best.tokens == [token for part in parts for token in part.tokens]
    total = sum(part.log_probability for part in parts)
    assert best.log_probability == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("case", of_text, ids=str)
def test_short_lines_and_single_sentences_stay_whole(case: Case) -> None:
    translator, unlimited = _translator(case), _translator(case, lengths=None)
    lines = ["a . b .", "c d e f .", "a b c d e f", "a b , c d ."]
    WARNINGS.clear()
    assert translator.translate(lines) == unlimited.translate(lines)
    assert not WARNINGS
    # Two sentences in six units are a segment each; a sentence of ten units is split at its comma.
    segments = translator.translate(["a b .", "c d .", "a c ,", "e b d c f a", "."])
    assert translator.translate(["a b . c d .", SENTENCES[4]]) == [
        " ".join(part for part in segments[:2] if part),
        " ".join(part for part in segments[2:] if part),
    ]


def _written(stream: LineStream, words: list[str]) -> list[tuple[str, int]]:
    """Return each target unit with the number of source units that had arrived before it."""
    written = [(unit, n) for n, word in enumerate(words, start=1) for unit in stream.read(word)]
    return [*written, *((unit, len(words)) for unit in stream.end())]


@pytest.mark.parametrize("case", online, ids=str)
@pytest.mark.parametrize("k", [1, 3, math.inf])
def test_streams_and_batches_agree(case: Case, k: float) -> None:
    translator = _translator(case)
    sentences = _sentences(translator)
    setting = Setting("wait-k", k)
    (decoded,) = OnlineDecoder(translator).run(sentences, [setting])
    agent = WaitK(k)
    streams = StreamTranslator(
        translator.models, translator.pipeline, agent, PLAN, limits=translator.limits
    )
    for sentence, outcome in zip(sentences, decoded.outcomes, strict=True):
        stream = streams.begin()
        written = _written(stream, sentence.words)
        assert [unit for unit, _ in written] == outcome.units == stream.target
        assert [count for _, count in written] == stream.token_delays()
        assert stream.token_delays() == delays_of_tokens(sentence, outcome)
        if sentence.source:
            reads = stream.hypothesis().reads
            assert reads == outcome.reads
            assert reads == sorted(reads) and reads[-1] <= len(sentence.source) + 1
    # The first segment is full at six units; then the line is long, and sentences end segments.
    assert _bounds(sentences[0]) == [(0, 6), (6, 8), (8, 10), (10, 16), (16, 21)]


def _sentences(translator: Translator) -> list[Sentence]:
    lines = [" ".join(SENTENCES), *SENTENCES, "a b c d e f a b c d e f", ""]
    split = SimpleNamespace(
        raw_source=lambda: lines, raw_target=lambda: lines, tokenized_target=lambda: lines
    )
    return read_sentences(
        translator.pipeline, cast(Split, split), limits=translator.limits, warn=WARNINGS.append
    )


@pytest.mark.parametrize("case", [c for c in online if not refuse_oracle(c.build())], ids=str)
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_oracle_translates_the_same_pieces(
    case: Case, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = _translator(case)
    decoder, sentences = OnlineDecoder(translator), _sentences(translator)
    settings = [Setting("wait-k", 2), Setting("oracle", weight)]
    lengths: list[list[int]] = []

    def search(models: Any, source: Tensor, sizes: Tensor, *more: Any, **options: Any) -> Any:
        lengths.append(sizes.tolist())
        return engine.search(models, source, sizes, *more, **options)

    spy = SimpleNamespace(search=search, hides_source_end=engine.hides_source_end)
    monkeypatch.setattr("nmtgrid.online.evaluate.engine", spy)
    for decoded in decoder.run(sentences, settings):
        seen = sorted(itertools.chain(*lengths))
        assert seen == sorted(
            len(segment.source) + 1
            for each in sentences
            for segment in each.segments()
            if segment.source
        )
        lengths.clear()
        for sentence, outcome in zip(sentences, decoded.outcomes, strict=True):
            assert outcome.reads == sorted(outcome.reads)
            assert max(outcome.reads, default=0) <= len(sentence.source) + 1


def _bounds(sentence: Sentence) -> list[tuple[int, int]]:
    return list(itertools.pairwise([0, *(end for end, _ in sentence.ends), len(sentence.words)]))
