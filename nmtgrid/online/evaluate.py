"""Online evaluation: the sentences of a split are decoded with each policy setting and scored.

`read_sentences` yields sources as a stream would deliver them, `OnlineDecoder` decodes them in
batches with each policy setting or along the oracle's paths, `ClockedDecoder` one by one with
computation times, and `measure` computes BLEU, and latency in tokens and words, in the conventions
of the thesis (section 4.5) and of SimulEval.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch

from nmtgrid.base.devices import autocast
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.workers import chunks
from nmtgrid.data.batches import Batch, collate, cut_by_length, pad
from nmtgrid.data.dataset import Split
from nmtgrid.metrics.erasure import normalised_erasure
from nmtgrid.metrics.latency import (
    Convention,
    Latency,
    Metric,
    SentenceLatency,
    Unit,
    latency,
    reference_words,
    seconds_per_token,
    sentence_latency,
    token_delays,
    word_delays,
    word_ends,
)
from nmtgrid.metrics.quality import Score, bleu
from nmtgrid.models.api import TranslationModel
from nmtgrid.online.oracle import ReadingCost, oracle_paths, refuse_oracle, writing_costs
from nmtgrid.online.policies import AlongPaths, Bounded
from nmtgrid.online.retranslation import PrefixDecoder, PrefixPolicy, PrefixTranslation
from nmtgrid.online.settings import WORDS_PER_MINUTE, Setting, SourceText
from nmtgrid.online.simuleval import COMPUTATION_AWARE, Instance
from nmtgrid.online.stream import StreamTranslator
from nmtgrid.search import engine
from nmtgrid.search.api import Agent, BlockCount, Hypothesis
from nmtgrid.search.long_sources import OnlineSplitter, SourceLimits, join, long_line_warning
from nmtgrid.search.translate import Translator
from nmtgrid.text.moses import is_invisible, unescape
from nmtgrid.text.pipeline import Pipeline
from nmtgrid.text.scripts import bleu_tokenizer

_LIMITS = SourceLimits()


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A source as a stream would deliver it, and its reference; an empty line has no words.

    `words` are those of the raw or the tokenised line, `sizes` the number of `units` of each word.
    `reference` is tokenised, `raw_reference` unchanged; `source` and `target` are ids.
    """

    line: int
    words: list[str]
    sizes: list[int]
    units: list[str]
    source: list[int]
    target: list[int]
    reference: str
    raw_reference: str
    ends: Sequence[tuple[int, int]] = ()
    """For a line that is too long for one segment: the end of each segment but the last in words,
    and the number of words that had arrived when this end was known."""
    segment: int = 0
    seen: int = 0
    """Units of the line, including its end symbol, that had arrived when the end was known."""

    def segments(self) -> list[Sentence]:
        """Return the parts to translate separately: the sentence, or a long line's segments."""
        if not self.ends:
            return [self]
        parts = []
        # counts[n]: number of units of the first n words.
        counts = [0, *itertools.accumulate(self.sizes)]
        start = 0
        for number, (end, known) in enumerate([*self.ends, (len(self.words), len(self.words))]):
            units = slice(counts[start], counts[end])
            is_last = number == len(self.ends)
            parts.append(
                dataclasses.replace(
                    self, words=self.words[start:end], sizes=self.sizes[start:end],
                    units=self.units[units], source=self.source[units], ends=(), segment=number,
                    seen=counts[known] + is_last,
                )
            )  # fmt: skip
            start = end
        return parts


