"""Online evaluation: sentences of a split are decoded along settings of a policy and scored.

`read_sentences` yields sources as a stream would bring them, `OnlineDecoder` decodes them in
batches along wait-k, a threshold or the oracle's paths, and `measure` scores the outcome: BLEU, and
latency in tokens and words, in the conventions of the thesis (section 4.5) and of SimulEval.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, collate, cut_by_length
from nmtgrid.data.dataset import Split
from nmtgrid.metrics.latency import Convention, Latency, Unit, latency, reference_words, word_delays
from nmtgrid.metrics.quality import Score, bleu
from nmtgrid.models.api import with_exits
from nmtgrid.online.oracle import ReadingCost, oracle_paths, refuse_oracle, writing_costs
from nmtgrid.online.policies import AlongPaths, Bounded, Threshold, WaitK
from nmtgrid.online.settings import Setting, SourceText
from nmtgrid.online.simuleval import Instance
from nmtgrid.search import engine
from nmtgrid.search.api import Agent, Hypothesis
from nmtgrid.search.constraints import hides_the_end
from nmtgrid.search.translate import Translator
from nmtgrid.text.moses import unescape
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

    Sources are cut after `longest` units, at the end of a word where there is one, with a warning:
    a stream that is evaluated cannot be split.
    """
    columns = zip(
        split.raw_source(), split.raw_target(), split.tokenized_target(), strict=True
    )  # fmt: skip
    sentences: list[Sentence] = []
    cut_lines: list[int] = []
    for line, (source, raw, tokenized) in enumerate(columns, start=1):
        if count is not None and line > count:
            break
        all_words = _units(pipeline, source, source_text)
        words = _within(all_words, longest)
        if sum(len(units) for _, units in words) < sum(len(units) for _, units in all_words):
            cut_lines.append(line)
        units = [unit for _, of_word in words for unit in of_word]
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
            )
        )
    if cut_lines:
        lines = ", ".join(map(str, cut_lines[:10])) + (", ..." if len(cut_lines) > 10 else "")
        warn(f"long-line: longer than {longest:,} source units and cut: line {lines}.")
    return sentences


def _units(pipeline: Pipeline, line: str, source_text: SourceText) -> list[tuple[str, list[str]]]:
    """Return a source's words with the units of each."""
    # As a stream brings it: each raw word is tokenised and cut into subwords before the next is
    # known.
    if source_text == "words":
        return list(zip(line.split(), pipeline.source_words(line), strict=True))
    # Tokenised whole, as the training data was; its tokens then count as words.
    words = pipeline.source.moses.tokenize(line).split()
    return [(word, pipeline.source.units([word])) for word in words]


def _within(words: list[tuple[str, list[str]]], longest: int) -> list[tuple[str, list[str]]]:
    shortened: list[tuple[str, list[str]]] = []
    room = longest
    for word, units in words:
        if len(units) > room:
            # One endless word is cut itself: something must be left to translate.
            return shortened or [(word, units[:room])]
        shortened.append((word, units))
        room -= len(units)
    return shortened


_MOST_CELLS = 1 << 17
"""Grid cells of a batch for the oracle: all of them are classified."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a sentence: units, tokenised words, raw text, and the reads of each unit.

    `reads` has one entry more than `units`, the end symbol's; they count the source's end symbol.
    An empty source has no entries at all. With early exit, `exits` are the blocks behind which
    units were predicted, `exit_scores` what was decided from, and `num_exits` the blocks there are
    (see `Hypothesis`).
    """

    units: list[str]
    words: str
    text: str
    reads: list[int]
    log_probabilities: list[float]
    exits: list[int] | None = None
    exit_scores: Tensor | None = None
    num_exits: int | None = None


@dataclasses.dataclass(frozen=True)
class Decoded:
    """All sentences along one setting, and how long that took (the oracle's costs not counted)."""

    setting: Setting
    outcomes: list[Outcome]
    seconds: float

    @property
    def target_tokens(self) -> int:
        """Units written, end symbols counted."""
        return sum(len(outcome.reads) for outcome in self.outcomes)

    @property
    def average_exit(self) -> float | None:
        """The mean block behind which units were predicted; None without early exit."""
        exits = [exit for outcome in self.outcomes for exit in outcome.exits or ()]
        return sum(exits) / len(exits) if exits else None


