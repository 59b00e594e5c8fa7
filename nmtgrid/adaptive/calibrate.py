"""Thresholds with a statistical guarantee: Learn then Test (Angelopoulos et al., 2021).

Fixed-sequence testing: candidates come from the safest to the fastest, an order that was chosen on
other sentences. Each is tested for a mean loss above the bound; at the first that is not refuted
the testing ends, and what has passed keeps the bound with the requested confidence, whatever the
number of candidates. Losses of sentences are in [0, 1], against the full stack's translations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError
from nmtgrid.metrics.quality import sentence_bleu

Candidate = TypeVar("Candidate")

_TINY = 1e-9
"""Relative rounding error of a sum of losses."""


@dataclasses.dataclass(frozen=True)
class Tested(Generic[Candidate]):
    """A candidate with its mean loss over `count` sentences and the p-value of a loss too large."""

    candidate: Candidate
    mean_loss: float
    p_value: float
    passed: bool


def fixed_sequence(
    candidates: Iterable[Candidate],
    losses: Callable[[Candidate], NDArray[Any]],
    bound: float,
    confidence: float,
) -> list[Tested[Candidate]]:
    """Return the candidates that were tested, in order; only the last may have failed.

    `losses` gives the loss of each sentence and is asked only as far as the testing goes.
    """
    tested: list[Tested[Candidate]] = []
    for candidate in candidates:
        values = numpy.asarray(losses(candidate), dtype=float)
        mean = float(values.mean())
        chance = p_value(mean, len(values), bound)
        tested.append(Tested(candidate, mean, chance, chance <= 1 - confidence))
        if not tested[-1].passed:
            break
    return tested


def p_value(mean_loss: float, count: int, bound: float) -> float:
    """Return the Hoeffding-Bentkus p-value of "the expected loss is above `bound`".

    For the mean of `count` independent losses in [0, 1].
    """
    # Hoeffding's bound is one-sided: at a mean above the bound it says nothing, and is 1.
    below = min(mean_loss, bound)
    hoeffding = math.exp(-count * _divergence(below, bound))
    # Bentkus: e times the binomial's tail. The sum is rounded up, but not for an error of its own
    # computation, which would cost a whole unit of loss.
    total = math.ceil(count * mean_loss - _TINY * max(1.0, count * mean_loss))
    return min(1.0, hoeffding, math.e * binomial_cdf(total, count, bound))


def binomial_cdf(successes: int, count: int, chance: float) -> float:
    """Return the probability of at most so many successes in `count` trials."""
    if successes >= count:
        return 1.0
    # Logarithms: the binomial coefficients of thousands of sentences have no float.
    each = [
        math.lgamma(count + 1)
        - math.lgamma(number + 1)
        - math.lgamma(count - number + 1)
        + number * math.log(chance)
        + (count - number) * math.log1p(-chance)
        for number in range(successes + 1)
    ]
    return min(1.0, math.fsum(map(math.exp, each)))


def least_count(bound: float, confidence: float, mean_loss: float = 0.0) -> int | None:
    """Return with how many sentences a mean loss can pass; None: with none, it is too large.

    For a loss of 0 it is the least number; for others the p-value may pass a little sooner.
    """
    if mean_loss >= bound:
        return None
    # Hoeffding's bound solved for the count.
    return math.ceil(-math.log1p(-confidence) / _divergence(mean_loss, bound) - _TINY)


def check_promise(allowed: float, confidence: float, count: int) -> None:
    """Raise ConfigError for a bound or confidence that cannot be, or for too few sentences.

    `allowed` is in percent; `count` sentences are tested on, which is half of a split.
    """
    faults = []
    if not 0 < allowed < 100:
        faults.append(f"`--allow-loss` must be above 0 and below 100, but is {allowed:g}.")
    if not 0 < confidence < 1:
        faults.append(f"`--confidence` must be above 0 and below 1, but is {confidence:g}.")
    if faults:
        raise ConfigError(faults)
    needed = least_count(allowed / 100, confidence)
    if needed is not None and count < needed:
        raise ConfigError(
            f"A loss of at most {allowed:g} cannot be promised with confidence {confidence:g} from "
            f"{count:,} sentences: not even without any loss. {needed:,} are needed to test on.",
            f"Tune on a split of {2 * needed:,} sentences or more (half of them choose the "
            "candidates), allow a larger loss, or ask for less confidence.",
        )


def bleu_losses(
    full: Sequence[str], adaptive: Sequence[str], references: Sequence[str]
) -> NDArray[Any]:
    """Return by how much each adaptive translation's sentence BLEU is worse, in [0, 1]; 0 if not.

    All are tokenised text.
    """
    losses: NDArray[Any] = numpy.zeros(len(references))
    for index, (deep, early, reference) in enumerate(zip(full, adaptive, references, strict=True)):
        # Most translations are equal, and sentence BLEU is slow.
        if early != deep:
            deep_score, score = (sentence_bleu(text, reference, "none") for text in (deep, early))
            losses[index] = (deep_score - score) / 100
    return losses.clip(0.0, 1.0)


def agreement_losses(full: Sequence[Any], adaptive: Sequence[Any]) -> NDArray[Any]:
    """Return which share of the units of each adaptive translation is not the full stack's.

    Units to insert, delete or replace over those of the longer one: in [0, 1].
    """
    return numpy.array(
        [
            edit_distance(deep, early) / max(len(deep), len(early), 1)
            for deep, early in zip(full, adaptive, strict=True)
        ]
    )


def edit_distance(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the least number of units to insert, delete or replace (Levenshtein)."""
    if list(first) == list(second):
        return 0
    columns = numpy.arange(len(second) + 1)
    row = columns.copy()
    for number, unit in enumerate(first, 1):
        differs = numpy.array([unit != other for other in second], dtype=int)
        following = numpy.concatenate([[number], numpy.minimum(row[1:] + 1, row[:-1] + differs)])
        # Insertions run along the row and cost one a step: less that slope, the best cell to the
        # left is a running minimum, so that no loop over columns is needed.
        row = numpy.minimum.accumulate(following - columns) + columns
    return int(row[-1])


def _divergence(mean: float, bound: float) -> float:
    """Return the relative entropy of two coins that fall on one side with these chances."""
    divergence = (1 - mean) * math.log((1 - mean) / (1 - bound))
    return divergence if mean == 0 else divergence + mean * math.log(mean / bound)
