"""Statistics of systems against one reference, shared by buckets, lengths and comparisons.

evaluation = read_evaluation(["NAME=FILE"], reference, source)
section = buckets_section(evaluation)
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.systems import (
    SystemOutput,
    check_lengths,
    corpus_title,
    named_files,
    read_systems,
    read_text,
    source_mismatches,
    stem,
)
from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.base.io.atomic import is_stream
from nmtgrid.metrics import bootstrap, ngrams
from nmtgrid.metrics.latency import Numbers
from nmtgrid.metrics.ngrams import (
    Counts,
    Ragged,
    bleu_counts,
    chrf_characters,
    chrf_counts,
    corpus_bleus,
    corpus_chrfs,
    sentence_bleus,
)
from nmtgrid.metrics.quality import SEED, Scorer, ScorerName, ter_counts, tokenizer
from nmtgrid.text.scripts import bleu_tokenizer

if TYPE_CHECKING:
    from nmtgrid.data.dataset import Dataset


@dataclasses.dataclass(frozen=True)
class MeasureKind:
    """A measure of quality: its title, its decimals, and how it is computed.

    `counts` are those of each sentence [sentences, columns] of each system, [sentences] if `scorer`
    is None. `rescored` takes sums over a number of sentences [samples, columns] or [samples] and
    returns scores [samples]. `scorer` is the name of the sacreBLEU scorer of a single sum, None if
    the score is the mean of the sentences' scores.
    """

    title: str
    digits: int
    counts: Callable[[Evaluation], Sequence[NDArray[Any]]]
    rescored: Callable[[NDArray[Any], int], NDArray[Any]]
    scorer: ScorerName | None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Lines and their tokens as ids; counts are computed when first needed.

    `tokens` are those of `systems`; `source` is None if not given, and split with
    `source_tokenize`. `corpus` is the name in titles; `tokenized` are source and reference as
    tokenised text, if available. `lower` has been applied to all lines except the source's.
    """

    systems: Sequence[SystemOutput]
    reference_lines: Sequence[str]
    source_lines: Sequence[str] | None
    tokenize: str
    lowercase: bool
    vocabulary: Sequence[str]
    tokens: Sequence[Ragged]
    reference: Ragged
    source: Ragged | None
    source_tokenize: str
    corpus: str = ""
    tokenized: tuple[Sequence[str], Sequence[str]] | None = None
    lower: Callable[[str], str] = str
    segment_scores: Mapping[str, Sequence[Counts]] = dataclasses.field(default_factory=dict)
    """Sentence scores of other programs, by name and system: [sentences, 2], score and 1."""

    @classmethod
    def of(
        cls,
        systems: Sequence[SystemOutput],
        reference: Sequence[str],
        source: Sequence[str] | None = None,
        tokenize: str | None = None,
        lowercase: bool = False,
        corpus: str = "",
        *,
        languages: tuple[str, str] = ("", ""),
        default: str = "13a",
        lower: Callable[[str], str] = str,
    ) -> Evaluation:
        """Split all lines into tokens; all texts must have the same number of lines.

        `tokenize` None means `default`, and characters if references have no spaces between words.
        In a source without spaces characters count in any case. `languages` are those of source and
        reference; `lower` is applied to references and systems.
        """
        source_language, language = languages
        source_tokenize = bleu_tokenizer(source_language, source or (), tokenize or default)
        tokenize = tokenize or bleu_tokenizer(language, reference, default)
        reference = [*map(lower, reference)]
        systems = [dataclasses.replace(own, lines=[*map(lower, own.lines)]) for own in systems]
        split = tokenizer(tokenize, lowercase)
        # One numbering for systems and references: equal words have equal numbers.
        vocabulary: dict[str, int] = {}
        references = ngrams.words(map(split, reference), vocabulary)
        tokens = [ngrams.words(map(split, system.lines), vocabulary) for system in systems]
        # Words of the source are counted, not compared, so they have separate numbers.
        split_source = tokenizer(source_tokenize, lowercase)
        sources = None if source is None else ngrams.words(map(split_source, source), {})
        return cls(
            systems, reference, source, tokenize, lowercase, list(vocabulary), tokens, references,
            sources, source_tokenize, corpus, lower=lower,
        )  # fmt: skip

    @property
    def word_pairs(self) -> tuple[list[list[str]], list[list[str]]]:
        """Return the words of source and reference, split at spaces."""
        source, reference = self.tokenized or (self.source_lines or [], self.reference_lines)
        return [line.split() for line in source], [line.split() for line in reference]

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of the comparison of text as JSON."""
        return {"tokenize": self.tokenize, "lowercase": self.lowercase}

    @property
    def names(self) -> list[str]:
        return [system.name for system in self.systems]

    @functools.cached_property
    def bleu(self) -> list[Counts]:
        """Return `ngrams.bleu_counts` of each system."""
        return [bleu_counts(tokens, self.reference) for tokens in self.tokens]

    @functools.cached_property
    def sentence_bleu(self) -> list[NDArray[numpy.float64]]:
        """Return each sentence's BLEU in percent, for each system."""
        return [sentence_bleus(counts) for counts in self.bleu]

    @functools.cached_property
    def chrf(self) -> list[Counts]:
        """Return `ngrams.chrf_counts` of each system."""
        reference = chrf_characters(self.reference_lines, self.lowercase)
        return [
            chrf_counts(chrf_characters(system.lines, self.lowercase), reference)
            for system in self.systems
        ]

    @functools.cached_property
    def ter(self) -> list[NDArray[numpy.float64]]:
        """Return `quality.ter_counts` of each system; slow."""
        return [
            numpy.array(
                ter_counts(system.lines, self.reference_lines, self.lowercase, self.tokenize)
            )
            for system in self.systems
        ]

    def kind(self, name: str) -> MeasureKind:
        """Return a measure by its name, or by the name of another program's scores.

        Raises ConfigError for an unknown name.
        """
        if name in self.segment_scores:
            return _segment_kind(name)
        if name not in MEASURE_KINDS:
            known = nearest(name, [*MEASURE_KINDS, *self.segment_scores])
            raise ConfigError(f"There is no measure `{name}`.", known)
        return MEASURE_KINDS[name]

    def counts(self, name: str) -> Sequence[NDArray[Any]]:
        """Return counts [sentences, columns] of each system; a metric is computed from their sums.

        For sentence BLEU they are [sentences]. Raises ConfigError for an unknown name.
        """
        return self.kind(name).counts(self)

    def scorer(self, name: str) -> Scorer:
        """Return the scorer that computes scores from sums of counts.

        Raises ConfigError for an unknown name, and for sentence BLEU, whose sums have no score.
        """
        scorer = self.kind(name).scorer
        if scorer is None:
            raise ConfigError(
                f"`{name}` is the mean of the sentences' scores and has no corpus score.",
                "Use `bleu`.",
            )
        return Scorer(scorer, self.tokenize, self.lowercase)

    def scores(
        self, measure: str, buckets: Sequence[NDArray[numpy.int64]]
    ) -> list[list[float | None]]:
        """Return the score of each system in each bucket, given as line numbers from 0.

        BLEU and chrF are corpus scores of the bucket, in percent, sentence BLEU (percent) and the
        scores of other programs the mean; None for a bucket without lines. Raises ConfigError for
        an unknown measure.
        """
        if self.kind(measure).scorer is None:
            return [
                [float(scores[lines].mean()) if len(lines) else None for lines in buckets]
                for scores in self.counts(measure)
            ]
        scorer = self.scorer(measure)
        # Counts of sentences are summed and scored once: a corpus score is not a mean of scores.
        counts = self.counts(measure)
        return [
            [scorer.score(rows[n].sum(axis=0).tolist()) if len(n) else None for n in buckets]
            for rows in counts
        ]

    def resampled(
        self,
        measures: Sequence[str],
        lines: NDArray[numpy.int64] | None,
        samples: int,
        seed: int = SEED,
    ) -> dict[str, NDArray[numpy.float64]]:
        """Return by measure the scores [systems, samples] of resampled `lines`.

        Lines (None: all) are sampled with replacement, the same ones for all systems and
        measures. Raises ConfigError for an unknown measure.
        """
        count = len(self.reference_lines) if lines is None else len(lines)
        selected = slice(None) if lines is None else lines

        def scored(kind: MeasureKind, block: Numbers) -> list[Numbers]:
            return [kind.rescored(block @ rows[selected], count) for rows in kind.counts(self)]

        return self._drawn(measures, bootstrap.weights(count, samples, seed), scored)

    def swapped(
        self, measures: Sequence[str], samples: int, seed: int = SEED
    ) -> dict[str, NDArray[numpy.float64]]:
        """Return by measure the differences [systems, samples] to the first after random swaps.

        Lines are swapped between a system and the first, the same ones for all systems and
        measures. Raises ConfigError for an unknown measure.
        """
        count = len(self.reference_lines)

        def scored(kind: MeasureKind, block: Numbers) -> list[Numbers]:
            first, *_ = counts = kind.counts(self)
            moved = [block @ (first - own) for own in counts]
            return [
                kind.rescored(own.sum(axis=0) + change, count)
                - kind.rescored(first.sum(axis=0) - change, count)
                for own, change in zip(counts, moved, strict=True)
            ]

        return self._drawn(measures, bootstrap.swaps(count, samples, seed), scored)

    def _drawn(
        self,
        measures: Sequence[str],
        blocks: Iterable[Numbers],
        scored: Callable[[MeasureKind, Numbers], list[Numbers]],
    ) -> dict[str, Numbers]:
        """Return by measure the results of `scored` on all blocks of samples [systems, samples]."""
        kinds = {name: self.kind(name) for name in measures}
        drawn: dict[str, list[list[Numbers]]] = {name: [] for name in measures}
        # Blocks are drawn once, so that all measures use the same samples.
        for block in blocks:
            for name, kind in kinds.items():
                drawn[name].append(scored(kind, block))
        return {name: numpy.concatenate(own, axis=1) for name, own in drawn.items()}

    def case_mismatches(self) -> list[str]:
        """Return a warning for each system if only it or only the reference has capitals.

        Case-sensitive scores then count words as wrong that only differ in case.
        """
        if self.lowercase:
            return []
        return self._mismatches(_capitals, "with a capital", _CASE, ", but case counts.")

    def token_mismatches(self) -> list[str]:
        """Return a warning for each system if only it or only the reference is tokenised.

        The tokenisers of scores do not undo everything that those of a corpus do.
        """
        end = ": words count as different that are not."
        return self._mismatches(_apart, "with a full stop or a comma apart", _TOKENISED, end)

    def _mismatches(
        self, share: Callable[[Sequence[str]], float], what: str, unlike: _Unlike, end: str
    ) -> list[str]:
        expected = share(self.reference_lines)
        shares = [share(system.lines) for system in self.systems]
        # A share of nothing is NaN, for which no comparison is true.
        return [
            f"{unlike.texts[actual < expected].format(system.name)} (lines {what}: "
            f"{100 * actual:.0f} %, of the references {100 * expected:.0f} %){end}"
            for system, actual in zip(self.systems, shares, strict=True)
            if (actual <= unlike.most and expected >= unlike.least)
            or (expected <= unlike.most and actual >= unlike.least)
        ]

    def source_mismatches(self) -> list[str]:
        """Return a warning for each system whose traces have another source in most lines.

        It is compared with the given source, or else with the source of the first traces.
        """
        sources = {
            system.name: system.source_lines
            for system in self.systems
            if system.source_lines is not None
        }
        return source_mismatches(sources, self.source_lines)

    def describe_tokens(self) -> str:
        how = f"Tokens are those of sacreBLEU's tokeniser `{self.tokenize}`"
        if self.tokenize == "none":
            how = "Tokens are split at white space"
        if self.source is not None and self.source_tokenize != self.tokenize:
            how += f" (of the source: `{self.source_tokenize}`)"
        return how + (", in lower case." if self.lowercase else ".")