class OnlineDecoder:
    """One translator, or several models averaged, that decodes along settings.

    Tokens leave the decoder where the translator's halt says so.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        finish_reading: bool = False,
        oracle_cost: ReadingCost = "delay",
    ) -> None:
        """`finish_reading` allows no end before the whole source is read (appendix C)."""
        self.translator = translator
        self.finish_reading = finish_reading
        self.oracle_cost: ReadingCost = oracle_cost

    def faults(self, settings: Sequence[Setting]) -> list[str]:
        """Return what the models cannot do of these settings."""
        # Faults of every model of an ensemble are collected: the user sees all at once.
        faults: list[str] = []
        policies = {setting.policy for setting in settings if not setting.is_offline}
        for model in self.translator.models:
            if not model.traits.prefix_safe and policies:
                faults.append(str(model.refusal()))
                continue
            if "oracle" in policies and (refusal := refuse_oracle(model)):
                faults.append(refusal)
            if "threshold" in policies and not model.traits.reads:
                faults.append(str(model.no_reader()))
        halt = self.translator.halt
        if halt is not None and policies and not faults:
            try:
                with_exits(self.translator.models[0]).check_halt(halt, has_whole_source=False)
            except ConfigError as error:
                faults.append(str(error))
        return faults

    def run(
        self,
        sentences: Sequence[Sentence],
        settings: Sequence[Setting],
        advance: Callable[[Setting, int, int], None] = lambda setting, lines, tokens: None,
    ) -> Iterator[Decoded]:
        """Yield what becomes of the sentences along each setting, in the settings' order.

        `advance` gets the sentences and target tokens of each batch. The oracle's paths are
        made from costs that all its settings share.
        """
        weights = [setting.value for setting in settings if setting.policy == "oracle"]
        paths: dict[float, dict[int, list[int]]] = {}
        for setting in settings:
            # All lambdas at once: the costs of the grid do not depend on them. Not timed.
            if setting.policy == "oracle" and not paths:
                paths = self.oracle(sentences, weights)
            started = time.perf_counter()
            outcomes = self._decode(sentences, setting, paths.get(setting.value, {}), advance)
            yield Decoded(setting, outcomes, time.perf_counter() - started)

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
            with self._precision():
                costs = torch.stack([writing_costs(m, batch) for m in self.translator.models])
            # Costs of an ensemble are those of its mean probability, as its search has it.
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
        advance: Callable[[Setting, int, int], None],
    ) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        for group in self._batches(sentences):
            hypotheses = self._search(
                group, setting, [paths.get(sentence.line, []) for sentence in group]
            )
            for sentence, best in zip(group, hypotheses, strict=True):
                outcomes[sentence.line] = self._restore(sentence, best)
            advance(setting, len(group), sum(len(best.tokens) + 1 for best in hypotheses))
        # Empty sources are not decoded, but count as done.
        advance(setting, sum(not sentence.source for sentence in sentences), 0)
        empty = Outcome([], "", "", [], [])
        return [outcomes.get(sentence.line, empty) for sentence in sentences]

    def _search(
        self, group: Sequence[Sentence], setting: Setting, paths: list[list[int]]
    ) -> list[Hypothesis]:
        batch = self._batch(group)
        with self._precision():
            nbest_lists = engine.search(
                self.translator.models,
                batch.source,
                batch.source_lengths,
                self.translator.plan,
                agent=self._agent(setting, paths),
                halt=self.translator.halt,
            )
        return [hypotheses[0] for hypotheses in nbest_lists]

    def _agent(self, setting: Setting, paths: list[list[int]]) -> Agent | None:
        if setting.is_offline:
            return None
        if setting.policy != "oracle":
            kind = WaitK if setting.policy == "wait-k" else Threshold
            agent = kind(setting.value, self.finish_reading)
            # A stream does not know how long its source will be, which limits what is written.
            return Bounded(agent, self.translator.plan, hides_the_end(self.translator.models))
        device = self.translator.device
        lengths = torch.tensor([len(path) for path in paths], device=device)
        # Padded with a path's last value; beyond its length the whole source is read anyway.
        size = max(map(len, paths))
        padded = [[*path, *[path[-1]] * (size - len(path))] for path in paths]
        return AlongPaths(torch.tensor(padded).to(device), lengths, self.finish_reading)

    def _restore(self, sentence: Sentence, best: Hypothesis) -> Outcome:
        pipeline, whole = self.translator.pipeline, len(sentence.source) + 1
        reads = [whole] * (len(best.tokens) + 1) if best.reads is None else best.reads
        return Outcome(
            pipeline.target_vocabulary.decode(best.tokens),
            pipeline.restore_tokenized(best.tokens),
            pipeline.restore(best.tokens),
            reads,
            best.log_probabilities,
            best.exits,
            best.exit_scores,
            best.num_exits,
        )

    def _batch(self, group: Sequence[Sentence]) -> Batch:
        batch = collate(
            [sentence.source for sentence in group], [sentence.target for sentence in group]
        )
        return batch.to(self.translator.device)

    def _batches(self, sentences: Sequence[Sentence], cells: int = 0) -> Iterator[list[Sentence]]:
        """Yield the sentences that have a source, in batches of alike lengths."""
        source = numpy.array([len(sentence.source) for sentence in sentences])
        target = numpy.array([len(sentence.target) for sentence in sentences])
        # A search has `beam` rows for each sentence; the oracle one grid for each pair.
        width = self.translator.plan.beam if not cells else 1
        limit = max(1, self.translator.options.batch_tokens // width)
        columns = (source, target) if cells else (source, source)
        for indices in cut_by_length(*columns, numpy.flatnonzero(source), limit, cells):
            yield [sentences[index] for index in indices.tolist()]

    def _precision(self) -> torch.autocast:
        kind, bf16 = self.translator.device.type, self.translator.bf16
        return torch.autocast(kind, torch.bfloat16, enabled=bf16)


COUNTINGS: tuple[tuple[Unit, Convention], ...] = (
    ("token", "thesis"), ("word", "thesis"), ("word", "simuleval"),
)  # fmt: skip
"""Units and conventions that latency is reported in: SimulEval's convention knows words only."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """The scores of a decoding: BLEU of tokenised and of raw text, latency in each counting."""

    decoded: Decoded
    tokenized: Score
    raw: Score
    latencies: dict[tuple[Unit, Convention], Latency]

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
            "target_tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / max(seconds, 1e-9),
            "signature_bleu_tokenized": self.tokenized.signature,
            "signature_bleu": self.raw.signature,
            "latencies": [latency.values() for latency in self.latencies.values()],
        }