def read_sentences(
    pipeline: Pipeline,
    split: Split,
    count: int | None = None,
    limits: SourceLimits = _LIMITS,
    warn: Callable[[str], None] = lambda text: None,
    source_text: SourceText = "words",
) -> list[Sentence]:
    """Return the first `count` sentences of a split (None: all).

    A line that is tokenised as a whole has the units of the dataset, a few of which depend on later
    words, such as a full stop after an abbreviation.

    Lines that are too long for the model will be translated in segments, as in a stream, and are
    listed in a warning.
    """
    columns = zip(split.raw_source(), split.raw_target(), split.tokenized_target(), strict=True)
    sentences: list[Sentence] = []
    long_lines: dict[int, int] = {}
    first = itertools.islice(columns, count)
    for line, (source, raw, tokenized) in enumerate(first, start=1):
        if source_text == "words":
            # As in a stream: each raw word is tokenised and segmented before the next is known.
            words = [
                part
                for word in source.split()
                if not is_invisible(word)
                for part in limits.parts(word, pipeline.source)
            ]
        else:
            # Tokenised as a whole, like the training data; its tokens then count as words.
            tokens = pipeline.source.moses.tokenize(source).split()
            words = [(token, pipeline.source.units([token])) for token in tokens]
        units = [unit for _, of_word in words for unit in of_word]
        ends = _ends_of_segments(words, OnlineSplitter(limits, pipeline.source.moses))
        if ends:
            long_lines[line] = len(units)
        sentences.append(
            Sentence(
                line,
                [word for word, _ in words],
                [len(of_word) for _, of_word in words],
                units,
                pipeline.source_vocabulary.encode(units),
                pipeline.target.encode_words(tokenized.split()),
                tokenized,
                raw,
                ends,
            )
        )
    if long_lines:
        warn(long_line_warning(long_lines, limits, "split"))
    return sentences


def _ends_of_segments(
    words: list[tuple[str, list[str]]], splitter: OnlineSplitter
) -> list[tuple[int, int]]:
    """Return `ends` of a sentence with these words and their units; see `Sentence`."""
    ends = []
    units_left = sum(len(units) for _, units in words)
    for index, (word, units) in enumerate(words):
        units_left -= len(units)
        if splitter.begins_segment(len(units)):
            ends.append((index, index + 1))
        # Words without units do not begin another segment.
        if splitter.add(word, len(units)) and units_left:
            ends.append((index + 1, index + 1))
    return ends


def cut_path(path: Sequence[int], segments: Sequence[Sentence]) -> list[list[int]]:
    """Return the part of a line's path in each of its segments.

    A token belongs to the segment that contains the last unit read before it. Each segment except
    the last ends with a further entry, which reads its own end symbol.
    """
    parts: list[list[int]] = []
    before = 0
    for segment in segments:
        size = len(segment.source)
        is_last = segment is segments[-1]
        part = [
            reads - before
            for reads in path
            if before < reads and (is_last or reads <= before + size)
        ]
        parts.append(part if is_last and part else [*part, size + 1])
        before += size
    return parts


_MOST_CELLS = 1 << 17
"""Maximum number of grid cells in a batch of the oracle, which classifies all of them."""
_SEGMENTS = 128
"""Sentences whose prefixes are translated together, between updates of the progress bar."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The translation of a sentence, and its units, tokenised words and raw text."""

    hypothesis: Hypothesis
    units: list[str]
    words: str
    text: str
    erased: int = 0
    """Tokens that a policy erased before the last translation; 0 for policies that never do."""
    seconds: Sequence[float] = ()
    """Computation time from the sentence's start to each of `reads`, in seconds, if measured."""

    @property
    def reads(self) -> list[int]:
        """The reads of each unit and of the end symbol; none for an empty source.

        They count the source's end symbol.
        """
        return self.hypothesis.reads or []


EMPTY = Outcome(Hypothesis([], [], 0.0, 0.0, reads=[]), [], "", "")
"""The outcome of an empty source: nothing is written, not even an end symbol."""


def outcome_of(
    hypothesis: Hypothesis, pipeline: Pipeline, *, erased: int = 0, seconds: Sequence[float] = ()
) -> Outcome:
    """Return the outcome of a non-empty sentence from its finished translation."""
    return Outcome(
        hypothesis,
        pipeline.target_vocabulary.decode(hypothesis.tokens),
        pipeline.restore_tokenized(hypothesis.tokens),
        pipeline.restore(hypothesis.tokens),
        erased,
        seconds,
    )