def _ter(sums: NDArray[Any], _: int) -> NDArray[Any]:
    # As in sacreBLEU: against references without words any edit is 100 percent.
    return numpy.where(
        sums[:, 1] > 0,
        100.0 * sums[:, 0] / numpy.maximum(sums[:, 1], 1.0),
        100.0 * (sums[:, 0] > 0),
    )


MEASURE_KINDS: Mapping[str, MeasureKind] = {
    "bleu": MeasureKind(
        "BLEU", 2, lambda own: own.bleu, lambda sums, _: corpus_bleus(sums), "bleu"
    ),
    "sentence-bleu": MeasureKind(
        "sentence BLEU", 2, lambda own: own.sentence_bleu, lambda sums, count: sums / count, None
    ),
    "chrf": MeasureKind(
        "chrF", 2, lambda own: own.chrf, lambda sums, _: corpus_chrfs(sums), "chrf"
    ),
    "ter": MeasureKind("TER", 2, lambda own: own.ter, _ter, "ter"),
}
"""The measures in percent by name, in the order of tables."""


def _segment_kind(name: str) -> MeasureKind:
    """Return the measure that averages another program's sentence scores of this name."""
    return MeasureKind(
        name, 4, lambda own: own.segment_scores[name], lambda sums, _: sums[:, 0] / sums[:, 1],
        "mean",
    )  # fmt: skip