def measure(
    sentences: Sequence[Sentence], decoded: Decoded, joiner: str, *, lowercase: bool
) -> Measured:
    """Return the scores of a decoding; `joiner` ends target units that go on in the next one.

    Raw text is compared in lower case if `lowercase`, as a lower-cased model can give no more.
    """
    outcomes = decoded.outcomes
    # The thesis reports BLEU of tokenised text, others detokenised BLEU: both are cheap.
    tokenized = bleu(
        [outcome.words for outcome in outcomes],
        [sentence.reference for sentence in sentences],
        "none",
    )
    raw = bleu(
        [outcome.text for outcome in outcomes],
        [sentence.raw_reference for sentence in sentences],
        lowercase=lowercase,
    )
    pairs = list(zip(sentences, outcomes, strict=True))
    words = [delays_of_words(sentence, outcome, joiner) for sentence, outcome in pairs]
    latencies: dict[tuple[Unit, Convention], Latency] = {
        ("token", "thesis"): latency(
            [delays_of_tokens(sentence, outcome) for sentence, outcome in pairs],
            [len(sentence.source) for sentence in sentences],
            [len(sentence.target) for sentence in sentences],
        )
    }
    lengths = [len(sentence.words) for sentence in sentences]
    counts = {
        "thesis": [len(sentence.reference.split()) for sentence in sentences],
        "simuleval": [reference_words(sentence.reference) for sentence in sentences],
    }
    for unit, convention in COUNTINGS[1:]:
        latencies[unit, convention] = latency(
            words, lengths, counts[convention], unit=unit, convention=convention
        )
    return Measured(decoded, tokenized, raw, latencies)


def delays_of_tokens(sentence: Sentence, outcome: Outcome) -> list[int]:
    """Return the delay of each target unit in source units; end symbols count on neither side."""
    return [min(reads, len(sentence.source)) for reads in outcome.reads[: len(outcome.units)]]


def delays_of_words(sentence: Sentence, outcome: Outcome, joiner: str) -> list[int]:
    """Return the delay of each target word in source words."""
    return word_delays(outcome.reads, sentence.sizes, outcome.units, joiner)


def instances(
    sentences: Sequence[Sentence], outcomes: Sequence[Outcome], joiner: str
) -> list[Instance]:
    """Return a log's sentences: raw source words, tokenised target words and references.

    Targets are without the tokenizer's escapes, which some of sacreBLEU's tokenizers cut in pieces.
    """
    return [
        Instance(
            sentence.line - 1,
            unescape(outcome.words),
            delays_of_words(sentence, outcome, joiner),
            len(sentence.words),
            " ".join(sentence.words),
            unescape(sentence.reference),
        )
        for sentence, outcome in zip(sentences, outcomes, strict=True)
    ]
