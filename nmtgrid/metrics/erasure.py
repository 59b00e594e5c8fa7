"""Erasure and final delays of translations that are revised while the source arrives.

Arivazhagan et al. (2020), "Re-translation versus Streaming for Simultaneous Translation". Called by
online/retranslation.py; latency.py scores the delays like those of any other policy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

Tokens = Sequence[int] | Sequence[str]


def common_prefix(outputs: Sequence[Tokens]) -> int:
    """Return the length of the longest common prefix of at least one output."""
    first, *others = outputs
    count = min(map(len, outputs))
    for other in others:
        count = next((t for t in range(count) if first[t] != other[t]), count)
    return count


def erased_tokens(outputs: Sequence[Tokens]) -> int:
    """Return the number of tokens erased over the successive outputs of a sentence.

    From one output to the next, all tokens after their longest common prefix are erased: a changed
    token erases everything after it, and tokens that are only withdrawn count too.
    """
    pairs = itertools.pairwise(outputs)
    return sum(len(before) - common_prefix([before, after]) for before, after in pairs)


def normalised_erasure(erased: Sequence[int], lengths: Sequence[int]) -> float:
    """Return NE: tokens erased in all sentences per token of their final translations.

    `erased` and `lengths` have one number for each sentence, in tokens; end symbols do not count.
    0 means that outputs only grow, NaN that nothing is written. Raises ValueError if the numbers of
    sentences differ.
    """
    if len(erased) != len(lengths):
        raise ValueError(f"{len(erased)} sentences with erasure, but {len(lengths)} with a length")
    return sum(erased) / sum(lengths) if sum(lengths) else math.nan


def final_delays(outputs: Sequence[Tokens], reads: Sequence[int]) -> list[int]:
    """Return the delay of each token of the last output: the reads with which it became final.

    `reads` has an increasing number for each output. A token is final as of the first output from
    which on neither it nor any token before it changes, so that delays never decrease. Raises
    ValueError unless there are as many reads as outputs, and at least one.
    """
    if not outputs or len(outputs) != len(reads):
        raise ValueError(f"{len(outputs)} outputs, but {len(reads)} numbers of reads")
    final = outputs[-1]
    delays = [reads[-1]] * len(final)
    stable = len(final)
    for output, count in zip(reversed(outputs), reversed(reads), strict=True):
        stable = min(stable, common_prefix([output, final]))
        delays[:stable] = [count] * stable
    return delays