def title_of(measure: str) -> str:
    """Return the title of a measure; scores of other programs have the user's names."""
    return (MEASURE_KINDS.get(measure) or _segment_kind(measure)).title


def digits_of(measure: str) -> int:
    """Return the decimals of a score: two of percent, four of other programs' scores."""
    return (MEASURE_KINDS.get(measure) or _segment_kind(measure)).digits


class _Unlike(NamedTuple):
    """Thresholds for shares of lines, and warnings by whether the system's share is the lower one.

    The share is at most `most` in one kind of text, and at least `least` in the other.
    """

    most: float
    least: float
    texts: Mapping[bool, str]


_CASE = _Unlike(0.01, 0.1, {
    True: "`{}` is in lower case and the references are not",
    False: "The references are in lower case and `{}` is not",
})  # fmt: skip
_TOKENISED = _Unlike(0.05, 0.5, {
    True: "The references are tokenised and `{}` is not",
    False: "`{}` is tokenised and the references are not",
})  # fmt: skip
_MARK = re.compile(r"(\s?)[.,](?=\s|$)")


def _capitals(lines: Sequence[str]) -> float:
    """Return the share of lines with a capital among those whose letters have case, or NaN."""
    cased = [line for line in lines if line.lower() != line.upper()]
    return sum(line != line.lower() for line in cased) / len(cased) if cased else math.nan