@dataclasses.dataclass(frozen=True)
class Decoded:
    """The outcomes of all sentences with one setting; `seconds` exclude the oracle's costs."""

    setting: Setting
    outcomes: list[Outcome]
    seconds: float
    is_timed: bool = False
    """Whether the outcomes have seconds: each sentence was decoded alone, as a stream."""

    @property
    def target_tokens(self) -> int:
        """Number of units written, including end symbols."""
        return sum(len(outcome.reads) for outcome in self.outcomes)

    @property
    def average_exit(self) -> float | None:
        """Average number of blocks per token; None without early exit."""
        return BlockCount.of(outcome.hypothesis for outcome in self.outcomes).average

    @property
    def erasure(self) -> float | None:
        """Normalised erasure: erased tokens per final token; None if the policy never revises."""
        if self.setting.policy != "re-translation":
            return None
        lengths = [len(outcome.units) for outcome in self.outcomes]
        return normalised_erasure([outcome.erased for outcome in self.outcomes], lengths)


class OnlineDecoder:
    """Decodes with one model, or several averaged, and any policy setting.

    The translator's halt decides where tokens exit the decoder.
    """

    is_timed = False

    def __init__(
        self,
        translator: Translator,
        *,
        finish_reading: bool = False,
        oracle_cost: ReadingCost = "delay",
    ) -> None:
        """With `finish_reading` no translation ends before all has been read (appendix C)."""
        self.translator = translator
        self.finish_reading = finish_reading
        self.oracle_cost: ReadingCost = oracle_cost

    def faults(self, settings: Sequence[Setting]) -> list[str]:
        """Return why the models cannot decode with some of these settings."""
        # Collected over all models of an ensemble, so that the user sees all faults at once.
        faults: list[str] = []
        for model in self.translator.models:
            for setting in settings:
                try:
                    self._check(model, setting)
                except ConfigError as error:
                    faults.append(str(error))
        # One message per fault, however many settings of a policy have it.
        return list(dict.fromkeys(faults))

    def _check(self, model: TranslationModel, setting: Setting) -> None:
        if setting.policy == "oracle":
            if refusal := refuse_oracle(model):
                raise ConfigError(refusal)
            return
        if setting.is_offline:
            return
        policy = setting.make(self.finish_reading)
        if isinstance(policy, PrefixPolicy):
            self._prefix_decoder(policy, [model])
            return
        engine.check([model], self.translator.plan, agent=policy, halt=self.translator.halt)

    def _prefix_decoder(
        self, policy: PrefixPolicy, models: Sequence[TranslationModel]
    ) -> PrefixDecoder:
        translator = self.translator
        return PrefixDecoder(
            models, translator.plan, policy, device=translator.device, bf16=translator.bf16,
            halt=translator.halt, batch_tokens=translator.options.batch_tokens,
        )  # fmt: skip

    def run(
        self,
        sentences: Sequence[Sentence],
        settings: Sequence[Setting],
        on_progress: Callable[[Setting, int, int], None] = lambda setting, lines, tokens: None,
    ) -> Iterator[Decoded]:
        """Yield the translations with each setting, in the order of the settings.

        `on_progress` receives the sentences and target tokens of each batch. The oracle's costs are
        computed once for all its settings.
        """
        weights = [setting.value for setting in settings if setting.policy == "oracle"]
        paths_of: dict[float, dict[int, list[int]]] = {}
        for setting in settings:
            paths: dict[int, list[int]] = {}
            if setting.policy == "oracle":
                # All lambdas at once: the costs of the grid do not depend on them. Not timed.
                paths_of = paths_of or self.oracle(sentences, weights)
                paths = paths_of[setting.value]
            started = time.perf_counter()
            outcomes = self._decode(sentences, setting, paths, on_progress)
            yield Decoded(setting, outcomes, time.perf_counter() - started, self.is_timed)

    @torch.no_grad()
    def oracle(
        self, sentences: Sequence[Sentence], weights: Sequence[float]
    ) -> dict[float, dict[int, list[int]]]:
        """Return for each lambda the oracle's path of each sentence that has a source, by line.

        A path has one entry for each target token and one for the end symbol.
        """
        paths_of: dict[float, dict[int, list[int]]] = {weight: {} for weight in weights}
        for group in self._batches(sentences, _MOST_CELLS):
            batch = self._batch(group)
            with autocast(self.translator.device, self.translator.bf16):
                costs = torch.stack([writing_costs(m, batch) for m in self.translator.models])
            # An ensemble's cost is that of the mean probability, as in its search.
            costs = -((-costs).logsumexp(0) - math.log(len(costs)))
            lengths = batch.source_lengths, batch.target_lengths
            for weight in weights:
                paths = oracle_paths(costs, *lengths, weight, self.oracle_cost).tolist()
                for sentence, path in zip(group, paths, strict=True):
                    paths_of[weight][sentence.line] = path[: len(sentence.target) + 1]
        return paths_of

    def _decode(
        self,
        sentences: Sequence[Sentence],
        setting: Setting,
        paths: dict[int, list[int]],
        on_progress: Callable[[Setting, int, int], None],
    ) -> list[Outcome]:
        segments_of = [sentence.segments() for sentence in sentences]
        segments = [segment for parts in segments_of for segment in parts]
        policy = None
        if setting.policy != "oracle" and not setting.is_offline:
            policy = setting.make(self.finish_reading)
        if isinstance(policy, PrefixPolicy):
            translations = self._retranslate(segments, policy, setting, on_progress)
        else:
            paths_of = {
                (segment.line, segment.segment): path
                for parts in segments_of
                if paths and any(segment.source for segment in parts)
                for segment, path in zip(parts, cut_path(paths[parts[0].line], parts), strict=True)
            }
            translations = self._search(segments, policy, paths_of, setting, on_progress)
        # Empty sources are not decoded, but count as done.
        on_progress(setting, sum(not sentence.source for sentence in sentences), 0)
        return [self._outcome(parts, translations) for parts in segments_of]

    def _search(
        self,
        segments: Sequence[Sentence],
        policy: Agent | None,
        paths_of: Mapping[tuple[int, int], list[int]],
        setting: Setting,
        on_progress: Callable[[Setting, int, int], None],
    ) -> dict[tuple[int, int], PrefixTranslation]:
        translations: dict[tuple[int, int], PrefixTranslation] = {}
        translator = self.translator
        agent: Agent | None = None
        if policy is not None:
            # A stream does not know its source length, on which the length limit depends.
            hides_end = engine.hides_source_end(translator.models)
            agent = Bounded(policy, translator.plan, hides_end)
        for group in self._batches(segments):
            if paths_of:
                along = [paths_of.get((segment.line, segment.segment), []) for segment in group]
                lengths = torch.tensor([len(path) for path in along], device=translator.device)
                paths = pad(along).to(translator.device)
                agent = AlongPaths(paths, lengths, self.finish_reading)
            batch = self._batch(group)
            with autocast(translator.device, translator.bf16):
                nbest_lists = engine.search(
                    translator.models, batch.source, batch.source_lengths, translator.plan,
                    agent=agent, halt=translator.halt,
                )  # fmt: skip
            for segment, (best, *_) in zip(group, nbest_lists, strict=True):
                # Without an agent the whole source is read before the first write.
                whole = [len(segment.source) + 1] * (len(best.tokens) + 1)
                reads = whole if best.reads is None else best.reads
                hypothesis = dataclasses.replace(best, reads=reads)
                translations[segment.line, segment.segment] = PrefixTranslation(hypothesis)
            tokens = sum(len(best.tokens) + 1 for best, *_ in nbest_lists)
            on_progress(setting, sum(not segment.segment for segment in group), tokens)
        return translations

    def _retranslate(
        self,
        segments: Sequence[Sentence],
        policy: PrefixPolicy,
        setting: Setting,
        on_progress: Callable[[Setting, int, int], None],
    ) -> dict[tuple[int, int], PrefixTranslation]:
        """Return the translation of each segment by a policy that translates prefixes."""
        decoder = self._prefix_decoder(policy, self.translator.models)
        translations: dict[tuple[int, int], PrefixTranslation] = {}
        for group in chunks((segment for segment in segments if segment.source), _SEGMENTS):
            decoded = decoder.decode([segment.source for segment in group])
            for segment, translation in zip(group, decoded, strict=True):
                translations[segment.line, segment.segment] = translation
            tokens = sum(len(each.hypothesis.tokens) + 1 for each in decoded)
            on_progress(setting, sum(not segment.segment for segment in group), tokens)
        return translations

    def _outcome(
        self,
        segments: Sequence[Sentence],
        translations: Mapping[tuple[int, int], PrefixTranslation],
    ) -> Outcome:
        """Return the outcome of a sentence, joined from the translations of its segments."""
        sizes = [len(segment.source) for segment in segments]
        if not any(sizes):
            return EMPTY
        parts = [translations[segment.line, segment.segment] for segment in segments]
        hypotheses = [part.hypothesis for part in parts]
        best = join(hypotheses, self.translator.plan, sizes, [segment.seen for segment in segments])
        return outcome_of(best, self.translator.pipeline, erased=sum(part.erased for part in parts))

    def _batch(self, group: Sequence[Sentence]) -> Batch:
        pairs = [sentence.source for sentence in group], [sentence.target for sentence in group]
        return collate(*pairs).to(self.translator.device)

    def _batches(self, sentences: Sequence[Sentence], cells: int = 0) -> Iterator[list[Sentence]]:
        """Yield the sentences that have a source, in batches of similar lengths."""
        source = numpy.array([len(sentence.source) for sentence in sentences])
        target = numpy.array([len(sentence.target) for sentence in sentences])
        # A search has `beam` rows for each sentence; the oracle one grid for each pair.
        width = self.translator.plan.beam if not cells else 1
        limit = max(1, self.translator.options.batch_tokens // width)
        columns = (source, target) if cells else (source, source)
        for indices in cut_by_length(*columns, numpy.flatnonzero(source), limit, cells):
            yield [sentences[index] for index in indices.tolist()]


class ClockedDecoder(OnlineDecoder):
    """Decodes sentence by sentence, as a stream, and measures the time, including text processing.

    Translations and reads equal those of `OnlineDecoder`. The sentences must consist of raw words
    (see `read_sentences`).
    """

    is_timed = True

    def run(
        self,
        sentences: Sequence[Sentence],
        settings: Sequence[Setting],
        on_progress: Callable[[Setting, int, int], None] = lambda setting, lines, tokens: None,
    ) -> Iterator[Decoded]:
        """Yield the translations as `OnlineDecoder` does.

        The first sentence is translated once beforehand, as a warm-up.
        """
        first = next((sentence for sentence in sentences if sentence.source), None)
        if first is not None and settings:
            self._stream(self._streams(settings[0], self.translator.models), first)
        yield from super().run(sentences, settings, on_progress)

    def _check(self, model: TranslationModel, setting: Setting) -> None:
        if setting.policy == "oracle":
            raise ConfigError("The oracle needs the reference, which is unknown in a stream.")
        if self.translator.plan.beam > 1 and not setting.translates_prefixes:
            raise ConfigError(
                f"A stream of `{setting.policy}` is decoded greedily: it has no beam "
                f"(`search.beam` is {self.translator.plan.beam})."
            )
        self._streams(setting, [model]).begin()

    def _decode(
        self,
        sentences: Sequence[Sentence],
        setting: Setting,
        paths: dict[int, list[int]],
        on_progress: Callable[[Setting, int, int], None],
    ) -> list[Outcome]:
        streams = self._streams(setting, self.translator.models)
        outcomes = []
        for sentence in sentences:
            outcomes.append(self._stream(streams, sentence))
            on_progress(setting, 1, len(outcomes[-1].reads))
        return outcomes

    def _streams(self, setting: Setting, models: Sequence[TranslationModel]) -> StreamTranslator:
        streams = StreamTranslator.of(self.translator, setting.make(self.finish_reading))
        # Prefixes are translated by the whole plan, as in batches.
        return dataclasses.replace(streams, models=models, plan=self.translator.plan)

    def _stream(self, streams: StreamTranslator, sentence: Sentence) -> Outcome:
        if not sentence.source:
            return EMPTY
        stream = streams.begin()
        for word in sentence.words:
            stream.read(word)
        stream.end()
        return outcome_of(stream.hypothesis(), self.translator.pipeline, seconds=stream.seconds)


COUNTINGS: tuple[tuple[Unit, Convention], ...] = (
    ("token", "thesis"), ("word", "thesis"), ("word", "simuleval"),
)  # fmt: skip
"""Units and conventions in which latency is reported; SimulEval's convention only has words."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """The scores of a decoding: BLEU of tokenised and of raw text, latency in each counting."""

    decoded: Decoded
    tokenized: Score
    raw: Score
    latencies: dict[tuple[Unit, Convention], Latency]
    computation_aware: Latency | None = None
    """SimulEval's computation-aware latency in words; None if it was not measured."""

    @functools.cached_property
    def times(self) -> dict[str, Any]:
        """Seconds per token and computation-aware latency as JSON keys; none if not measured."""
        if self.computation_aware is None:
            return {}
        seconds = seconds_per_token(outcome.seconds for outcome in self.decoded.outcomes)
        values = self.computation_aware.values()
        names = [name for name in values if name in (*COMPUTATION_AWARE, "own")]
        return {**seconds, "computation_aware": {name: values[name] for name in names}}

    def values(self, unit: Unit, convention: Convention) -> dict[str, Any]:
        """Return JSON keys: the latency in one counting, and in all under `latencies`."""
        seconds, tokens = self.decoded.seconds, self.decoded.target_tokens
        average = self.decoded.average_exit
        return {
            **self.decoded.setting.values(),
            "bleu_tokenized": self.tokenized.value,
            "bleu": self.raw.value,
            **self.latencies[unit, convention].values(),
            **({} if average is None else {"average_exit": average}),
            **({} if (erasure := self.decoded.erasure) is None else {"erasure": erasure}),
            "target_tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / max(seconds, 1e-9),
            **self.times,
            "signature_bleu_tokenized": self.tokenized.signature,
            "signature_bleu": self.raw.signature,
            "latencies": [latency.values() for latency in self.latencies.values()],
        }


def measure(
    sentences: Sequence[Sentence],
    decoded: Decoded,
    joiner: str,
    *,
    lowercase: bool,
    lower: Callable[[str], str] = str.lower,
    language: str = "",
    own: Mapping[str, Metric] | None = None,
    words_per_minute: float = WORDS_PER_MINUTE,
) -> Measured:
    """Return the scores of a decoding; `joiner` marks target units within words.

    Raw text is compared in lower case if `lowercase`, because a lower-cased model has no capitals;
    `lower` lower-cases the target `language`. `own` are user-defined latency metrics,
    `words_per_minute` as in `elapsed_of_words`.
    """
    outcomes = decoded.outcomes
    references = [sentence.raw_reference for sentence in sentences]
    # The thesis reports BLEU of tokenised text, others detokenised BLEU: both are cheap.
    tokenized = bleu(
        [outcome.words for outcome in outcomes],
        [sentence.reference for sentence in sentences],
        bleu_tokenizer(language, references, "none"),
    )
    raw = bleu(
        [outcome.text for outcome in outcomes],
        [lower(reference) if lowercase else reference for reference in references],
        bleu_tokenizer(language, references, "13a"),
        lowercase,
    )
    by_sentence = sentence_latencies(sentences, outcomes, joiner, own)
    latencies = {counting: values.mean() for counting, values in by_sentence.items()}
    aware = None
    if decoded.is_timed:
        aware = latency(
            [
                elapsed_of_words(sentence, outcome, joiner, words_per_minute)
                for sentence, outcome in zip(sentences, outcomes, strict=True)
            ],
            [len(sentence.words) for sentence in sentences],
            [reference_words(sentence.reference) for sentence in sentences],
            unit="word", convention="simuleval", own=own,
        )  # fmt: skip
    return Measured(decoded, tokenized, raw, latencies, aware)


def sentence_latencies(
    sentences: Sequence[Sentence],
    outcomes: Sequence[Outcome],
    joiner: str,
    own: Mapping[str, Metric] | None = None,
) -> dict[tuple[Unit, Convention], SentenceLatency]:
    """Return the latency of each sentence in each of `COUNTINGS`; for `own` see `measure`."""
    pairs = list(zip(sentences, outcomes, strict=True))
    words = [delays_of_words(sentence, outcome, joiner) for sentence, outcome in pairs]
    latencies: dict[tuple[Unit, Convention], SentenceLatency] = {
        ("token", "thesis"): sentence_latency(
            [delays_of_tokens(sentence, outcome) for sentence, outcome in pairs],
            [len(sentence.source) for sentence in sentences],
            [len(sentence.target) for sentence in sentences],
            own=own,
        )
    }
    lengths = [len(sentence.words) for sentence in sentences]
    counts = [reference_words(sentence.reference) for sentence in sentences]
    for unit, convention in COUNTINGS[1:]:
        latencies[unit, convention] = sentence_latency(
            words, lengths, counts, unit=unit, convention=convention, own=own
        )
    return latencies


def delays_of_tokens(sentence: Sentence, outcome: Outcome) -> list[int]:
    """Return the delay of each target unit in source units; end symbols count on neither side."""
    return token_delays(outcome.reads, len(sentence.source), len(outcome.units))


def delays_of_words(sentence: Sentence, outcome: Outcome, joiner: str) -> list[int]:
    """Return the delay of each target word in source words."""
    return word_delays(outcome.reads, sentence.sizes, outcome.units, joiner)


def elapsed_of_words(
    sentence: Sentence, outcome: Outcome, joiner: str, words_per_minute: float
) -> list[float]:
    """Return the delay of each target word plus its computation time, in source words.

    SimulEval's `elapsed`: the delay, plus all computation since the beginning of the sentence,
    converted from seconds to words at `words_per_minute`.
    """
    delays = delays_of_words(sentence, outcome, joiner)
    ends = word_ends(len(outcome.reads), outcome.units, joiner)
    rate = words_per_minute / 60
    return [delay + outcome.seconds[end] * rate for delay, end in zip(delays, ends, strict=True)]


def instances(
    sentences: Sequence[Sentence],
    outcomes: Sequence[Outcome],
    joiner: str,
    words_per_minute: float = WORDS_PER_MINUTE,
) -> list[Instance]:
    """Return a log's sentences: raw source words, tokenised target words and references.

    Targets are without the tokeniser's escapes, which some of sacreBLEU's tokenisers would split.
    Sentences have `elapsed` if the outcomes have times.
    """
    return [
        Instance(
            sentence.line - 1,
            unescape(outcome.words),
            delays_of_words(sentence, outcome, joiner),
            len(sentence.words),
            " ".join(sentence.words),
            unescape(sentence.reference),
            elapsed_of_words(sentence, outcome, joiner, words_per_minute)
            if outcome.seconds
            else (),
        )
        for sentence, outcome in zip(sentences, outcomes, strict=True)
    ]
