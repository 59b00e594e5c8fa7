"""Systems against one reference, counted once: what buckets, lengths and comparisons are made of.

evaluation = read_evaluation(["NAME=FILE"], reference, source, "13a")
section = buckets_section(evaluation)
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy
from numpy.typing import NDArray

from nmtgrid.analysis.systems import (
    SystemOutput,
    check_lengths,
    named_files,
    read_systems,
    read_text,
)
from nmtgrid.base.errors import ConfigError
from nmtgrid.metrics import ngrams
from nmtgrid.metrics.ngrams import (
    Counts,
    Ragged,
    bleu_counts,
    chrf_characters,
    chrf_counts,
    sentence_bleus,
)
from nmtgrid.metrics.quality import Scorer, ter_counts, tokenizer

Measure = Literal["bleu", "sentence-bleu", "chrf"]
TITLES: dict[str, str] = {
    "bleu": "BLEU", "sentence-bleu": "sentence BLEU", "chrf": "chrF", "ter": "TER",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Lines and their tokens by number; counts are made when they are first asked for.

    `tokens` are those of `systems`, `source` is None where none is given.
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

    @classmethod
    def of(
        cls,
        systems: Sequence[SystemOutput],
        reference: Sequence[str],
        source: Sequence[str] | None = None,
        tokenize: str = "13a",
        lowercase: bool = False,
    ) -> Evaluation:
        """Split all lines into tokens; all must have as many lines."""
        split = tokenizer(tokenize, lowercase)
        # One numbering for systems and references: equal words have equal numbers.
        vocabulary: dict[str, int] = {}
        references = ngrams.words(map(split, reference), vocabulary)
        tokens = [ngrams.words(map(split, system.lines), vocabulary) for system in systems]
        # Words of the source are counted, not compared: they have numbers of their own.
        sources = None if source is None else ngrams.words(map(split, source), {})
        return cls(
            systems, reference, source, tokenize, lowercase, list(vocabulary), tokens, references,
            sources,
        )  # fmt: skip

    @property
    def names(self) -> list[str]:
        """Return the systems' names."""
        return [system.name for system in self.systems]

    @functools.cached_property
    def bleu(self) -> list[Counts]:
        """Return `sentence_counts.bleu_counts` of each system."""
        return [bleu_counts(tokens, self.reference) for tokens in self.tokens]

    @functools.cached_property
    def sentence_bleu(self) -> list[NDArray[numpy.float64]]:
        """Return each sentence's BLEU in percent, of each system."""
        return [sentence_bleus(counts) for counts in self.bleu]

    @functools.cached_property
    def chrf(self) -> list[Counts]:
        """Return `sentence_counts.chrf_counts` of each system."""
        reference = chrf_characters(self.reference_lines, self.lowercase)
        return [
            chrf_counts(chrf_characters(system.lines, self.lowercase), reference)
            for system in self.systems
        ]

    @functools.cached_property
    def ter(self) -> list[NDArray[numpy.float64]]:
        """Return `quality.ter_counts` of each system; slow."""
        return [
            numpy.array(ter_counts(system.lines, self.reference_lines, self.lowercase))
            for system in self.systems
        ]

    def scorer(self, name: Literal["bleu", "chrf", "ter"]) -> Scorer:
        """Return what makes scores of sums of counts."""
        return Scorer(name, self.tokenize, self.lowercase)

    def scores(
        self, measure: Measure, buckets: Sequence[NDArray[numpy.int64]]
    ) -> list[list[float | None]]:
        """Return the score of each system in each bucket, given as line numbers from 0.

        BLEU and chrF are corpus scores of the bucket, sentence BLEU is the mean; percent, and
        None for a bucket without lines.
        """
        if measure == "sentence-bleu":
            return [
                [float(scores[lines].mean()) if len(lines) else None for lines in buckets]
                for scores in self.sentence_bleu
            ]
        scorer = self.scorer(measure)
        # Counts of sentences are summed, and scored once: a corpus score is no mean of sentences'.
        counts = self.bleu if measure == "bleu" else self.chrf
        return [
            [scorer.score(rows[n].sum(axis=0).tolist()) if len(n) else None for n in buckets]
            for rows in counts
        ]

    def describe_tokens(self) -> str:
        """Return in a sentence how tokens are made."""
        how = f"Tokens are those of sacreBLEU's tokeniser `{self.tokenize}`"
        if self.tokenize == "none":
            how = "Tokens are split at white space"
        return how + (", in lower case." if self.lowercase else ".")


def read_evaluation(
    systems: Sequence[str],
    reference: Path,
    source: Path | None = None,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Evaluation:
    """Return the evaluation of files: systems as NAME=FILE, reference, source.

    Raises ConfigError for a reference or source that is given as a system, or a name given twice,
    InputError for files of different lengths, or without a line.
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
        raise ConfigError(faults, "Give translations as systems.")
    references = read_text(reference)
    outputs = read_systems(systems, {reference: len(references)})
    sources = None if source is None else read_text(source)
    if source is not None and sources is not None:
        check_lengths({reference: len(references), source: len(sources)})
    return Evaluation.of(outputs, references, sources, tokenize, lowercase)