def _apart(lines: Sequence[str]) -> float:
    """Return the share of lines with a space before a full stop or a comma, of those with any."""
    marks = [spaces for line in lines if (spaces := _MARK.findall(line))]
    return sum(any(spaces) for spaces in marks) / len(marks) if marks else math.nan


def read_evaluation(
    systems: Sequence[str],
    reference: Path,
    source: Path | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    corpus: str | None = None,
) -> Evaluation:
    """Return the evaluation of files: systems as NAME=FILE, reference, source.

    `tokenize` None means 13a, and characters if the references have no spaces between words.
    Without `corpus` titles have the name of the reference's file. Raises ConfigError for a
    reference or source that is given as a system, or a name given twice, InputError for files of
    different lengths, or without lines.
    """
    files = {"reference": reference, "source": source}
    faults = [
        f"{path}, given as the system `{name}`, is the {what}."
        for name, path in named_files(systems).items()
        for what, other in files.items()
        if other is not None and os.path.realpath(path) == os.path.realpath(other)
    ]
    if source is not None and os.path.realpath(reference) == os.path.realpath(source):
        faults.append(f"{source} is given as source and as reference.")
    if faults:
        raise ConfigError(faults, "Give translations as arguments.")
    if corpus is None:
        # The name of a pipe is only a number.
        corpus = "" if is_stream(reference) else reference.name
    references = read_text(reference)
    outputs = read_systems(systems, {reference: len(references)})
    sources = None if source is None else read_text(source)
    if source is not None and sources is not None:
        check_lengths({reference: len(references), source: len(sources)})
    # The suffix of a file may be its language, as in `test.zh`; others have no effect.
    source_language, language = (
        "" if path is None else stem(path).rpartition(".")[2] for path in (source, reference)
    )
    return Evaluation.of(
        outputs, references, sources, tokenize, lowercase, corpus,
        languages=(source_language, language),
    )  # fmt: skip


def evaluate_split(
    systems: Sequence[str],
    data: Path,
    split: str,
    tokenize: str | None,
    lowercase: bool,
    corpus: str | None,
) -> Evaluation:
    """Return the evaluation of systems, as NAME=FILE, on a split of the dataset in `data`.

    Raw text is compared as in `nmtgrid decode`: in lower case if the dataset's text is. `tokenize`
    None means 13a, none if the text was tokenised before `nmtgrid preprocess`, and characters if
    the references have no spaces between words. Raises ConfigError for a dataset of pictures, whose
    captions have several references.
    """
    # Imported late, so that comparing files does not load torch.
    from nmtgrid.data.dataset import Dataset

    dataset = Dataset.open(data)
    if dataset.pictures is not None:
        raise ConfigError(
            f"The captions in {data} have several references each, but analyses need one.",
            "Give one reference for each with `--reference FILE`.",
        )
    pairs, moses = dataset.split(split), dataset.pipeline.target.moses
    facts = dataset.pipeline.facts
    references = pairs.raw_target()
    # Units of BPE and words are parts of tokens between spaces; other text may be raw.
    was_tokenized = facts.tokenize == "none" and facts.subwords != "sentencepiece"
    path = data / "raw" / f"{split}.{facts.languages[1]}"
    evaluation = Evaluation.of(
        read_systems(systems, {path: len(references)}),
        references,
        pairs.raw_source(),
        tokenize,
        lowercase or moses.lowercase,
        split_title(dataset, split) if corpus is None else corpus,
        languages=(facts.source_lang, facts.target_lang),
        default="none" if was_tokenized else "13a",
        # In some languages lower-casing differs from that of the metrics.
        lower=moses.lower if moses.lowercase else str,
    )
    tokenized = pairs.tokenized_source(), pairs.tokenized_target()
    return dataclasses.replace(evaluation, tokenized=tokenized)


def split_title(dataset: Dataset, split: str) -> str:
    """Return the title of a split of a dataset."""
    facts = dataset.pipeline.facts
    return corpus_title(dataset.path.resolve(), (facts.source_lang, facts.target_lang), split)
