"""What BLEU and chrF are computed from, sentence by sentence.

Summed over any sentences, these counts give sacreBLEU's score of those. Columns are those of
sacreBLEU's own statistics, so that its functions take them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from nmtgrid.metrics.ngrams import Ragged, characters, matches, totals

BLEU_ORDER, CHRF_ORDER = 4, 6

Counts = NDArray[numpy.int64]


def bleu_counts(hypotheses: Ragged, references: Ragged) -> Counts:
    """Return [lines, 10]: length, reference's length, n-grams matched and in all (1 to 4)."""
    return numpy.concatenate(
        [
            hypotheses.lengths[:, None],
            references.lengths[:, None],
            matches(hypotheses, references, BLEU_ORDER),
            totals(hypotheses.lengths, BLEU_ORDER),
        ],
        axis=1,
    )


def chrf_counts(hypotheses: Ragged, references: Ragged) -> Counts:
    """Return [lines, 18]: for n = 1 to 6 the n-grams of hypothesis, of reference, and of both.

    As in sacreBLEU, those of the hypothesis do not count where the reference has none.
    """
    theirs = totals(references.lengths, CHRF_ORDER)
    ours = numpy.where(theirs > 0, totals(hypotheses.lengths, CHRF_ORDER), 0)
    both = matches(hypotheses, references, CHRF_ORDER)
    return numpy.stack([ours, theirs, both], axis=2).reshape(len(ours), -1)


def chrf_characters(lines: Sequence[str], lowercase: bool = False) -> Ragged:
    """Return the characters that chrF counts."""
    return characters([line.lower() for line in lines] if lowercase else lines)


def sentence_bleus(counts: Counts) -> NDArray[numpy.float64]:
    """Return each sentence's BLEU in percent from `bleu_counts`.

    As sacreBLEU's sentence score: orders up to the longest n-gram that the hypothesis has, each
    order without a match counted as 1/2, 1/4, ... of one match.
    """
    length, wanted = counts[:, 0], counts[:, 1]
    correct, total = counts[:, 2 : 2 + BLEU_ORDER], counts[:, 2 + BLEU_ORDER :]
    is_there = total > 0
    halves = numpy.cumsum((correct == 0) & is_there, axis=1)
    shown = numpy.where(correct > 0, correct, 0.5**halves)
    logs = numpy.log(numpy.where(is_there, shown / numpy.maximum(total, 1), 1.0))
    orders = numpy.maximum(is_there.sum(axis=1), 1)
    short = numpy.minimum(0.0, 1.0 - wanted / numpy.maximum(length, 1))
    found = 100.0 * numpy.exp(short + logs.sum(axis=1) / orders)
    return numpy.where(correct.any(axis=1), found, 0.0)
